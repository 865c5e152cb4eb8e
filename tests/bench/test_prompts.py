"""Prompts: to the token with two tokenizers, new each time, the same for the same seed, and of their kind."""

from __future__ import annotations

import ast
import json
from itertools import islice
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.bench.load.prompts import PromptWriter, text_blocks
from firesteel.edge.sim.tokenizer import count as pretend_count
from firesteel.launch import Text
from tests.bench.faulty_server import tokens

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
