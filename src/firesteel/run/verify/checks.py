"""Judging what a server answered: each check says its name, whether it passed, and what it saw.

Pure; `verify` does the asking. A check at the level `gate` fails the launch when it fails. One at the level
`note` only tells: a model of 135 million parameters may miss 12*17, it may not fail to speak.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from firesteel.edge.http.answer import Answer
from firesteel.run.verify.expected import Size
from firesteel.run.verify.garbage import Script, find_faults, quote

Level = Literal["gate", "note"]
Cause = Literal["wrong", "refused", "silent"]
"""Why a check failed: the answer is wrong; the engine said no (HTTP 400, 500); or nobody answered at all."""
MIN_EQUAL_CHARS = 200
_THINKING = re.compile(r"</?(?:think|thinking|thought|reasoning)>|<\|channel\|?>|\[/?THINK\]", re.IGNORECASE)
_CALL_AS_TEXT = re.compile(
    r"<\|?tool_call|<function=|<\|python_start\|>|\[TOOL_CALLS\]|call:\w+\{"
    r"|\{\s*\"(?:name|type|function)\"\s*:\s*\"|\bget_weather\s*\("
)
_SPARE_TOKENS, _SPARE_SHARE = 4, 0.1
"""An engine counts tokens that make no text: the end of the answer, marks around thoughts."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    passed: bool
    saw: str
    level: Level = "gate"
    cause: Cause = "wrong"
    """Of a check that failed."""

    @property
    def fails_launch(self) -> bool:
        return not self.passed and self.level == "gate"


def answered(answers: Sequence[Answer], name: str = "speaks") -> CheckResult:
    """It says something, ends properly, and the engine counted its tokens."""
    wrong = next((words for answer in answers if (words := _not_spoken(answer))), None)
    # A page of HTML with status 200 has no end either, and is no engine that fell silent.
    broke_off = any(answer.said and not answer.is_whole for answer in answers)
    cause: Cause = "silent" if broke_off else "wrong"
    return CheckResult(name, wrong is None, wrong or _shown(answers[0]), cause=cause)


def _not_spoken(answer: Answer) -> str | None:
    if not answer.said.strip() and not answer.tool_calls:
        return "an empty answer"
    if not answer.is_whole:
        return f"the stream broke off after {quote(answer.said)}"
    if answer.finish_reason not in ("stop", "length", "tool_calls"):
        return f"the answer ends with finish_reason {answer.finish_reason}"
    if not answer.completion_tokens or not answer.prompt_tokens:
        return "the engine did not count its tokens (`usage`)"
    return None


def no_garbage(
    answers: Mapping[str, Answer],
    *,
    script: Script = "latin",
    name: str = "no garbage",
    is_prose: bool = False,
) -> CheckResult:
    """No loop, no leaked token, no broken bytes, no other script, no soup; thoughts are looked at too."""
    for asked, answer in answers.items():
        was_cut = answer.finish_reason == "length"
        found = find_faults(answer.said, script=script, is_prose=is_prose, was_cut=was_cut)
        if found:
            saw = "; ".join(f"{fault.kind}: {fault.saw}" for fault in found)
            return CheckResult(name, False, f"{asked}: {saw}")
    shown = next((quote(answer.said) for answer in answers.values()), "nothing was asked")
    return CheckResult(name, True, shown)


def _has_answered(answer: Answer) -> bool:
    """The answer counts, not the thoughts before it; these only where `max_tokens` cut it short."""
    return bool(answer.text.strip()) and (answer.finish_reason != "length" or not answer.reasoning)


def _counted(answer: Answer) -> str:
    return answer.text if _has_answered(answer) else answer.said


def _shown(answer: Answer) -> str:
    if _has_answered(answer) or not answer.reasoning:
        return quote(answer.text)
    return f"in its thoughts: {quote(answer.reasoning)}"


