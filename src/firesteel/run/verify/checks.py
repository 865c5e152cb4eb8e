"""Checks of what a server answered: each returns its name, whether it passed, and what was observed.

Pure; `verify` sends the requests. A failed check of level `gate` fails the launch. One of level `note` is
only reported: a model of 135 million parameters may get 12*17 wrong, but it has to answer.

A prompt that comes again at temperature 0 gets the answer that it got before. Engines go wrong there in what
one request alone never shows, so each later answer is compared with the first ones (`differences`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from firesteel.edge.http.answer import Answer, TokenLogprob
from firesteel.run.verify.expected import Size
from firesteel.run.verify.garbage import Script, find_faults, quote
from firesteel.run.verify.languages import answer_pattern, subject_words
from firesteel.values import Value, replace

Level = Literal["gate", "note"]
Cause = Literal["wrong", "refused", "silent"]
"""Why a check failed: a wrong answer, an HTTP error from the engine (400, 500), or no answer at all."""
MIN_EQUAL_CHARS = 200
"""Answers that differ only after this many characters count as equal."""
MIN_FIRST_CHARS = 20
"""The first answer to a prompt and the later ones, which find it in the cache, share at least as many."""
_MIN_PHRASE_WORDS = 5
_MIN_SUBJECT_WORDS, _MIN_SHARED_SUBJECT = 8, 0.1
_THINKING = re.compile(r"</?(?:think|thinking|thought|reasoning)>|<\|channel\|?>|\[/?THINK\]", re.IGNORECASE)
_CALL_AS_TEXT = re.compile(
    r"<\|?tool_call|<function=|<\|python_start\|>|\[TOOL_CALLS\]|call:\w+\{"
    r"|\{\s*\"(?:name|type|function)\"\s*:\s*\"|\bget_weather\s*\("
)
FOUR = rf"(?<!\d)4(?!\d)|{answer_pattern('four')}"
_SPARE_STOP_CHARS = 2
"""A mark that belongs to the token of the stop string."""
_SPARE_TOKENS, _SPARE_SHARE = 4, 0.1
"""Engines count tokens that make no text: the end of the answer, the marks around thoughts."""


class CheckResult(Value):
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
    """It is not empty, and it ended properly."""
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
    if not answer.was_cut and not answer.has_stopped and answer.finish_reason != "tool_calls":
        return f"the answer ends with finish_reason {answer.finish_reason}"
    if answer.has_stopped and not answer.text.strip() and not answer.tool_calls:
        return f"the answer is empty, and all is in the thoughts: {quote(answer.reasoning)}"
    return None


def no_garbage(
    answers: Mapping[str, Answer],
    *,
    name: str = "no garbage",
    is_prose: bool = False,
    script: Script = "latin",
) -> CheckResult:
    """No loop, leaked token, broken bytes, foreign script or word soup, in thoughts as in the answer."""
    for prompt, answer in answers.items():
        if faults := find_faults(answer.full_text, script=script, is_prose=is_prose, was_cut=answer.was_cut):
            observed = "; ".join(f"{fault.kind}: {fault.observed}" for fault in faults)
            return CheckResult(name, False, f"{prompt}: {observed}")
    excerpt = next((quote(answer.full_text) for answer in answers.values()), "nothing was asked")
    return CheckResult(name, True, excerpt)


def long_answers(answers: Mapping[str, Answer], size: Size, script: Script = "latin") -> CheckResult:
    """Hundreds of tokens. At temperature 0 a sound model may come to repeat itself, a small one often does:
    whole phrases, where a broken engine repeats a sign or a word."""
    name = "long answers"
    found = no_garbage(answers, name=name, is_prose=True, script=script)
    if found.passed:
        return found
    for answer in answers.values():
        faults = find_faults(answer.full_text, script=script, is_prose=True, was_cut=answer.was_cut)
        phrases = subject_words(answer.full_text[len(answer.full_text) // 2 :])
        if {fault.kind for fault in faults} - {"loop"} or (faults and len(phrases) < _MIN_PHRASE_WORDS):
            return found
    return replace(found, passed=size != "able", level="note")


def _has_answered(answer: Answer) -> bool:
    """Whether there is a complete answer after the thoughts, or `max_tokens` cut it short."""
    return bool(answer.text.strip()) and (not answer.was_cut or not answer.reasoning)


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
    return CheckResult("2+2", matches(answer, FOUR), _excerpt(answer), level)


def facts(answers: Mapping[str, tuple[Answer, str]], size: Size) -> CheckResult:
    """Things a child knows, as patterns. One wrong answer is allowed; an able model with more is broken."""
    missed = {prompt: answer for prompt, (answer, right) in answers.items() if not matches(answer, right)}
    level: Level = "gate" if size == "able" else "note"
    observed = f"{len(answers) - len(missed)} of {len(answers)} right"
    if missed:
        observed += "; " + "; ".join(f"{prompt} {_excerpt(answer)}" for prompt, answer in missed.items())
    return CheckResult("facts", len(missed) <= (1 if len(answers) > 1 else 0), observed, level)


def deterministic(
    first: Answer, second: Answer, later: Sequence[Answer] = (), prompt: str = ""
) -> CheckResult:
    """Two answers at temperature 0 are equal, or start equal: batching and speculation may change a close
    choice, while a broken kernel or cache shows at once.

    `later` answers decide where these differ. An engine reads a prompt that it has in its cache with other
    kernels than a new one, so the first answer alone may differ, as llama.cpp's does on an H200; but if
    hardly a word is the same, or it goes on about something else, the cache may hold another text."""
    name, shared = "same twice", common_prefix_chars(first.full_text, second.full_text)
    texts = f"{quote(first.full_text[shared:])}, then {quote(second.full_text[shared:])}"
    if later and not has_same_text(first, second) and all(has_same_text(second, one) for one in later):
        observed = f"equal {len(later) + 1} times; only the first, of a new prompt, differs"
        if not second.full_text.strip():
            return CheckResult(name, False, f"{observed}: {texts}")
        strays = strays_from(second.full_text, first.full_text, prompt)
        if shared >= MIN_FIRST_CHARS and not strays:
            return CheckResult(name, True, f"{observed}, after {shared} characters")
        return CheckResult(name, False, f"{observed}: {texts}", "note")
    if first.full_text.strip() and has_same_text(first, second):
        return CheckResult(name, True, f"{len(first.full_text)} characters at temperature 0, equal")
    if shared >= MIN_EQUAL_CHARS:
        return CheckResult(name, True, f"temperature 0, equal for {shared} characters, then not")
    level: Level = "note" if second.full_text.strip() else "gate"
    return CheckResult(name, False, f"temperature 0, differs at character {shared}: {texts}", level)


def strays_from(text: str, first: str, prompt: str = "") -> bool:
    """Whether the rest of a text, after what it shares with the first one, is about something else: a close
    choice of words changes what is said next, but not what it is about."""
    rest = subject_words(text[common_prefix_chars(text, first) :])
    if len(rest) < _MIN_SUBJECT_WORDS or rest & subject_words(prompt):
        return False
    return len(rest & subject_words(first)) < _MIN_SHARED_SUBJECT * len(rest)


def common_prefix_chars(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(one), len(other)))


def stream_matches_plain(
    streamed: Answer, plain: Answer, again: tuple[Answer, Answer] | None = None
) -> CheckResult:
    """The same text with and without streaming. `again` are a second stream and a second plain answer, asked
    for when the first two differ: what differs in the same way twice is a broken stream, what wavers is an
    engine whose batches change close choices late in an answer."""
    name = "stream equals plain"
    if has_same_text(streamed, plain):
        if (streamed.was_cut and plain.has_stopped) or (plain.was_cut and streamed.has_stopped):
            reasons = f"{streamed.finish_reason}, plain {plain.finish_reason}"
            return CheckResult(name, False, f"the same text ends streamed with finish_reason {reasons}")
        return CheckResult(name, True, f"equal for {len(plain.full_text)} characters")
    shared = common_prefix_chars(streamed.full_text, plain.full_text)
    rest = f"streamed {quote(streamed.full_text[shared:])}, plain {quote(plain.full_text[shared:])}"
    if again and has_same_text(streamed, again[0]) and has_same_text(plain, again[1]):
        return CheckResult(name, False, f"differs at character {shared}, twice: {rest}")
    if shared >= MIN_EQUAL_CHARS:
        return CheckResult(name, True, f"equal for {shared} characters, then it wavers")
    return CheckResult(name, True, "unknown: the engine does not answer the same twice", "note")


def has_same_text(one: Answer, other: Answer) -> bool:
    """But for space around it, and half a character where `max_tokens` cut it."""
    texts = [(answer.reasoning.strip(), answer.text.strip().rstrip("\ufffd")) for answer in (one, other)]
    return texts[0] == texts[1]


def stop_sequence(answer: Answer, stop: str, firsts: Sequence[Answer] = ()) -> CheckResult:
    """`stop` comes from an earlier answer to the same question, so it should come again. Engines look for it
    in the content only; thoughts may contain it."""
    if stop in answer.text:
        return CheckResult("stop", False, f"the answer contains {quote(stop)}, which should have ended it")
    for first in firsts if answer.has_stopped else ():
        before, found, _ = first.text.strip().partition(stop)
        rest = answer.text.strip().removeprefix(before.strip()).strip()
        if (
            found
            and answer.text.strip().startswith(before.strip())
            and len(rest) > 1
            and stop.startswith(rest)
        ):
            return CheckResult("stop", False, f"the answer ends with {quote(rest)}, a part of {quote(stop)}")
        missing = len(before.strip()) - len(answer.text.strip())
        if found and before.startswith(answer.text.strip()) and missing > _SPARE_STOP_CHARS:
            observed = f"ended {missing} characters before {quote(stop)}: {quote(answer.text[-40:])}"
            return CheckResult("stop", False, observed)
    if answer.has_stopped:
        return CheckResult("stop", True, f"ended before {quote(stop)}")
    return CheckResult("stop", True, f"{quote(stop)} did not come this time", "note")


def max_tokens(answer: Answer, limit: int) -> CheckResult:
    count = answer.completion_tokens
    if count is not None and count > limit:
        return CheckResult("max_tokens", False, f"{count} tokens where {limit} were allowed")
    if len(answer.full_text) > 32 * limit:
        return CheckResult(
            "max_tokens", False, f"{len(answer.full_text)} characters where {limit} tokens were allowed"
        )
    if answer.was_cut:
        is_short = count is not None and count < limit and not answer.reasoning
        observed = f"{count or 'some'} of {limit} tokens, then cut"
        return CheckResult("max_tokens", not is_short, observed, "note" if is_short else "gate")
    ended = answer.has_stopped and count is not None and count < limit
    return CheckResult("max_tokens", ended, f"{count} tokens, finish_reason {answer.finish_reason}")


def usage(answer: Answer, counted: int | None, max_tokens: int) -> CheckResult:
    """`usage` against the engine's own tokenizer (`counted`); without one, against what tokens can hold."""
    reported = answer.completion_tokens
    if reported is None:
        return CheckResult("usage", True, "unknown: no answer counts its tokens", "note")
    if reported > max_tokens:
        return CheckResult("usage", False, f"reports {reported} tokens where {max_tokens} were allowed")
    if counted is not None:
        spare = _SPARE_TOKENS + _SPARE_SHARE * counted + (16 if answer.reasoning else 0)
        agrees = abs(reported - counted) <= spare
        return CheckResult("usage", agrees, f"reports {reported} tokens, its tokenizer counts {counted}")
    least, most = len(answer.full_text) / 16, len(answer.full_text.encode("utf-8", "replace")) + 16
    observed = f"reports {reported} tokens for {len(answer.full_text)} characters"
    return CheckResult("usage", least <= reported <= most, observed, "note")


