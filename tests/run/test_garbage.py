"""The detectors, on real answers of good and of broken engines."""

from __future__ import annotations

import ast
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import firesteel
from firesteel.run.verify.garbage import TextFault, find_faults, find_loop, quote

SAMPLES = Path(__file__).parent / "samples"
ROOT = Path(firesteel.__file__).parent
Sample = dict[str, Any]


def samples(name: str) -> list[Sample]:
    found: list[Sample] = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text("utf-8"))
    return found


def look(sample: Sample) -> tuple[TextFault, ...]:
    options = {key: sample[key] for key in ("script", "is_prose", "was_cut") if key in sample}
    return find_faults(sample["text"], **options)


@pytest.mark.parametrize("sample", samples("good"), ids=lambda sample: sample["name"])
def test_good_text_has_no_faults(sample: Sample) -> None:
    assert look(sample) == ()


@pytest.mark.parametrize("sample", samples("bad"), ids=lambda sample: sample["name"])
def test_bad_text_has_its_fault(sample: Sample) -> None:
    assert set(sample["kinds"]) <= {fault.kind for fault in look(sample)}
    assert all(fault.observed for fault in look(sample))


def test_every_sample_names_its_source() -> None:
    every = samples("good") + samples("bad")
    assert all(sample["source"] for sample in every)
    names = [sample["name"] for sample in every]
    assert len(names) == len(set(names))


def test_our_own_code_has_no_faults() -> None:
    """A corpus that the thresholds were not chosen on."""
    for path in sorted(ROOT.rglob("*.py"))[::3]:
        found = {fault.kind for fault in find_faults(path.read_text("utf-8"))}
        # Code about tokenizers names their tokens; the questions in several scripts have several.
        has_several = path.name in ("questions.py", "speaker.py")
        allowed = {"special", "script"} if has_several else {"special"}
        assert found <= allowed, path.name


def test_our_own_sentences_are_english() -> None:
    for path in sorted(ROOT.rglob("*.py"))[::3]:
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        prose = docstring.partition("\n    ")[0]  # what is set off below is code or a table
        if len(prose) > 200 and path.name != "garbage.py":
            assert find_faults(prose, is_prose=True, script="any") == (), path.name


ENGLISH = (
    "A computer is a machine that follows a list of steps. It has a processor, which does the work, and a "
    "memory in which the steps and the data are kept. People use it to write, to draw, to count and to talk "
    "with each other. In the beginning it filled a whole room, and today there is one in every pocket."
)
WORDS = ENGLISH.split()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (" ".join(word for word in WORDS for _ in (1, 2)), "come twice in a row"),
        (" ".join(random.Random(1).sample(WORDS, len(WORDS))), "words in disorder"),
        (" ".join(word[::-1] for word in WORDS), "common English ones"),
        (" ".join(WORDS[:30] + [word[::-1] for word in WORDS[30:]]), "of its last 30 words"),
        (
            " ".join(f"{word} 的机" if i % 8 == 0 else word for i, word in enumerate(WORDS)),
            "of another script",
        ),
    ],
    ids=["doubled", "shuffled", "reversed", "reversed from the middle on", "words of another script"],
)
def test_changed_sentences_are_no_english(text: str, says: str) -> None:
    assert find_faults(ENGLISH, is_prose=True) == ()
    faults = find_faults(text, is_prose=True)
    assert any(says in fault.observed for fault in faults), faults


def test_a_cut_text_may_end_within_a_character() -> None:
    assert find_faults("It is 20 °C \ufffd", was_cut=True) == ()
    assert find_faults("It is 20 °C \ufffd")[0].kind == "bytes"
    assert find_faults("It \ufffd is 20 °C", was_cut=True)[0].kind == "bytes"


def test_the_expected_script_is_the_one_of_the_question() -> None:
    text = "北京是中华人民共和国的首都。它位于华北平原的北部。"
    assert find_faults(text, script="cjk") == () == find_faults(text, script="any")
    assert find_faults("北京 Peking 中华 capital 首都 of the")[0].kind == "script"
    assert find_faults("Beijing is the capital of China.", script="cjk")[0].kind == "script"


@given(st.text(max_size=400))
def test_any_text_can_be_checked_and_quoted(text: str) -> None:
    for fault in find_faults(text, is_prose=True):
        assert fault.observed.isprintable()
    assert quote(text).isprintable() and len(quote(text)) <= 64


@given(st.text(min_size=1, max_size=30).filter(lambda text: any(sign.isalpha() for sign in text)))
def test_forty_repetitions_are_a_loop(unit: str) -> None:
    assert {"loop", "bytes", "special"} & {
        fault.kind for fault in find_faults(f"It begins well. {unit * 40}")
    }


def test_a_long_answer_is_checked() -> None:
    """Not in a time that grows with the square of its length: that would be hours."""
    hostile = ("ab" * 50_000, "\n" * 200_000, "a b " * 50_000, "".join(chr(i) for i in range(32, 50_000)))
    for text in hostile:
        assert find_faults(text, is_prose=True)


@pytest.mark.parametrize(
    "text",
    [
        "1. Mona Ali\n2. Mona Ali\n3. Mona Ali\n4. Mona Ali\n5. Mona Ali\n",
        "!" * 40,
        "ok then " + "ha " * 30,
    ],
)
def test_loops_are_found(text: str) -> None:
    assert find_loop(text) is not None


@pytest.mark.parametrize(
    "text",
    ["", "Wait...", "1. Red\n2. Blue\n3. Green\n4. Yellow\n", "He laughed: ha ha ha ha, and left.", "-" * 20,
     "1. 1\n2. 2\n3. 3\n4. 4\n5. 5\n6. 6\n7. 7\n8. 8\n9. 9\n10. 10"],
)  # fmt: skip
def test_good_text_is_not_a_loop(text: str) -> None:
    assert find_loop(text) is None
