"""A prompt that comes again at temperature 0 gets the answer that it got before. Pure, like `checks`.

Engines go wrong in what one request alone never shows: two at once, a prompt that is in the cache, a drafter
that is used for some requests and not for others. Every start asks for the same texts several times, so each
later answer is compared with the first ones.

Answers may differ a little on a sound engine too: a batch or a cached prompt is computed by other kernels,
and close choices change. So 20 equal characters are enough, whoever differs is asked once more, and what
differs twice only fails a start if it is empty, garbage, or what another prompt should have got. The rest
is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firesteel.edge.http.answer import Answer, TokenLogprob
from firesteel.run.verify import checks
from firesteel.run.verify.checks import CheckResult, Level, common_prefix_chars
from firesteel.run.verify.garbage import find_faults, quote
from firesteel.values import Value

MIN_EQUAL_CHARS = checks.MIN_FIRST_CHARS
"""Seen 2026-11-18 in llama.cpp on a CPU: a text that was cached in part differed after 33 characters."""
_MIN_FOREIGN_CHARS = 12
"""Answers to other prompts that begin with as many equal characters are the same answer."""
_PHRASE_CHARS = 24
"""Four or five words: two answers share as many only if one has them from the other."""
_MIN_INSERTED_CHARS, _MAX_INSERTED_CHARS = 12, 80
_MIN_REJOINED_CHARS = 16


class Difference(Value):
    """How a later answer differs from all earlier ones to its prompt."""

    observed: str
    is_broken: bool
    """It is empty, garbage, or the answer to another prompt: no choice of words makes that."""


def difference(
    earlier: Sequence[Answer], again: Answer, others: Mapping[str, Sequence[Answer]]
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
        return Difference(f"{quote(inserted)} stands in the middle of the answer of before", False)
    shared = max(common_prefix_chars(text, first) for first in firsts)
    if shared >= min(MIN_EQUAL_CHARS, len(text), min(map(len, firsts))):
        return None
    return Difference(f"{quote(text)}, before {quote(firsts[0])}", False)


def _is_foreign(text: str, firsts: Sequence[str], others: Sequence[str]) -> bool:
    own = max(common_prefix_chars(text, first) for first in firsts)
    for other in others:
        if (shared := common_prefix_chars(text, other)) >= _MIN_FOREIGN_CHARS and shared > own:
            return True
        phrases = (text[at : at + _PHRASE_CHARS] for at in range(len(text) - _PHRASE_CHARS + 1))
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


def _inserted(text: str, first: str) -> str | None:
    """Words within the text after which it goes on as the first one did: a closer choice would change what
    follows."""
    start = common_prefix_chars(text, first)
    for size in range(_MIN_INSERTED_CHARS, _MAX_INSERTED_CHARS + 1):
        rest = text[start + size :]
        if len(rest) < _MIN_REJOINED_CHARS:
            return None
        if first.startswith(rest, start):
            return text[start : start + size].strip()
    return None


def differences(
    answers: Sequence[tuple[str, Answer]], firsts: Mapping[str, Sequence[Answer]]
) -> dict[int, Difference]:
    """Of several answers with their prompts, by position. `firsts`: the earlier answers to each prompt."""
    found = {}
    for index, (prompt, answer) in enumerate(answers):
        others = {other: firsts[other] for other in firsts.keys() - {prompt}}
        if differs := difference(firsts[prompt], answer, others):
            found[index] = differs
    return found


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