def tool_call(answer: Answer, size: Size, *, must_call: bool = False) -> CheckResult:
    """`must_call`: the request demanded a call, which the engine enforces whatever the model would do."""
    level: Level = "note" if size in ("tiny", "small") and not must_call else "gate"
    how = "streamed: " if answer.is_stream else ""
    if not answer.tool_calls:
        if _CALL_AS_TEXT.search(answer.full_text):
            return CheckResult("tool call", False, f"{how}the call came as text: {quote(answer.full_text)}")
        return CheckResult("tool call", False, f"{how}no call: {quote(answer.full_text)}", level)
    call = answer.tool_calls[0]
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return CheckResult("tool call", False, f"{how}arguments are not JSON: {quote(call.arguments)}")
    observed = f"{how}{quote(call.name)} {quote(call.arguments)}"
    city = arguments.get("city") if isinstance(arguments, dict) else None
    if call.name != "get_weather" or not isinstance(city, str):
        return CheckResult("tool call", False, observed)
    if not call.has_index:
        return CheckResult("tool call", False, f"{observed}, whose pieces do not say which call they are of")
    if answer.was_cut:
        return CheckResult("tool call", False, f"{observed}, whole, but finish_reason {answer.finish_reason}")
    if odd := _odd_call(answer):
        return CheckResult("tool call", False, f"{observed}, {odd}", "note")
    return CheckResult("tool call", must_call or "paris" in city.lower(), observed, level)