def matches(answer: Answer, *patterns: str) -> bool:
    return any(re.search(pattern, _counted(answer), re.IGNORECASE) for pattern in patterns)


def arithmetic(answer: Answer, size: Size) -> CheckResult:
    level: Level = "note" if size == "tiny" else "gate"
    return CheckResult("2+2", matches(answer, r"\b(?:4|four)\b"), _shown(answer), level)


def facts(answers: Mapping[str, tuple[Answer, str]], size: Size) -> CheckResult:
    """What a child knows. One slip is a slip; an able model that misses more is broken."""
    missed = {asked: answer for asked, (answer, known) in answers.items() if not matches(answer, known)}
    right = len(answers) - len(missed)
    level: Level = "gate" if size == "able" else "note"
    saw = f"{right} of {len(answers)} right"
    if missed:
        saw += "; " + "; ".join(f"{asked} {_shown(answer)}" for asked, answer in missed.items())
    return CheckResult("facts", len(missed) <= (1 if len(answers) > 1 else 0), saw, level)


def deterministic(first: Answer, second: Answer) -> CheckResult:
    """Equal, or equal for long: batching and speculation may tip a close call late in an answer, a broken
    kernel or cache differs at once."""
    shared = common_prefix_chars(first.said, second.said)
    if first.said and first.said == second.said:
        return CheckResult("same twice", True, f"{first.completion_tokens} tokens at temperature 0, equal")
    if shared >= MIN_EQUAL_CHARS:
        return CheckResult("same twice", True, f"temperature 0, equal for {shared} characters, then not")
    return CheckResult(
        "same twice", False, f"temperature 0, differs at character {shared}: {quote(second.said)}"
    )


