"""Checks of what a server answered: each returns its name, whether it passed, and what was observed.

Pure; `verify` sends the requests. A failed check of level `gate` fails the launch. One of level `note` is
only reported: a model of 135 million parameters may get 12*17 wrong, but it has to answer.
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
"""Why a check failed: a wrong answer, an HTTP error from the engine (400, 500), or no answer at all."""
MIN_EQUAL_CHARS = 200
"""Answers that differ only after so many characters count as equal."""
_THINKING = re.compile(r"</?(?:think|thinking|thought|reasoning)>|<\|channel\|?>|\[/?THINK\]", re.IGNORECASE)
_CALL_AS_TEXT = re.compile(
    r"<\|?tool_call|<function=|<\|python_start\|>|\[TOOL_CALLS\]|call:\w+\{"
    r"|\{\s*\"(?:name|type|function)\"\s*:\s*\"|\bget_weather\s*\("
)
_SPARE_TOKENS, _SPARE_SHARE = 4, 0.1
"""Engines count tokens that make no text: the end of the answer, the marks around thoughts."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    passed: bool
    observed: str
    level: Level = "gate"
    cause: Cause = "wrong"
    """Only for a failed check."""

    @property
    def fails_launch(self) -> bool:
        return not self.passed and self.level == "gate"


def answered(answers: Sequence[Answer], name: str = "speaks") -> CheckResult:
    """It is not empty, it ended properly, and the engine counted its tokens."""
    problem = next((problem for answer in answers if (problem := _problem(answer))), None)
    # A page of HTML with status 200 has no end either, but it is a wrong answer, not a silent engine.
    broke_off = any(answer.full_text and not answer.is_whole for answer in answers)
    cause: Cause = "silent" if broke_off else "wrong"
    return CheckResult(name, problem is None, problem or _excerpt(answers[0]), cause=cause)


def _problem(answer: Answer) -> str | None:
    if not answer.full_text.strip() and not answer.tool_calls:
        return "an empty answer"
    if not answer.is_whole:
        return f"the stream broke off after {quote(answer.full_text)}"
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
    """No loop, leaked token, broken bytes, foreign script or word soup, in thoughts as in the answer."""
    for prompt, answer in answers.items():
        was_cut = answer.finish_reason == "length"
        faults = find_faults(answer.full_text, script=script, is_prose=is_prose, was_cut=was_cut)
        if faults:
            observed = "; ".join(f"{fault.kind}: {fault.observed}" for fault in faults)
            return CheckResult(name, False, f"{prompt}: {observed}")
    excerpt = next((quote(answer.full_text) for answer in answers.values()), "nothing was asked")
    return CheckResult(name, True, excerpt)


def _has_answered(answer: Answer) -> bool:
    """Whether there is a complete answer after the thoughts, or `max_tokens` cut it short."""
    return bool(answer.text.strip()) and (answer.finish_reason != "length" or not answer.reasoning)


def _relevant_text(answer: Answer) -> str:
    return answer.text if _has_answered(answer) else answer.full_text


def _excerpt(answer: Answer) -> str:
    if _has_answered(answer) or not answer.reasoning:
        return quote(answer.text)
    return f"in its thoughts: {quote(answer.reasoning)}"


def matches(answer: Answer, *patterns: str) -> bool:
    return any(re.search(pattern, _relevant_text(answer), re.IGNORECASE) for pattern in patterns)


def arithmetic(answer: Answer, size: Size) -> CheckResult:
    level: Level = "note" if size == "tiny" else "gate"
    return CheckResult("2+2", matches(answer, r"\b(?:4|four)\b"), _excerpt(answer), level)


def facts(answers: Mapping[str, tuple[Answer, str]], size: Size) -> CheckResult:
    """Things a child knows, as patterns. One wrong answer is allowed; an able model with more is broken."""
    missed = {prompt: answer for prompt, (answer, right) in answers.items() if not matches(answer, right)}
    level: Level = "gate" if size == "able" else "note"
    observed = f"{len(answers) - len(missed)} of {len(answers)} right"
    if missed:
        observed += "; " + "; ".join(f"{prompt} {_excerpt(answer)}" for prompt, answer in missed.items())
    return CheckResult("facts", len(missed) <= (1 if len(answers) > 1 else 0), observed, level)


def deterministic(first: Answer, second: Answer) -> CheckResult:
    """Two answers at temperature 0 are equal, or start equal: batching and speculation may change a close
    choice late in an answer, while a broken kernel or cache shows at once."""
    shared = common_prefix_chars(first.full_text, second.full_text)
    if first.full_text and first.full_text == second.full_text:
        return CheckResult("same twice", True, f"{first.completion_tokens} tokens at temperature 0, equal")
    if shared >= MIN_EQUAL_CHARS:
        return CheckResult("same twice", True, f"temperature 0, equal for {shared} characters, then not")
    return CheckResult(
        "same twice", False, f"temperature 0, differs at character {shared}: {quote(second.full_text)}"
    )


def common_prefix_chars(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(one), len(other)))


def stream_matches_plain(streamed: Answer, plain: Answer, again: Answer | None) -> CheckResult:
    """The same text with and without streaming. `again` is a second stream, requested when they differ: it
    tells a broken stream from an engine that never answers the same twice."""
    name = "stream equals plain"
    shared = common_prefix_chars(streamed.full_text, plain.full_text)
    if streamed.full_text == plain.full_text or shared >= MIN_EQUAL_CHARS:
        return CheckResult(name, True, f"equal for {shared} characters")
    if again is None or again.full_text != streamed.full_text:
        return CheckResult(name, True, "unknown: the engine does not answer the same twice", "note")
    rest = f"streamed {quote(streamed.full_text[shared:])}, plain {quote(plain.full_text[shared:])}"
    return CheckResult(name, False, f"differs at character {shared}: {rest}")


