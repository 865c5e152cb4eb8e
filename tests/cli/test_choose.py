"""`firesteel choose` as a user types it."""

from __future__ import annotations

from tests.conftest import Firesteel


def test_three_options_give_an_answer_and_two_alternatives(firesteel: Firesteel) -> None:
    words = ("choose", "--who", "agent", "--prompt", "30k", "--matters", "speed", "--host", "gb10")
    ran = firesteel(*words, "--json")
    assert ran.code == 0, ran.err
    best = ran.json["best"]
    assert best["context"] == 32768 and best["engine"] and best["quantization"] and best["why"]
    assert len(ran.json["others"]) == 2
    text = firesteel(*words).out
    assert best["name"] in text and "prompts of 30,720 tokens, 27,648 of them cached" in text
    assert f"next: firesteel plan {best['name']} --context 32768" in text


def test_what_is_missing_is_asked_for(firesteel: Firesteel) -> None:
    ran = firesteel("choose", "--who", "team")
    assert ran.code == 2 and "who uses it, how long prompts are, what matters" in ran.err


def test_guides(firesteel: Firesteel) -> None:
    ran = firesteel("choose", "--guides", "--json")
    assert ran.code == 0 and any(claim["agrees"] for claim in ran.json["claims"])
