"""Checks of the API itself: is what arrives what the model wrote, and was everything read that was sent?

Pure, like `checks`. None of them depends on what a model knows: token counts, log probabilities, answers
under a schema and the form of a response are right or wrong for a model of any size.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence

from firesteel.edge.http.answer import Answer, TokenLogprob
from firesteel.run.verify import checks
from firesteel.run.verify.checks import CheckResult, Level, common_prefix_chars
from firesteel.run.verify.garbage import quote

_THINKING = re.compile(r"</?(?:think|thinking|thought|reasoning)>|<\|channel\|?>|\[/?THINK\]", re.IGNORECASE)
_MUSING = re.compile(
    r"\W*(?:(?:okay|ok|alright|hmm|so)\b\W*)?the user (?:asks|asked|wants|is asking|says)\b", re.I
)
"""Thoughts begin like this, answers do not."""
_SPECIAL = re.compile(r"(?:<[|\uff5c]?[^<>\s]{1,40}>|\s)*")
_MIN_SHARED_CHARS = 30
"""Answers to different questions do not begin with this many equal characters."""
_SPARE_TOKENS, _SPARE_SHARE = 6, 0.08
"""How far token counts of prompts may differ: tokenizers may split the ends of a text differently in a
conversation."""
_MAX_CHARS_PER_TOKEN = 8
"""English has four to five; more than this means that tokens are missing."""
_MAX_TEMPLATE_TOKENS = 800
"""Chat templates add less than this, even with a default system prompt of a page. Our choice."""
_TRAINING = frozenset(("base", "pt", "instruct", "it", "chat", "thinking", "reasoning", "draft"))
"""Parts of a name by which two models from the same weights are told apart."""
_LOGPROB_SLACK = 0.05
_MIN_CHANCE = 0.01
"""Of samples that are equal by chance."""
_MIN_SAME_ANSWER = 8
_MIN_OPENING_CHARS, _MIN_OPENINGS = 10, 4
"""Characters that all answers begin with, to as many questions."""
_NEVER = -1000.0
"""Engines write such a log probability for a token that was excluded."""


def protocol(answers: Sequence[tuple[Answer, int]], names: Collection[str], level: Level) -> CheckResult:
    """The form of all responses, each with its `max_tokens`. `names`: what the model may be called."""
    problems: dict[str, Level] = {}
    for answer, max_tokens in answers:
        if answer.role not in (None, "assistant"):
            problems[f"an answer has the role {quote(answer.role or '')}"] = "gate"
        if answer.model and not any(is_same_model(answer.model, name) for name in names):
            problems[f"an answer is from the model {quote(answer.model)}, not {sorted(names)[0]}"] = level
        if not answer.has_done and answer.finish_reason:
            problems["a stream ends without [DONE], for which clients wait"] = "gate"
        count = answer.completion_tokens
        if answer.was_cut and count and not answer.reasoning and count < max_tokens - 2:
            ended = f"finish_reason {answer.finish_reason} after {count} of {max_tokens} tokens"
            problems[f"a complete answer looks cut: {ended}"] = "gate"
    if not problems:
        return CheckResult("protocol", True, f"{len(answers)} responses are well-formed")
    worst: Level = "gate" if "gate" in problems.values() else "note"
    return CheckResult("protocol", False, "; ".join(problems), worst)


def is_same_model(one: str, other: str) -> bool:
    """`org/Name`, `Name`, `/models/Name.gguf` and `Name-2026-05-01` are one model; `Name-Base` is another."""
    short, long = sorted((_stem(one), _stem(other)), key=len)
    if not short or not long.startswith(short):
        return False
    joined, *added = re.split(r"[-_.:@]", long.removeprefix(short))
    return not joined and _TRAINING.isdisjoint(added)


def _stem(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower().removesuffix(".gguf")


def thoughts_apart(answers: Mapping[str, Answer]) -> CheckResult:
    """No answer contains thoughts: neither their marks, nor a text that is in the thoughts as well."""
    name = "no thoughts in the answer"
    for prompt, answer in answers.items():
        if mark := _THINKING.search(answer.text):
            return CheckResult(name, False, f"{prompt} {quote(mark[0])} is in the answer")
        thought = answer.reasoning.strip()
        if len(thought) >= _MIN_SHARED_CHARS and thought in answer.text:
            return CheckResult(name, False, f"{prompt} the answer repeats its thoughts: {quote(answer.text)}")
    musing = [prompt for prompt, answer in answers.items() if _MUSING.match(answer.text)]
    if len(musing) > 1:
        text = answers[musing[0]].text
        return CheckResult(name, False, f"{len(musing)} answers begin with thoughts: {quote(text)}")
    return CheckResult(name, True, f"{len(answers)} answers without")


def answers_differ(answers: Mapping[str, Answer]) -> CheckResult:
    """Different questions have different answers, whatever the model knows."""
    name = "answers its question"
    texts = {prompt: answer.text.strip() for prompt, answer in answers.items() if answer.text.strip()}
    for text in texts.values():
        start = text[:_MIN_SHARED_CHARS]
        same = [prompt for prompt, other in texts.items() if other.startswith(start)]
        if len(start) == _MIN_SHARED_CHARS and len(same) >= 3:
            observed = (
                f"{len(same)} questions, such as {quote(same[0])} and {quote(same[1])}, have one answer"
            )
            return CheckResult(name, False, f"{observed}: {quote(text)}")
    said = list(texts.values())
    opening = said[0][: min(common_prefix_chars(said[0], one) for one in said)] if said else ""
    if len(texts) >= _MIN_OPENINGS and len(opening.strip()) >= _MIN_OPENING_CHARS:
        return CheckResult(name, False, f"all {len(texts)} answers begin with {quote(opening)}", "note")
    return CheckResult(name, True, f"{len(texts)} questions, {len(set(texts.values()))} answers")


def counts(answers: Sequence[Answer]) -> CheckResult | None:
    """The three numbers of `usage` add up, and a plain answer has them; a stream need not."""
    for answer in answers:
        prompt, completion, total = answer.prompt_tokens, answer.completion_tokens, answer.total_tokens
        if not answer.is_stream and (prompt is None or completion is None):
            return CheckResult("usage", False, "a plain answer does not count its tokens (`usage`)")
        if prompt is None or completion is None or total is None:
            continue
        if total not in (prompt + completion, prompt + completion + (answer.reasoning_tokens or 0)):
            return CheckResult("usage", False, f"{prompt} + {completion} tokens are {total} in `usage`")
    return None


def prompt_growth(
    name: str, short: Answer, long: Answer, grown: int | None, level: Level = "gate", chars: int = 0
) -> CheckResult:
    """Two prompts under one template: the longer one has `grown` tokens more, by the engine's own tokenizer.
    Without a tokenizer, its `chars` further characters have at least as many tokens as English ever has."""
    if short.prompt_tokens is None or long.prompt_tokens is None:
        return CheckResult(name, True, "unknown: the engine does not count prompts", "note")
    found = long.prompt_tokens - short.prompt_tokens
    least, most = chars / _MAX_CHARS_PER_TOKEN, math.inf
    wanted = f"at least {least:.0f}"
    if grown is not None:
        spare = _SPARE_TOKENS + _SPARE_SHARE * grown
        least, most, wanted = grown - spare, grown + spare, str(grown)
    observed = f"{found} tokens more in the prompt, {wanted} were sent"
    if found < least:
        return CheckResult(name, False, f"a part of the prompt was not read: {observed}", level)
    if found > most:
        return CheckResult("usage", False, f"prompts are counted wrongly: {observed}", level)
    return CheckResult(name, True, observed)


def conversation(
    before: Answer, first: Answer, answer: Answer, counted: int | None, level: Level
) -> CheckResult:
    """`before` answers one question, `first` another; `answer` is to both, that of `before` second."""
    name = "conversation"
    again = common_prefix_chars(answer.text.strip(), first.text.strip())
    # What all answers begin with, such as thoughts, says nothing about this one.
    if again >= _MIN_SHARED_CHARS and again > common_prefix_chars(before.text.strip(), first.text.strip()):
        return CheckResult(name, False, f"the first question was answered again: {quote(answer.text)}")
    said = counted if counted is not None else None if first.reasoning else first.completion_tokens
    if said is None or before.prompt_tokens is None or answer.prompt_tokens is None:
        return CheckResult(name, True, "unknown: the engine does not count its tokens", "note")
    found = answer.prompt_tokens - before.prompt_tokens
    observed = f"{found} tokens more in the prompt after an answer of {said}"
    if found < 0.9 * said:
        return CheckResult(name, False, f"earlier turns were not read: {observed}", level)
    if found > 1.5 * said + 48:
        return CheckResult("usage", False, f"prompts are counted wrongly: {observed}", level)
    return CheckResult(name, True, observed)


def prompt_counts(answers: Mapping[str, Sequence[Answer]], level: Level) -> CheckResult | None:
    """A prompt that comes again has as many tokens as before, cached or not."""
    for prompt, several in answers.items():
        found = {answer.prompt_tokens for answer in several} - {None}
        if len(found) > 1:
            shown = " and ".join(map(str, sorted(filter(None, found))))
            observed = f"{quote(prompt)} was counted as {shown} tokens, for the same prompt"
            return CheckResult("usage", False, observed, level)
    return None


def prompt_overhead(answer: Answer, prompt: str, counted: int | None) -> CheckResult | None:
    """What a chat template adds to a prompt. A long default system prompt is added by some, so this is only
    noted. No tokenizer makes more tokens of a text than it has bytes."""
    most = counted if counted is not None else len(prompt.encode())
    if answer.prompt_tokens is None or answer.prompt_tokens - most <= _MAX_TEMPLATE_TOKENS:
        return None
    observed = f"{quote(prompt)} was counted as {answer.prompt_tokens} tokens"
    return CheckResult("usage", False, f"{observed}: a long default system prompt, or miscounted", "note")


def length(
    few: Answer, few_tokens: int, scored: Answer, tokens: int, firsts: Sequence[Answer]
) -> CheckResult | None:
    """Check that an answer ends exactly at `max_tokens`, counted with the tokens of `scored`.

    Both answers are to one prompt, and `firsts` are longer answers to it."""
    name = "max_tokens"
    if few.reasoning or scored.reasoning or not scored.logprobs:
        return None
    if scored.has_stopped and len(scored.logprobs) >= tokens and _goes_on(scored, firsts):
        return CheckResult(
            name, False, f"finish_reason {scored.finish_reason} at the limit of {tokens} tokens"
        )
    counts = checks.written_tokens(few.text.rstrip("\ufffd"), scored.logprobs)
    if not few.was_cut or not counts or few_tokens in counts:
        return None
    return CheckResult(
        name, False, f"{min(counts)} tokens where {few_tokens} were asked for: {quote(few.text)}"
    )


def _goes_on(answer: Answer, firsts: Sequence[Answer]) -> bool:
    text = answer.text.strip()
    return any(
        first.text.strip().startswith(text) and len(first.text.strip()) > len(text) for first in firsts
    )


def logprobs(answer: Answer, level: Level) -> CheckResult:
    """The tokens that came with the answer make its text, and are those that the model found most likely."""
    name, tokens = "logprobs", answer.logprobs
    if not answer.text.strip():
        return CheckResult(name, True, "thoughts only, and no text to compare", "note")
    if not tokens:
        return CheckResult(name, False, "asked for, and not there", level)
    written = b"".join(token.text for token in tokens).decode("utf-8", "replace")
    if not _makes(written.strip(), answer):
        observed = f"the tokens are {quote(written)}, the text is {quote(answer.text)}"
        return CheckResult(name, False, f"the text is not what was generated: {observed}")
    if bad := [token.logprob for token in tokens if not token.logprob <= _LOGPROB_SLACK]:
        return CheckResult(name, False, f"{bad[0]:.2f} is not a log probability")
    behind = [t for t in tokens if t.best_logprob is not None and t.logprob < t.best_logprob - _LOGPROB_SLACK]
    if len(behind) > len(tokens) / 10:
        return CheckResult(name, False, f"{len(behind)} of {len(tokens)} tokens are not the most likely ones")
    if problem := _impossible(tokens):
        return CheckResult(name, False, problem, level)
    return CheckResult(name, True, f"{len(tokens)} tokens make the text")


def _impossible(tokens: Sequence[TokenLogprob]) -> str | None:
    """The first reason why no model can have produced these log probabilities; None: they are possible."""
    values = {token.logprob for token in tokens}
    if len(tokens) > 4 and (values == {0.0} or max(values) <= _NEVER):
        return f"all {len(tokens)} tokens have the log probability {max(values):g}"
    scored = [token for token in tokens if token.top]
    above = [t for t in scored if t.best_logprob is not None and t.logprob > t.best_logprob + _LOGPROB_SLACK]
    if len(above) > len(tokens) / 10:
        return f"{len(above)} of {len(tokens)} tokens are likelier than the likeliest one in their place"
    other = [t for t in scored if max(t.top, key=lambda one: one[1])[0] != t.text]
    if len(other) > len(tokens) / 10:
        best, chosen = other[0].top[0][0], other[0].text
        likelier, written = (quote(token.decode(errors="replace")) for token in (best, chosen))
        return f"{len(other)} of {len(tokens)} tokens are not the likeliest: {written} instead of {likelier}"
    return None


def _makes(written: str, answer: Answer) -> bool:
    """Whether the tokens are the text, perhaps with thoughts before it or an end token after it."""
    text = answer.text.strip().rstrip("\ufffd")
    start = written.rfind(text) if answer.reasoning else 0
    rest = written[start + len(text) :]
    is_over = answer.was_cut and not answer.reasoning
    return written.startswith(text, max(0, start)) and (
        not rest.strip("\ufffd") if is_over else _SPECIAL.fullmatch(rest) is not None
    )


def exact_json(answer: Answer, wanted: Mapping[str, str], level: Level) -> CheckResult:
    """An answer under a schema that allows one text: it does not depend on what the model knows."""
    name, how = "JSON", "streamed " if answer.is_stream else ""
    if not answer.text.strip() and answer.reasoning:
        return CheckResult(name, True, "thoughts only, and no JSON to compare", "note")
    if answer.text.strip() and answer.was_cut and answer.reasoning:
        return CheckResult(name, True, "thoughts took the tokens of the JSON", "note")
    try:
        document = json.loads(answer.text)
    except (ValueError, RecursionError):
        return CheckResult(name, False, f"{how}no JSON, which was asked for: {quote(answer.text)}", level)
    if document == wanted:
        return CheckResult(name, True, f"exact, {how}{quote(answer.text)}")
    allowed = quote(json.dumps(wanted, ensure_ascii=False))
    observed = f"{how}{quote(answer.text)} where the schema allows only {allowed}"
    return CheckResult(name, False, observed, level)


def samples_differ(samples: Sequence[Answer], name: str = "samples differ") -> CheckResult:
    """Several samples at a high temperature. If all are equal, the last one comes with log probabilities:
    a model that is sure of every token says the same at any temperature."""
    texts = [sample.full_text.strip() for sample in samples]
    if not any(sample.text.strip() for sample in samples):
        return CheckResult(name, True, "thoughts only, and no text to compare", "note")
    if len(set(texts)) > 1:
        return CheckResult(name, True, f"{quote(texts[0], 30)}, {quote(texts[1], 30)}")
    observed = f"{len(texts)} samples at a high temperature are equal: {quote(texts[0])}"
    scored = samples[-1].logprobs
    if not scored:
        return CheckResult(name, False, f"{observed}; how sure the model is, is unknown", "note")
    chance = math.exp(min(0.0, sum(token.logprob for token in scored)))
    if chance ** (len(texts) - 1) > _MIN_CHANCE:
        return CheckResult(name, True, f"{observed}; the model is that sure ({chance:.0%})", "note")
    return CheckResult(name, False, observed)


def seed_kept(one: Answer, others: Sequence[Answer]) -> CheckResult | None:
    """Answers with one seed begin alike; what is computed in another batch may go on differently."""
    texts = [answer.full_text.strip() for answer in (one, *others)]
    shared = max(common_prefix_chars(texts[0], text) for text in texts[1:])
    if shared >= min(checks.MIN_FIRST_CHARS, *map(len, texts)) or not any(texts):
        return None
    shown = " and ".join(quote(text, 30) for text in texts[:2])
    return CheckResult("seed", False, f"the same seed gave {shown}", "note")


def system_obeyed(answer: Answer, as_user: Answer, plain: Answer) -> CheckResult | None:
    """`as_user`: the answer to the system prompt's text as a question, `plain` to the question alone."""
    texts = [one.full_text.strip() for one in (answer, as_user, plain)]
    shared = common_prefix_chars(texts[0], texts[1])
    own = max(common_prefix_chars(texts[0], texts[2]), common_prefix_chars(texts[1], texts[2]))
    if shared < min(_MIN_SHARED_CHARS, len(texts[1])) or shared <= max(own, _MIN_SAME_ANSWER):
        return None
    observed = f"the system prompt was answered, not the question: {quote(texts[0])}"
    return CheckResult("system prompt", False, observed, "note")


def adapter(name: str, base: Answer, adapted: Answer, again: Answer) -> CheckResult:
    """Check that an adapter changes its own answers only.

    `base` and `again` are answers of the model without the adapter, before and after `adapted`."""
    check = f"adapter {name}"
    if not checks.has_same_text(base, again):
        return CheckResult(
            check, False, f"it changes the base model: {quote(base.full_text)}, then {quote(again.full_text)}"
        )
    if not adapted.full_text.strip():
        return CheckResult(check, False, "an empty answer")
    if not checks.has_same_text(base, adapted):
        return CheckResult(
            check, True, f"{quote(adapted.full_text, 30)}, the base {quote(base.full_text, 30)}"
        )
    if not (base.logprobs and adapted.logprobs):
        return CheckResult(check, True, "unknown: the same text as the base model, without logprobs", "note")
    differs = [token.logprob for token in base.logprobs] != [token.logprob for token in adapted.logprobs]
    observed = (
        "the same text as the base model, with other probabilities" if differs else "not applied: the base"
    )
    return CheckResult(check, differs, observed)
