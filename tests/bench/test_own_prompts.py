"""Prompts from a file: every form that people have, and files that are not what they seem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.bench.load.measure import RunFinished, RunOrder, measure
from firesteel.bench.load.own_prompts import OwnPrompts, parse_prompts, read_prompts
from firesteel.bench.load.prompts import Prompt
from firesteel.bench.load.recorded import own_points
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.load.shapes import points
from firesteel.bench.values import Point, Subject
from firesteel.errors import UsageError
from tests.bench.faulty_server import MODEL, FaultyServer, serving

SHARE = [
    {"id": "a", "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]},
    {
        "id": "b",
        "conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "How?"}],
    },
    {"id": "c", "conversations": []},
]
CHAT = {"messages": [
    {"role": "system", "content": "Be kind."}, {"role": "user", "content": "One"},
    {"role": "assistant", "content": "1"}, {"role": "user", "content": [{"type": "text", "text": "Two"}]},
    {"role": "assistant", "content": "2"},
]}  # fmt: skip


def texts(own: OwnPrompts) -> list[str]:
    return [prompt.text for prompt in own.prompts]


def test_one_a_line() -> None:
    own = parse_prompts("\ufeffWhy is the sky blue?\r\n\n  [draft] {x}  \n", "mine.txt")
    assert texts(own) == ["Why is the sky blue?", "[draft] {x}"]
    assert texts(parse_prompts("Why?\nHow?", "mine")) == ["Why?", "How?"]


def test_lines_of_json() -> None:
    lines = [{"prompt": "Why?"}, CHAT, SHARE[0], "How?"]
    own = parse_prompts("\n".join(map(json.dumps, lines)), "mine.jsonl")
    assert texts(own) == ["Why?", "Two", "Why?", "How?"]
    assert [message["role"] for message in own.prompts[1].before] == ["system", "user", "assistant"]


def test_sharegpt_gives_first_questions() -> None:
    own = parse_prompts(json.dumps(SHARE), "ShareGPT_V3.json")
    assert texts(own) == ["Why?", "How?"]
    assert own.prompts[1].before == ({"role": "system", "content": "Be brief."},)
    assert own.notes == ("1 of 3 entries of ShareGPT_V3.json ask nothing and are left out",)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("", "a.txt", "contains no prompt"),
        ("\n \n", "a.jsonl", "contains no prompt"),
        ("[]", "a.json", "contains no prompt"),
        ("PK\x03\x04\x00\x00", "a.zip", "line 1, is not text"),
        ("fine\nWas f\ufffdr", "a.txt", "line 2, is not UTF-8"),
        ('{"prompt": "a"}\n{"prompt": ', "a.jsonl", "line 2 is not JSON"),
        ('{"prompt": "a"}\n{"question": "b"}', "a.jsonl", "line 2, has none of `prompt`"),
        ('{"prompt": 5}', "a.jsonl", "has no text"),
        ('{"prompt": "\\ud800"}', "a.jsonl", "half of a character"),
        ('{"messages": {}}', "a.jsonl", "is not a list"),
        ('{"messages": [5]}', "a.jsonl", "a message that is no object"),
        ('{"messages": [{"role": "root", "content": "a"}]}', "a.jsonl", "neither user"),
        ('{"messages": [{"role": "user", "content": [{"image_url": "x"}]}]}', "a.jsonl", "has no text"),
        ("[" * 100_000, "a.json", "is not JSON"),
        ("plain words", "a.jsonl", "line 1 is not JSON"),
    ],
)
def test_a_file_that_is_not_what_it_seems_is_refused(text: str, name: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_prompts(text, name)
    assert says in error.value.what and error.value.next


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.txt", Path("/dev/zero")):
        with pytest.raises(UsageError, match="is not a file"):
            read_prompts(path)
    (tmp_path / "large.jsonl").write_bytes(b"a" * (12 * 2**20 + 1))
    with pytest.raises(UsageError, match="longer than 12 MiB"):
        read_prompts(tmp_path / "large.jsonl")


@given(st.text(max_size=300), st.sampled_from(["a", "a.txt", "a.json", "a.jsonl"]))
def test_any_text_is_read_or_refused(text: str, name: str) -> None:
    try:
        own = parse_prompts(text, name)
    except UsageError:
        return
    assert own.prompts and all(prompt.text.strip() for prompt in own.prompts) and own.mean_tokens >= 1


def test_another_file_is_another_load() -> None:
    one, other = (parse_prompts(text, "a.txt") for text in ("Why?", "How?"))
    quick = points(["quick"])
    assert len(own_points(quick, one)) == 2, "one kind of text"
    assert not set(own_points(quick, one)) & {*own_points(quick, other), *quick}


async def test_own_prompts_are_sent_as_they_are_and_long_ones_left_out() -> None:
    prompts = tuple(Prompt(f"  Question {number}?", 0) for number in range(9))
    long = Prompt("word " * 500, 0)
    system = Prompt("Last?", 0, ({"role": "system", "content": "Be brief."},))
    own = OwnPrompts("mine.txt 123456", (*prompts, long, system))
    server = FaultyServer(token_s=0)
    done: RunFinished | None = None
    async with serving(server) as url:
        point = Point("sweep", "prose", 2, 4, 4, prompts=own.label)
        limits = RunLimits(30, 0.5, 2, 2)
        order = RunOrder(Subject(url, MODEL), (point,), limits=limits, own=own, context=400)
        async for event in measure(order):
            done = event if isinstance(event, RunFinished) else done
    assert done is not None and not any(sample.wrong for sample in done.samples)
    sent = [asked["messages"] for asked in server.asked]
    assert [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Last?"}] in sent
    assert {messages[-1]["content"] for messages in sent} == {prompt.text for prompt in (*prompts, system)}
    assert any("1 prompts of more than" in note for note in done.run.notes)
    assert any("10 prompts were sent 14 times in all" in note for note in done.run.notes)
