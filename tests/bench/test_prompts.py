"""Prompts: to the token with two tokenizers, new each time, the same for the same seed, and of their kind.

Prompts from a file: every form that people have, and files that are not what they seem.
"""

from __future__ import annotations

import ast
import json
from itertools import islice
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.bench.load.measure import RunFinished, RunOrder, measure, own_points
from firesteel.bench.load.prompts import (
    OwnPrompts,
    Prompt,
    PromptWriter,
    parse_prompts,
    read_prompts,
    text_blocks,
)
from firesteel.bench.load.schedule import RunLimits, points
from firesteel.bench.measurements import Point, Subject
from firesteel.edge.sim.tokenizer import count as pretend_count
from firesteel.errors import UsageError
from firesteel.launch import Text
from tests.bench.faulty_server import MODEL, FaultyServer, serving, tokens

KINDS = get_args(Text)


async def by_pieces(text: str) -> int:
    return pretend_count(text)


async def by_words(text: str) -> int:
    return len(tokens(text))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [by_pieces, by_words])
async def test_lengths_are_exact(kind: Text, count: object) -> None:
    writer = PromptWriter(count)  # type: ignore[arg-type]  # one of the two above
    for size in (12, 33, 64, 500, 512, 3000, 3001):
        found = await writer.prompt(kind, size, f"seed {size}", f"Part {size}")
        assert found.tokens == size


@given(st.sampled_from(KINDS), st.integers(16, 2000), st.integers(0, 9999))
async def test_any_length_is_exact(kind: Text, size: int, seed: int) -> None:
    found = await PromptWriter(by_pieces).prompt(kind, size, str(seed), f"Part {seed}")
    assert found.tokens == size == pretend_count(found.text)


async def test_a_prompt_usually_takes_two_calls_of_the_tokenizer() -> None:
    counted: list[str] = []

    async def count(text: str) -> int:
        counted.append(text)
        return await by_pieces(text)

    writer = PromptWriter(count)
    await writer.prompt("prose", 512, "first", "Part 0")
    before = len(counted)
    for number in range(20):
        await writer.prompt("prose", 512, f"s{number}", f"Part {number}")
    assert (len(counted) - before) / 20 <= 2.5


async def test_prompts_differ_from_the_beginning() -> None:
    writer = PromptWriter(by_pieces)
    first, second = [await writer.prompt("code", 300, "seed", f"Part {at}") for at in (1, 2)]
    assert first.text[:6] != second.text[:6]
    other = await writer.prompt("code", 300, "another seed", "Part 1")
    assert other.text != first.text
    assert first == await writer.prompt("code", 300, "seed", "Part 1"), "whatever came before"
    assert first == await PromptWriter(by_pieces).prompt("code", 300, "seed", "Part 1")


async def test_a_shared_prefix_counts() -> None:
    before = "All that we share.\n" * 10
    found = await PromptWriter(by_pieces).prompt("json", 400, "s", "Part 1", before)
    assert found.text.startswith(before) and found.tokens == 400


async def test_an_absurd_tokenizer_ends_in_bounded_time() -> None:
    calls = 0

    async def count(text: str) -> int:
        nonlocal calls
        calls += 1
        return 7 * calls % 13

    found = await PromptWriter(count).prompt("prose", 500, "s", "Part 1")
    assert found.text and calls <= 7

    async def nothing(text: str) -> int:
        return 0

    assert (await PromptWriter(nothing).prompt("prose", 500, "s", "Part 1")).tokens == 0


def test_code_is_code_and_json_is_json() -> None:
    ast.parse("".join(islice(text_blocks("code", "s"), 50)))
    for line in islice(text_blocks("json", "s"), 50):
        assert set(json.loads(line)) > {"id", "kind", "status", "owner", "tags"}


def test_sums_are_right() -> None:
    for problem in islice(text_blocks("math", "s"), 50):
        for line in problem.splitlines()[1:3]:
            left, right = line.split(" ", 1)[1].rstrip(".").split(" = ")
            a, sign, b = left.split()
            assert int(right) == (int(a) * int(b) if sign == "*" else int(a) - int(b)) >= 0


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
        ('{"messages": [5]}', "a.jsonl", "a message that is not an object"),
        ('{"messages": [{"role": "root", "content": "a"}]}', "a.jsonl", "role is not user"),
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