def stop_sequence(answer: Answer, stop: str) -> CheckResult:
    """`stop` comes from an earlier answer to the same question, so it should come again. Engines look for it
    in the content only; thoughts may contain it."""
    if stop in answer.text:
        return CheckResult("stop", False, f"the answer contains {quote(stop)}, which should have ended it")
    if answer.finish_reason == "stop":
        return CheckResult("stop", True, f"ended before {quote(stop)}")
    return CheckResult("stop", True, f"{quote(stop)} did not come this time", "note")


def max_tokens(answer: Answer, limit: int) -> CheckResult:
    count = answer.completion_tokens
    if count is None:
        return CheckResult("max_tokens", False, "the engine did not count its tokens (`usage`)")
    if count > limit:
        return CheckResult("max_tokens", False, f"{count} tokens where {limit} were allowed")
    if len(answer.full_text) > 32 * limit:
        return CheckResult(
            "max_tokens", False, f"{len(answer.full_text)} characters where {limit} tokens were allowed"
        )
    if answer.finish_reason == "length":
        return CheckResult("max_tokens", True, f"{count} of {limit} tokens, then finish_reason length")
    ended = answer.finish_reason == "stop" and count < limit
    return CheckResult("max_tokens", ended, f"{count} tokens, finish_reason {answer.finish_reason}")


def usage(answer: Answer, counted: int | None, max_tokens: int) -> CheckResult:
    """`usage` against the engine's own tokenizer (`counted`); without one, against what tokens can hold."""
    reported = answer.completion_tokens or 0
    if reported > max_tokens:
        return CheckResult("usage", False, f"reports {reported} tokens where {max_tokens} were allowed")
    if counted is not None:
        spare = _SPARE_TOKENS + _SPARE_SHARE * counted + (16 if answer.reasoning else 0)
        agrees = abs(reported - counted) <= spare
        return CheckResult("usage", agrees, f"reports {reported} tokens, its tokenizer counts {counted}")
    least, most = len(answer.full_text) / 16, len(answer.full_text.encode("utf-8", "replace")) + 16
    observed = f"reports {reported} tokens for {len(answer.full_text)} characters"
    return CheckResult("usage", least <= reported <= most, observed, "note")


def tool_call(answer: Answer, size: Size) -> CheckResult:
    level: Level = "note" if size in ("tiny", "small") else "gate"
    if not answer.tool_calls:
        if _CALL_AS_TEXT.search(answer.full_text):
            return CheckResult("tool call", False, f"the call came as text: {quote(answer.full_text)}")
        return CheckResult("tool call", False, f"no call: {quote(answer.full_text)}", level)
    call = answer.tool_calls[0]
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return CheckResult("tool call", False, f"arguments are not JSON: {quote(call.arguments)}")
    observed = f"{quote(call.name)} {quote(call.arguments)}"
    if call.name != "get_weather" or not isinstance(arguments, dict) or "city" not in arguments:
        return CheckResult("tool call", False, observed)
    if answer.finish_reason != "tool_calls":
        return CheckResult("tool call", True, f"{observed}, but finish_reason {answer.finish_reason}", "note")
    return CheckResult("tool call", "paris" in str(arguments["city"]).lower(), observed, level)


def reasoning_split(answer: Answer, was_short: bool) -> CheckResult:
    """Thoughts are separate from the answer, and they end. `was_short`: `max_tokens` was small."""
    name = "reasoning split"
    if mark := _THINKING.search(answer.text):
        return CheckResult(
            name, False, f"{quote(mark[0])} is in the answer: the reasoning parser did not remove it"
        )
    if faults := find_faults(answer.reasoning, was_cut=True) if answer.reasoning else ():
        return CheckResult(name, False, f"in its thoughts, {faults[0].kind}: {faults[0].observed}")
    if not answer.text.strip():
        level: Level = "note" if was_short else "gate"
        observed = f"{answer.completion_tokens} tokens of thoughts and no answer: {quote(answer.reasoning)}"
        return CheckResult(name, False, observed, level)
    if not answer.reasoning.strip():
        return CheckResult(name, False, f"no separate thoughts, answer {quote(answer.text)}", "note")
    return CheckResult(name, True, f"thoughts {quote(answer.reasoning, 30)}, answer {quote(answer.text, 30)}")


def long_prompt(answer: Answer, needle: str, size: Size) -> CheckResult:
    """A long prompt uses other kernels than a short one; an able model finds one fact in it."""
    level: Level = "gate" if size == "able" else "note"
    found = needle.lower() in _relevant_text(answer).lower()
    tokens = f"{answer.prompt_tokens:,}" if answer.prompt_tokens else "an unknown number of"
    observed = f"in {tokens} tokens: {_excerpt(answer)}"
    if not found and find_faults(answer.full_text, was_cut=answer.finish_reason == "length"):
        return CheckResult("long prompt", False, f"garbage after a long prompt, {observed}")
    return CheckResult("long prompt", found, observed, level)


def request_settings(answer: Answer, settings: Mapping[str, object]) -> CheckResult:
    """The server accepts the recipe's own request settings, and the answer is text."""
    name, shown = "recipe's settings", json.dumps(settings, ensure_ascii=False)
    faults = find_faults(answer.full_text, is_prose=True, was_cut=answer.finish_reason == "length")
    if faults:
        return CheckResult(name, False, f"with {shown}, {faults[0].kind}: {faults[0].observed}")
    return CheckResult(name, True, shown)