def common_prefix_chars(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def stream_matches_plain(streamed: Answer, plain: Answer, again: Answer | None) -> CheckResult:
    """The same words as a stream and at once. `again` is a second stream, asked where they were not the same:
    without it, an engine that never says the same twice would look like one whose stream is torn."""
    name = "stream equals plain"
    shared = common_prefix_chars(streamed.said, plain.said)
    if streamed.said == plain.said or shared >= MIN_EQUAL_CHARS:
        return CheckResult(name, True, f"equal for {shared} characters")
    if again is None or again.said != streamed.said:
        return CheckResult(name, True, "cannot be told: it does not say the same twice", "note")
    ours, theirs = quote(streamed.said[shared:]), quote(plain.said[shared:])
    return CheckResult(name, False, f"differs at character {shared}: streamed {ours}, plain {theirs}")


def stop_sequence(answer: Answer, stop: str) -> CheckResult:
    """`stop` was taken from the answer to the same question, so it would have come. Engines look for it in
    the content; in the thoughts before it the word may stand."""
    if stop in answer.text:
        return CheckResult("stop", False, f"{quote(stop)} was to end the answer and is in it")
    if answer.finish_reason == "stop":
        return CheckResult("stop", True, f"ended before {quote(stop)}")
    return CheckResult("stop", True, f"{quote(stop)} did not come this time", "note")


def max_tokens(answer: Answer, limit: int) -> CheckResult:
    count = answer.completion_tokens
    if count is None:
        return CheckResult("max_tokens", False, "the engine did not count its tokens (`usage`)")
    if count > limit:
        return CheckResult("max_tokens", False, f"{count} tokens where {limit} were allowed")
    if len(answer.said) > 32 * limit:
        return CheckResult(
            "max_tokens", False, f"{len(answer.said)} characters where {limit} tokens were allowed"
        )
    if answer.finish_reason == "length":
        return CheckResult("max_tokens", True, f"{count} of {limit} tokens, then finish_reason length")
    ended = answer.finish_reason == "stop" and count < limit
    return CheckResult("max_tokens", ended, f"{count} tokens, finish_reason {answer.finish_reason}")


def usage(answer: Answer, counted: int | None, max_tokens: int) -> CheckResult:
    """`usage` against the engine's own tokenizer; where it has none, against what tokens can hold."""
    said = answer.completion_tokens or 0
    if said > max_tokens:
        return CheckResult("usage", False, f"says {said} tokens where {max_tokens} were allowed")
    if counted is not None:
        spare = _SPARE_TOKENS + _SPARE_SHARE * counted + (16 if answer.reasoning else 0)
        fits = abs(said - counted) <= spare
        return CheckResult("usage", fits, f"says {said} tokens, its tokenizer makes {counted}")
    least, most = len(answer.said) / 16, len(answer.said.encode("utf-8", "replace")) + 16
    saw = f"says {said} tokens for {len(answer.said)} characters"
    return CheckResult("usage", least <= said <= most, saw, "note")


def tool_call(answer: Answer, size: Size) -> CheckResult:
    level: Level = "note" if size in ("tiny", "small") else "gate"
    if not answer.tool_calls:
        if _CALL_AS_TEXT.search(answer.said):
            return CheckResult("tool call", False, f"the call came as text: {quote(answer.said)}")
        return CheckResult("tool call", False, f"no call: {quote(answer.said)}", level)
    call = answer.tool_calls[0]
    try:
        given = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return CheckResult("tool call", False, f"arguments are not JSON: {quote(call.arguments)}")
    saw = f"{quote(call.name)} {quote(call.arguments)}"
    if call.name != "get_weather" or not isinstance(given, dict) or "city" not in given:
        return CheckResult("tool call", False, saw)
    if answer.finish_reason != "tool_calls":
        return CheckResult("tool call", True, f"{saw}, but finish_reason {answer.finish_reason}", "note")
    return CheckResult("tool call", "paris" in str(given["city"]).lower(), saw, level)


def reasoning_split(answer: Answer, was_short: bool) -> CheckResult:
    """Thoughts apart from the answer, and an end to them. `was_short`: it was given few tokens."""
    name = "reasoning split"
    if mark := _THINKING.search(answer.text):
        return CheckResult(name, False, f"{quote(mark[0])} is in the answer: the parser does not take it out")
    if found := find_faults(answer.reasoning, was_cut=True) if answer.reasoning else ():
        return CheckResult(name, False, f"in its thoughts, {found[0].kind}: {found[0].saw}")
    if not answer.text.strip():
        level: Level = "note" if was_short else "gate"
        saw = f"{answer.completion_tokens} tokens of thoughts and no answer: {quote(answer.reasoning)}"
        return CheckResult(name, False, saw, level)
    if not answer.reasoning.strip():
        return CheckResult(name, False, f"no thoughts apart from the answer {quote(answer.text)}", "note")
    return CheckResult(name, True, f"thoughts {quote(answer.reasoning, 30)}, answer {quote(answer.text, 30)}")


def long_prompt(answer: Answer, needle: str, size: Size) -> CheckResult:
    """A long prompt takes other kernels than a short one; an able model reads one fact out of it."""
    level: Level = "gate" if size == "able" else "note"
    found = needle.lower() in _counted(answer).lower()
    tokens = f"{answer.prompt_tokens:,}" if answer.prompt_tokens else "an unknown number of"
    saw = f"in {tokens} tokens: {_shown(answer)}"
    if not found and find_faults(answer.said, was_cut=answer.finish_reason == "length"):
        return CheckResult("long prompt", False, f"garbage after a long prompt, {saw}")
    return CheckResult("long prompt", found, saw, level)


def request_settings(answer: Answer, settings: Mapping[str, object]) -> CheckResult:
    """The recipe's own request settings: the server takes them, and the answer is text."""
    shown = json.dumps(settings, ensure_ascii=False)
    found = find_faults(answer.said, is_prose=True, was_cut=answer.finish_reason == "length")
    if found:
        return CheckResult("recipe's settings", False, f"with {shown}, {found[0].kind}: {found[0].saw}")
    return CheckResult("recipe's settings", True, shown)
