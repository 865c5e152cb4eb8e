"""What departs from a prompt before, and why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.gateway.cache_report import CacheReport, report
from firesteel.gateway.interfaces import RequestOutcome, Usage
from firesteel.gateway.prompt_chain import (
    MAX_BODY_BYTES,
    MAX_GROUPS,
    MAX_KEPT_BYTES,
    PromptChains,
    SeenPrompt,
)
from firesteel.gateway.service_config import PlannedFigures
from firesteel.units import Band
from tests.gateway.prompt_cases import (
    CASES,
    CODEX_ENVIRONMENT,
    LONG,
    MORE,
    OTHER,
    RULES,
    TALK,
    TASK,
    TOOLS,
    VARIANTS,
    Case,
    anthropic,
    blocks,
    chat,
    in_system,
    item,
    responses,
    user,
    words,
)


def encoded(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def judged(case: Case) -> CacheReport | None:
    chains = PromptChains()
    first = chains.take("key", "coder", encoded(case.before), ("coder", 0))
    assert first is not None
    first.now.was_answered = True
    if case.restarts:
        chains.restarted("coder")
    seen = chains.take("key", case.model, encoded(case.after), ("coder", case.replica))
    assert seen is not None
    return report(seen, outcome(seen, case.cached), planned(case.block))


def outcome(seen: SeenPrompt, cached: float | None = None) -> RequestOutcome:
    share = seen.shared if cached is None else int(seen.total * cached)
    usage = Usage(seen.total // 4, 9, share // 4)
    return RequestOutcome("whole", 200, usage, is_stream=True, waited_s=1.0, first_s=11.0)


def planned(block: int = 1) -> PlannedFigures:
    return PlannedFigures(Band(1, 2, 3), prefill_tokens_per_s=1000.0, cache_block_tokens=block)


@pytest.mark.parametrize("case", [*CASES, *VARIANTS], ids=lambda case: case.name)
def test_the_cause_is_named(case: Case) -> None:
    found = judged(case)
    assert found is not None
    assert found.cause == case.cause, found.text


def rolling(messages: list[Any]) -> list[Any]:
    """As Claude Code marks the end of what may be cached."""
    *others, last = messages
    *parts, part = last["content"]
    return [*others, {**last, "content": [*parts, {**part, "cache_control": {"type": "ephemeral"}}]}]


ANSWERED = [
    blocks(TASK),
    {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
    blocks("Next."),
]
FURTHER = [
    *ANSWERED,
    {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    blocks("And now?"),
]
ENVIRONMENT = item("user", CODEX_ENVIRONMENT.format("/home/x", "2026-11-19"))
HARMLESS = {
    "the next turn": (chat(RULES, TALK), chat(RULES, [*TALK, *MORE])),
    "the next turn, Responses": (
        responses(RULES, [item("user", TASK)]),
        responses(RULES, [item("user", TASK), item("assistant", "Done."), item("user", "And now?")]),
    ),
    "the mark of what may be cached moves": (
        anthropic([RULES], rolling(ANSWERED)),
        anthropic([RULES], rolling(FURTHER)),
    ),
    "the same request": (chat(RULES, TALK), chat(RULES, TALK)),
    "another limit of the answer": (
        chat(RULES, TALK, max_tokens=5),
        chat(RULES, [*TALK, *MORE], max_tokens=9),
    ),
    "another session": (anthropic([RULES], [blocks(TASK)]), anthropic([RULES], [blocks(OTHER)])),
    "another session after a long one": (
        anthropic([RULES], LONG),
        anthropic([RULES], [blocks("Summarize the file parser.py for me.")]),
    ),
    "another task, before what a program adds": (
        anthropic([RULES], [user("List the files of this folder."), user(words(30, "P "))]),
        anthropic([RULES], [user("Look at what is here."), user(words(30, "P "))]),
    ),
    "another number in the task": (
        anthropic([RULES], [blocks("Fix issue 12.", words(30, "P "))]),
        anthropic([RULES], [blocks("Fix issue 13.", words(30, "P "))]),
    ),
    "another session after a long one, with rules for a hand-over": (
        anthropic([RULES], LONG),
        anthropic(
            [RULES], [blocks("Explain the lexer."), user("Write a hand-over of the context at the end.")]
        ),
    ),
    "another task about files": (
        anthropic([RULES], [blocks("Which files in src are old?", words(30, "P "))]),
        anthropic([RULES], [blocks("Look at what is here.", words(30, "P "))]),
    ),
    "another session, Codex": (
        responses(RULES, [ENVIRONMENT, item("user", TASK)]),
        responses(RULES, [ENVIRONMENT, item("user", OTHER)]),
    ),
    "a request for a title": (
        anthropic([RULES], [blocks(TASK)]),
        anthropic(["Write a title for this conversation."], [blocks(TASK)], []),
    ),
    "a delegated search": (
        anthropic([RULES], [blocks(TASK)]),
        anthropic(["You search code.\n" + words(40, "S ")], [blocks("Find it.")], TOOLS[:3]),
    ),
    "no conversation": ({"model": "coder", "prompt": RULES}, {"model": "coder", "prompt": "x" + RULES}),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_alarms(name: str) -> None:
    before, after = HARMLESS[name]
    chains = PromptChains()
    first = chains.take("key", "coder", encoded(before), ("coder", 0))
    if first is None:
        assert name == "no conversation"
        return
    first.now.was_answered = True
    seen = chains.take("key", "coder", encoded(after), ("coder", 0))
    assert seen is not None and report(seen, outcome(seen), planned()) is None


def test_what_the_engine_had_is_not_read_again() -> None:
    """vLLM takes the billing line out by itself."""
    found = judged(replace_cached(CASES[0], 0.97))
    assert found is None
    assert judged(replace_cached(CASES[0], 0.0)) is not None


def replace_cached(case: Case, cached: float) -> Case:
    return case._replace(cached=cached)


def test_a_prompt_that_was_not_answered_is_nothing_that_could_be_cached() -> None:
    chains = PromptChains()
    for messages in (TALK, [*TALK, *MORE]):  # two at once, or the first was refused
        seen = chains.take("key", "coder", encoded(chat(RULES, messages)), ("coder", 0))
    assert seen is not None and report(seen, outcome(seen, 0.0), planned()) is None


def test_keys_are_never_compared() -> None:
    chains = PromptChains()
    for key, day in (("one", "18"), ("two", "19")):
        body = encoded(chat(in_system(f"Today: 2026-11-{day}"), TALK))
        seen = chains.take(key, "coder", body, ("coder", 0))
    assert seen is not None and seen.cause is None and not seen.shared


def test_what_is_kept_has_a_limit() -> None:
    chains = PromptChains()
    for number in range(400):
        text = "\n".join(f"line {number} {at}" for at in range(3000))
        chains.take(f"key{number % 100}", "coder", encoded(chat(text, [user(str(number))])), ("coder", 0))
    assert 0 < chains.kept <= MAX_KEPT_BYTES
    groups = chains._groups.values()
    assert len(groups) <= MAX_GROUPS and sum(each.kept for group in groups for each in group) == chains.kept
    assert chains.take("key", "coder", b"{" + b" " * MAX_BODY_BYTES + b"}", ("coder", 0)) is None


def test_no_text_is_kept() -> None:
    chains = PromptChains()
    chains.take("key", "coder", encoded(chat(in_system("SECRET"), [user("SECRET"), *MORE])), ("coder", 0))
    assert "SECRET" not in repr(chains._groups) and RULES[:20] not in repr(chains._groups)


NAMES = ("messages", "input", "system", "tools", "role", "content", "type", "name", "function")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("messages", "input", "system", "tools", "role", "content", "type", "name", "function")
            ),
            each,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, min_size=1, max_size=4), st.binary(max_size=30))
def test_any_body_is_taken(bodies: list[Any], noise: bytes) -> None:
    chains = PromptChains()
    for body in bodies:
        text = json.dumps(body).encode()
        for data in (text, text[:-1] + noise, noise):
            seen = chains.take("key", "coder", data, ("coder", 0))
            assert seen is None or 0 <= seen.shared <= seen.total
            if seen is not None:
                report(seen, outcome(seen, 0.0))
