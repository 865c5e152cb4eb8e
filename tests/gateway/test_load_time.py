"""How long a load takes, warm-up and proof included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firesteel.edge.home import Home
from firesteel.gateway.children import LoaderHands, Progress
from firesteel.gateway.load_time import Clock, Took
from firesteel.gateway.reading import Up
from firesteel.run import Doing, Done
from firesteel.run.starts import Start, last_proved, remember

KNOWN = Took(launch_s=30, proof_s=20, whole_s=55)


@pytest.mark.parametrize(
    ("took", "events", "left_s"),
    [
        (KNOWN, [(1, Done("check", "well"))], 55),
        (KNOWN, [(5, Doing("launch", "starting"))], 50),
        (KNOWN, [(5, Doing("launch", "starting")), (15, Doing("launch", "half way", 12.0))], 32),
        (KNOWN, [(5, Doing("launch", "starting")), (15, Doing("launch", "half way"))], 40),
        (KNOWN, [(5, Doing("launch", "starting")), (36, Doing("launch", "late"))], None),
        (KNOWN, [(35, Done("launch", "answers"))], 20),
        (KNOWN, [(35, Done("launch", "answers")), (38, Doing("warm", "32 tokens"))], 17),
        (KNOWN, [(35, Doing("warm", "32 tokens")), (45, Doing("verify", "asks"))], 10),
        (KNOWN, [(35, Doing("warm", "32 tokens")), (56, Doing("verify", "late"))], None),
        (KNOWN, [(5, Doing("pull", "fetching"))], None),
        (Took(30), [(5, Doing("launch", "half way", 12.0))], 12),
        (Took(30), [(35, Doing("warm", "32 tokens"))], None),
        (Took(None), [(5, Doing("launch", "starting"))], None),
    ],
)
def test_how_long_it_will_still_be(
    took: Took, events: list[tuple[float, Doing | Done]], left_s: float | None
) -> None:
    clock = Clock(took, 0)
    said = [clock.left_s(event, now_s) for now_s, event in events]
    assert said[-1] == left_s


def test_what_was_fetched_is_no_part_of_a_load(tmp_path: Path) -> None:
    home, clock = Home(tmp_path), Clock(Took(None), 100)
    remember(home, "m", Start("vllm", "0.32.0", {"weights": 30.0}))
    times: list[tuple[float, Doing | Done]] = [(102, Doing("pull", "a")), (700, Doing("pull", "b"))]
    times += [(1000, Doing("launch", "starting")), (1040, Done("launch", "answers"))]
    for now_s, event in times:
        clock.left_s(event, now_s)
    assert clock.keep("m", home, 1055) == 57
    kept = last_proved(home, "m", "vllm", "0.32.0")
    assert kept and (kept.proof_s, kept.whole_s, kept.seconds) == (15, 57, {"weights": 30})
    remember(home, "m", Start("vllm", "0.32.0", {"weights": 31.0}))
    assert last_proved(home, "m", "vllm", "0.32.0") == kept, "a start that was not proved says nothing of it"
    assert last_proved(home, "m", "vllm", "0.33.0") is None


@pytest.mark.real
async def test_a_second_load_says_how_long_the_whole_takes(
    engine_home: Home, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(engine_home.root))
    file = tmp_path / "service.yaml"
    file.write_text(f"models:\n  one: {{recipe: smollm2, context: 1024, port: {free_port}}}\n")
    hands = LoaderHands()

    async def loaded() -> tuple[list[Progress], Up]:
        model = (await hands.read(str(file))).models[0]
        said = [each async for each in hands.load(model)]
        assert isinstance(said[-1], Up)
        return [each for each in said if isinstance(each, Progress)], said[-1]

    _, first = await loaded()
    assert first.load_s
    assert [each async for each in hands.unload("one")]
    assert (await hands.read(str(file))).models[0].load_s == pytest.approx(first.load_s, abs=0.1)
    said, second = await loaded()
    assert second.load_s
    kept = json.loads((engine_home.root / "starts" / "one.json").read_text())[0]
    launch = [each.eta_s for each in said if each.phase == "launch" and each.eta_s is not None]
    assert launch and max(launch) >= kept["proof_s"], "the proof is part of what is left"
    assert next(each.eta_s for each in said if each.phase == "warm"), "and has its own time"