def has_call_as_text(answer: Answer) -> bool:
    return _CALL_AS_TEXT.search(answer.full_text) is not None


def unparsed_call(answer: Answer, required: Mapping[str, Collection[str]]) -> str | None:
    """Why an agent cannot use the calls of an answer; None: it can. `required`: arguments, by tool."""
    if not answer.tool_calls:
        how = "the call came as text" if has_call_as_text(answer) else "no call"
        return f"{how}: {quote(answer.full_text)}"
    for call in answer.tool_calls:
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError):
            return f"arguments are not JSON: {quote(call.arguments)}"
        if call.name not in required:
            return f"{quote(call.name)} was called, which is not offered"
        if missing := [
            name for name in required[call.name] if not isinstance(arguments, dict) or name not in arguments
        ]:
            return f"{call.name} was called without its `{missing[0]}`: {quote(call.arguments)}"
        if not call.has_index:
            return "pieces of calls do not say which call they are of"
    return None


def _odd_call(answer: Answer) -> str | None:
    """What agents stumble over, though the call is right."""
    calls = [(call.name, call.arguments) for call in answer.tool_calls]
    if len(set(calls)) < len(calls):
        return f"{len(calls)} times the same call"
    if not all(call.id for call in answer.tool_calls):
        return "without an id, which its result has to name"
    if answer.finish_reason != "tool_calls":
        return f"but finish_reason {answer.finish_reason}"
    return None


def tool_result(answer: Answer) -> CheckResult:
    """What the model says to the result of its call."""
    if answer.full_text.strip() or answer.tool_calls:
        return CheckResult("tool result", True, _excerpt(answer))
    return CheckResult("tool result", False, "an empty answer to the result of a tool", "note")


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


def long_prompt(answer: Answer, needle: str, size: Size, others: Collection[str] = ()) -> CheckResult:
    """A long prompt uses other kernels than a short one; an able model finds one fact in it. A smaller one
    may take one of the `others` for it, which are in the prompt as well."""
    level: Level = "gate" if size == "able" else "note"
    found = needle.lower() in _relevant_text(answer).lower()
    tokens = f"{answer.prompt_tokens:,}" if answer.prompt_tokens else "an unknown number of"
    observed = f"in {tokens} tokens: {_excerpt(answer)}"
    if not found and find_faults(answer.full_text, was_cut=answer.was_cut):
        return CheckResult("long prompt", False, f"garbage after a long prompt, {observed}")
    if not found and size != "able" and any(other in _relevant_text(answer).lower() for other in others):
        return CheckResult("long prompt", True, f"{observed}, which is there too; asked was {needle}", level)
    said = "" if found else f", where it says {needle}"
    return CheckResult("long prompt", found, observed + said, level)


def request_settings(answer: Answer, settings: Mapping[str, object]) -> CheckResult:
    """The server accepts the recipe's own request settings, and the answer is text."""
    name, shown = "recipe's settings", json.dumps(settings, ensure_ascii=False)
    if faults := find_faults(answer.full_text, is_prose=True, was_cut=answer.was_cut):
        return CheckResult(name, False, f"with {shown}, {faults[0].kind}: {faults[0].observed}")
    return CheckResult(name, True, shown)


# --- a prompt that comes again ---

# Two requests at once, a prompt that is in the cache, a drafter that is used for some requests and not for
# others: every start asks for the same texts several times. Answers may differ a little on a sound engine
# too: a batch or a cached prompt is computed by other kernels, and close choices change. So 20 equal
# characters (MIN_FIRST_CHARS) are enough: seen 2026-11-18 in llama.cpp on a CPU, a text that was cached in
# part differed after 33. A question whose answer differs is asked once more, and what differs twice only
# fails a start if it is empty, garbage, or what another prompt should have got. The rest is reported.
_MIN_FOREIGN_CHARS = 12
"""Answers to other prompts that begin with as many equal characters are the same answer."""
_PHRASE_CHARS = 24
"""Four or five words: two short answers share as many only if one has them from the other."""
_LONG_CHARS, _LONG_PHRASE_CHARS = 400, 80
"""Long answers share "a complex and intricate process", too (SmolLM2 about ships and about bread)."""
_MIN_INSERTED_CHARS, _MAX_INSERTED_CHARS = 12, 80
_MIN_REJOINED_CHARS = 16
_MIN_BEFORE_WORD, _MAX_WORD_CHARS = 4, 12
"""Seen 2026-11-19: SmolLM2 on llama.cpp says "12*17 = 220 This is a multi-digit ..." alone, 216 in a
batch."""


class Difference(Value):
    """How a later answer differs from all earlier ones to its prompt."""

    observed: str
    is_broken: bool = False
    """It is empty, garbage, or the answer to another prompt: no choice of words makes that."""
    is_late: bool = False
    """It began as the others did and is about the same, or has another word: sound engines do that."""


def difference(
    earlier: Sequence[Answer],
    again: Answer,
    others: Mapping[str, Sequence[Answer]],
    prompt: str = "",
) -> Difference | None:
    """`others`: the answers to other prompts, by prompt. None: it is like one of the earlier ones."""
    text = again.full_text.strip().rstrip("\ufffd")
    firsts = [answer.full_text.strip() for answer in earlier]
    if not text:
        # A few tokens of a model that thinks may all be marks that make no text.
        is_short = again.was_cut and any(answer.reasoning for answer in earlier)
        return (
            None
            if is_short or not any(firsts)
            else Difference("nothing, where there was an answer before", True)
        )
    for prompt, answers in others.items():
        if _is_foreign(text, firsts, [answer.full_text.strip() for answer in answers]):
            return Difference(f"{quote(text)}, as to {quote(prompt)}", True)
    if fault := _new_fault(text, firsts, again.was_cut):
        return Difference(f"{fault}: {quote(text)}", True)
    if inserted := next(filter(None, (_inserted(text, first) for first in firsts)), None):
        return Difference(f"{quote(inserted)} stands in the middle of the answer of before")
    shared = max(common_prefix_chars(text, first) for first in firsts)
    if shared >= min(MIN_FIRST_CHARS, len(text), min(map(len, firsts))):
        if shared >= min(len(text), min(map(len, firsts))):
            return None
        strays = all(strays_from(text, first, prompt) for first in firsts)
        return Difference(f"{quote(text[shared:])} after {shared} equal characters", is_late=not strays)
    is_close = any(_has_another_word(text, first) for first in firsts)
    return Difference(f"{quote(text)}, before {quote(firsts[0])}", is_late=is_close)


def _is_foreign(text: str, firsts: Sequence[str], others: Sequence[str]) -> bool:
    own = max(common_prefix_chars(text, first) for first in firsts)
    for other in others:
        if (shared := common_prefix_chars(text, other)) >= _MIN_FOREIGN_CHARS and shared > own:
            return True
        size = _PHRASE_CHARS if len(text) < _LONG_CHARS else _LONG_PHRASE_CHARS
        phrases = (text[at : at + size] for at in range(len(text) - size + 1))
        if any(phrase in other and not any(phrase in first for first in firsts) for phrase in phrases):
            return True
    return False


def _new_fault(text: str, firsts: Sequence[str], was_cut: bool) -> str | None:
    """Garbage, unless an earlier answer looks like that in as many characters."""
    shapes = set(text.replace(" ", ""))
    if len(text) >= 8 and len(shapes) <= 2 and not any(len(set(first[: len(text)])) <= 4 for first in firsts):
        return "one character again and again"
    faults = find_faults(text, is_prose=True, was_cut=was_cut)
    before = {
        fault.kind
        for first in firsts
        for fault in find_faults(first[: len(text)], is_prose=True, was_cut=True)
    }
    return next((fault.kind for fault in faults if fault.kind not in before), None)


def _has_another_word(text: str, first: str) -> bool:
    """Whether one word or number of a text is another, and all after it is the same: a close choice."""
    start = common_prefix_chars(text, first)
    rests = {first[start + size :][:_MIN_REJOINED_CHARS] for size in range(1, _MAX_WORD_CHARS + 1)}
    found = (text[start + size :][:_MIN_REJOINED_CHARS] for size in range(1, _MAX_WORD_CHARS + 1))
    return start >= _MIN_BEFORE_WORD and any(
        rest in rests for rest in found if len(rest) == _MIN_REJOINED_CHARS
    )


def _inserted(text: str, first: str) -> str | None:
    """Words within the text after which it continues as the first one did: a closer choice would change what
    follows, or stand in the place of other words."""
    start = common_prefix_chars(text, first)
    for size in range(_MIN_INSERTED_CHARS, _MAX_INSERTED_CHARS + 1):
        rest = text[start + size :]
        if len(rest) < _MIN_REJOINED_CHARS:
            return None
        if first.startswith(rest[: max(_MIN_REJOINED_CHARS, len(first) - start)], start):
            return text[start : start + size].strip()
    return None


def differences(
    answers: Sequence[tuple[str, Answer]], firsts: Mapping[str, Sequence[Answer]]
) -> dict[int, Difference]:
    """Of several answers with their prompts, by position. `firsts`: the earlier answers to each prompt."""
    found = {}
    for index, (prompt, answer) in enumerate(answers):
        others = {other: firsts[other] for other in firsts.keys() - {prompt}}
        if differs := difference(firsts[prompt], answer, others, prompt):
            found[index] = differs
    for index, differs in found.items():
        if same := _answer_of_another(index, found, answers, firsts):
            found[index] = replace(differs, observed=same, is_broken=True, is_late=False)
    return found


def _answer_of_another(
    index: int,
    found: Mapping[int, Difference],
    answers: Sequence[tuple[str, Answer]],
    firsts: Mapping[str, Sequence[Answer]],
) -> str | None:
    """Two questions have got one answer, which neither had before."""
    prompt, text = answers[index][0], answers[index][1].full_text.strip()
    own = max(common_prefix_chars(text, first.full_text.strip()) for first in firsts[prompt])
    for other in found:
        asked, said = answers[other][0], answers[other][1].full_text.strip()
        if asked != prompt and common_prefix_chars(text, said) >= max(MIN_FIRST_CHARS, own + 1):
            return f"{quote(text)}, as to {quote(asked)}"
    return None


def same_again(
    name: str, prompts: Sequence[str], found: Mapping[int, Difference], once_more: Mapping[int, Difference]
) -> CheckResult:
    """What two tries found: `once_more` are the differences when the same was asked again."""
    lasting = [index for index in found if index in once_more]
    if not lasting:
        observed = next(iter(found.values())).observed
        return CheckResult(name, True, f"differed once, and not again: {observed}", "note")
    broken = [index for index in lasting if found[index].is_broken and once_more[index].is_broken]
    index = (broken or lasting)[0]
    level: Level = "gate" if broken else "note"
    return CheckResult(name, False, f"{prompts[index]} got, twice: {once_more[index].observed}", level)


def written_tokens(text: str, tokens: Sequence[TokenLogprob]) -> set[int]:
    """How many of the tokens make the text. Several counts if some of them are space alone; none if it was
    written with others."""
    counts, written = set(), b""
    for count, token in enumerate(tokens, 1):
        written += token.text
        if written.decode("utf-8", "ignore").strip() == text.strip():
            counts.add(count)
    return counts
