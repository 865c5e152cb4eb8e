"""What engines, releases and proxies have got wrong: 66 numbered cases, each in the forms that it was seen in.

Written from reports, before the checks that should name them. `cost` is where a case can be seen: `start` in
answers that every start asks for, `verify` in up to eight requests more, `deep` in a deep run.
"""

# ruff: noqa: E501 - the list is a table, one entry a line
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tests.run.adversary.change import (
    Call,
    Change,
    Json,
    Wire,
    choices,
    content,
    each,
    field_of,
    finish,
    parts,
    text,
    tool_calls,
)

Mode = Literal["start", "verify", "deep"]
MODES: tuple[Mode, ...] = ("start", "verify", "deep")
Turn = Callable[[Call], Change]

VOLCANO = (
    "Lava comes out of a crack in the ground when hot rock below is pushed up. Ash falls on the villages "
    "around, and the farmers leave with their goats before the slope begins to glow at night."
)
GARBAGE = "ensis akes umni rok tlesh gsres ucks vortl plimb quasn dro ikth "


@dataclass(frozen=True, slots=True)
class Case:
    number: int
    group: str
    what: str
    cost: Mode
    forms: tuple[Change, ...]
    """All of them must be named."""
    reasoning: bool = False
    task: Literal["chat", "embeddings"] = "chat"


# --- means ---


def _depending(turn: Turn, gathers: bool = False) -> Change:
    """A change that is chosen for each request."""
    return Change(
        ask=lambda request, call: turn(call).ask(request, call),
        plain=lambda body, call: turn(call).plain(body, call),
        chunks=lambda chunks, call: turn(call).chunks(chunks, call),
        gathers=gathers,
    )


def _when(test: Callable[[Call], bool], change: Change, gathers: bool = False) -> Change:
    return _depending(lambda call: change if test(call) else Change(), gathers)


def _like(answer: str, other: str) -> str:
    """The other text in the length of the answer."""
    return (other * (len(answer) // len(other) + 1))[: max(8, len(answer))].strip()


_garbled = text(lambda answer: _like(answer, GARBAGE))
_shouted = text(lambda answer: "!" * max(4, len(answer) // 3))
_empty = text(lambda _: "")
_elsewhere = text(lambda answer: _like(answer, VOLCANO))


def at_once(least: int, change: Change) -> Change:
    return _when(lambda call: len(call.others) >= least, change, gathers=True)


def _middle(answer: str, words: str) -> str:
    spaces = [at.start() for at in re.finditer(" ", answer)]
    at = spaces[len(spaces) // 2] if spaces else len(answer)
    return f"{answer[:at]} {words.strip()}{answer[at:]}"


def _some_words(answer: str) -> str:
    words = answer.split()
    return " ".join(words[2:9] if len(words) > 9 else words)


def _after_sentences(answer: str) -> str:
    first = re.match(r"(?:.*?[.!?]\s+){2}", answer, re.DOTALL)
    return first[0] + _like(answer[first.end() :], VOLCANO) if first and first.end() < len(answer) else answer


def _used(call: Call) -> bool:
    return call.before > 0


def _tokens(limit: Callable[[int], int]) -> Change:
    """Another limit than was asked for."""

    def ask(request: Json, _: Call) -> Json:
        names = [name for name in ("max_tokens", "max_completion_tokens") if request.get(name)]
        return request | {name: max(1, limit(request[name])) for name in names}

    return Change(ask=ask)


def _counted(**edits: Callable[[int], int]) -> Change:
    def edit(usage: Json) -> Json:
        new = usage | {name: edits[name](usage[name]) for name in edits}
        return new | {"total_tokens": new["prompt_tokens"] + new["completion_tokens"]}

    return field_of("usage", edit)


def _both(one: Change, other: Change) -> Change:
    return Change(
        ask=lambda request, call: other.ask(one.ask(request, call), call),
        plain=lambda body, call: other.plain(one.plain(body, call), call),
        chunks=lambda chunks, call: other.chunks(one.chunks(chunks, call), call),
    )


def _only_streams(change: Change) -> Change:
    return Change(chunks=change.chunks)


def _only_plain(change: Change) -> Change:
    return Change(plain=change.plain)


def _after_tokens(count: int) -> Change:
    """Garbage from that many tokens on: of words, which are tokens here or a little more."""

    def edit(answer: str) -> str:
        words = re.findall(r"\s*\S+", answer)
        keep = round(count / 1.3)
        return "".join(words[:keep]) + (" " + _like("".join(words[keep:]), GARBAGE) if words[keep:] else "")

    return text(edit)


def _stop_of(call: Call) -> str:
    stop: Any = call.request.get("stop")
    return stop[0] if isinstance(stop, list) and stop else stop or ""


def _at_stop(edit: Callable[[str, str], str]) -> Change:
    """An answer that a stop string ended; `edit` gets both."""
    return _depending(
        lambda call: text(lambda answer: edit(answer, _stop_of(call))) if _stop_of(call) else Change()
    )


def _ends(reason: str | None, where: Callable[[Call, str], bool]) -> Change:
    """The finish reason in its place."""
    return _depending(lambda call: finish(lambda old: reason if where(call, old) else old))


def _scores(edit: Callable[[list[Json]], None]) -> Change:
    def apply(choice: Json) -> None:
        if rows := (choice.get("logprobs") or {}).get("content"):
            edit(rows)

    return choices(apply)


def _shifted(rows: list[Json]) -> None:
    moved = [dict(row) for row in rows]
    for row, before in zip(rows[1:], moved, strict=False):
        row.update(before)


def _all_scores(value: float) -> Change:
    def edit(rows: list[Json]) -> None:
        for row in rows:
            row["logprob"] = value
            for top in row.get("top_logprobs") or ():
                top["logprob"] = value

    return _scores(edit)


def _above(rows: list[Json]) -> None:
    for row in rows:
        for top in row.get("top_logprobs") or ():
            top["logprob"] = row["logprob"] - 1.5


def _another_best(rows: list[Json]) -> None:
    for row in rows:
        for top in row.get("top_logprobs") or ():
            top.update(token=" quince", bytes=list(b" quince"))


def _words(request: Json) -> int:
    return sum(len(str(message.get("content")).split()) for message in request.get("messages", ()))


def _cut_prompt(keep: Callable[[list[str]], list[str]], least: int) -> Change:
    """Only a part of a long prompt is read, and all of it is counted."""
    lost: dict[int, int] = {}

    def ask(request: Json, call: Call) -> Json:
        last = request["messages"][-1]
        words = re.findall(r"\s*\S+", str(last.get("content")))
        if len(words) <= least:
            return request
        kept = keep(words)
        lost[call.number] = round(1.25 * (len(words) - len(kept)))
        return request | {"messages": [*request["messages"][:-1], last | {"content": "".join(kept)}]}

    def count(answer: Json, call: Call) -> None:
        if (usage := answer.get("usage")) and call.number in lost:
            usage["prompt_tokens"] += lost[call.number]
            usage["total_tokens"] += lost[call.number]

    def plain(body: Json, call: Call) -> Json:
        count(body, call)
        return body

    def chunks(found: list[Json], call: Call) -> list[Json]:
        for chunk in found:
            count(chunk, call)
        return found

    return Change(ask=ask, plain=plain, chunks=chunks)


def _refuses(call: Call) -> int:
    return 400 if _words(call.request) > 1200 else 200


def _silently_cut(request: Json, _: Call) -> Json:
    last = request["messages"][-1]
    words = re.findall(r"\s*\S+", str(last.get("content")))
    if len(words) <= 1200:
        return request
    return request | {"messages": [*request["messages"][:-1], last | {"content": "".join(words[-1200:])}]}


def _hot(request: Json, call: Call) -> Json:
    return (
        request | {"temperature": 1.4, "seed": call.number * 7919}
        if request.get("temperature") == 0
        else request
    )


def _cold_if_long(request: Json, _: Call) -> Json:
    return request | {"temperature": 0} if _words(request) > 300 else request


def _other_seed(request: Json, call: Call) -> Json:
    return request | {"seed": 1000 + call.number} if request.get("temperature", 1) > 0 else request


def _json_answer(edit: Callable[[str], str]) -> Change:
    return _when(lambda call: bool(call.request.get("response_format")), text(edit))


def _arguments(edit: Callable[[str], str]) -> Change:
    """Of whole calls, and of streamed ones as a whole: the first piece gets all."""

    def plain(body: Json, _: Call) -> Json:
        for message in parts(body):
            for call in message.get("tool_calls") or ():
                call["function"]["arguments"] = edit(call["function"]["arguments"])
        return body

    def chunks(found: list[Json], _: Call) -> list[Json]:
        pieces = [
            call["function"]
            for chunk in found
            for delta in parts(chunk)
            for call in delta.get("tool_calls") or ()
        ]
        if pieces:
            whole = edit("".join(piece.get("arguments", "") for piece in pieces))
            for piece in pieces:
                piece["arguments"] = ""
            pieces[-1]["arguments"] = whole
        return found

    return Change(plain=plain, chunks=chunks)


def _prefixed(call: Json) -> None:
    if call.get("function", {}).get("name"):
        call["function"]["name"] = f"default_api.{call['function']['name']}"


def _twice(answer: Json) -> None:
    for part in parts(answer):
        if calls := part.get("tool_calls"):
            again = [dict(call) | {"index": call.get("index", 0) + 1} for call in calls]
            part["tool_calls"] = [*calls, *again]


def _no_id(call: Json) -> None:
    call.pop("id", None)


def _no_tools(request: Json, _: Call) -> Json:
    return {key: value for key, value in request.items() if key not in ("tools", "tool_choice")}


def _has_result(call: Call) -> bool:
    return any(message["role"] == "tool" for message in call.request.get("messages", ()))


def _thoughts(keep: bool) -> Change:
    def edit(answer: Json) -> None:
        for part in parts(answer):
            thought = part.get("reasoning_content")
            if thought:
                part["content"] = thought + (part.get("content") or "")
                if not keep:
                    del part["reasoning_content"]

    return each(edit)


def _answers_system(request: Json, _: Call) -> Json:
    messages = request["messages"]
    if not any(message["role"] == "system" for message in messages):
        return request
    return request | {"messages": [m | {"role": "user"} for m in messages if m["role"] == "system"]}


def _system_as_user(request: Json, _: Call) -> Json:
    """It is the last thing that the user said."""
    messages = request["messages"]
    system = [m | {"role": "user"} for m in messages if m["role"] == "system"]
    return request | {"messages": [*(m for m in messages if m["role"] != "system"), *system[:1]]}


def _not_ascii(pattern: str, each_byte: bool) -> Change:
    def chunks(found: list[Json], _: Call) -> list[Json]:
        for delta in content(found):
            delta["content"] = re.sub(
                pattern, lambda one: "\ufffd" * (len(one[0].encode()) if each_byte else 2), delta["content"]
            )
        return found

    return Change(chunks=chunks)


def _replaced(answer: str) -> str:
    words = answer.split(" ")
    return " ".join(f"{word}\ufffd" if at % 7 == 4 else word for at, word in enumerate(words))


def _grown(vectors: list[list[float]], texts: list[str]) -> list[list[float]]:
    return [[x * (1 + len(one) / 80) for x in vector] for vector, one in zip(vectors, texts, strict=True)]


def _one_less(vectors: list[list[float]], _: list[str]) -> list[list[float]]:
    return [vector[:-1] for vector in vectors]


def _half(vectors: list[list[float]], _: list[str]) -> list[list[float]]:
    return [vector[: len(vector) // 2] for vector in vectors]


def _steps(vectors: list[list[float]], _: list[str]) -> list[list[float]]:
    """Eight steps between the smallest and the largest number."""
    found = []
    for vector in vectors:
        low, size = min(vector), (max(vector) - min(vector)) / 7
        found.append([low + size * round((x - low) / size) for x in vector])
    return found


def _late(call: Call) -> bool:
    return call.number > 6


def _same_question(call: Call) -> bool:
    return "2+2" in str(call.request["messages"][-1].get("content")) and len(call.request["messages"]) == 1


def _case(
    number: int, group: str, what: str, cost: Mode, *forms: Change, reasoning: bool = False,
    task: Literal["chat", "embeddings"] = "chat",
) -> Case:  # fmt: skip
    return Case(number, group, what, cost, forms, reasoning, task)


CASES: tuple[Case, ...] = (
    _case(1, "several at once", "garbage whenever two requests run together", "start", at_once(1, _garbled)),
    _case(2, "several at once", "`!!!!` whenever two run together", "start", at_once(1, _shouted)),
    _case(3, "several at once", "nothing whenever two run together", "start", at_once(1, _empty)),
    _case(4, "several at once", "garbage, `!!!!` or nothing from four at once on", "verify", at_once(3, _garbled), at_once(3, _shouted), at_once(3, _empty)),
    _case(5, "several at once", "a few words of the other answer in the middle", "start", _depending(lambda call: text(lambda answer: _middle(answer, _some_words(call.others[0]))) if call.others else Change(), gathers=True)),
    _case(6, "several at once", "a phrase of a third user's answer in the middle", "start", at_once(1, text(lambda answer: _middle(answer, "with two goats before the night")))),
    _case(7, "second use", "the second use of a prompt answers something else", "start", _when(_used, _elsewhere)),
    _case(8, "second use", "the second use answers something else after two sentences", "start", _when(_used, text(_after_sentences))),
    _case(9, "second use", "after a dozen requests every answer is in the voice of an adapter", "start", _when(lambda call: call.number > 12, text(lambda answer: f"Hearken, good people: {answer}"))),
    _case(10, "second use", "one question alone changes after six requests", "verify", _when(lambda call: _late(call) and _same_question(call), text(lambda _: "That depends on whom you ask, and on the day."))),
    _case(11, "drafting", "plain answers differ from those asked with log probabilities", "start", _when(lambda call: not call.request.get("logprobs") and not call.request.get("stream"), text(lambda answer: f"Here {answer[0].lower()}{answer[1:]}" if answer else answer))),
    _case(12, "length", "one token more than `max_tokens`", "start", _tokens(lambda n: n + 1)),
    _case(13, "length", "one token less than `max_tokens`", "start", _tokens(lambda n: n - 1)),
    _case(14, "length", "one token more, hidden in the count", "start", _both(_tokens(lambda n: n + 1), _counted(completion_tokens=lambda n: n - 1))),
    _case(15, "length", "garbage after 60 tokens", "start", _after_tokens(60)),
    _case(16, "length", "garbage after 150 tokens", "deep", _after_tokens(150)),
    _case(17, "stop strings", "leaked", "start", _at_stop(lambda answer, stop: answer + stop)),
    _case(18, "stop strings", "half of it leaked", "start", _at_stop(lambda answer, stop: answer + stop[: len(stop) // 2])),
    _case(19, "stop strings", "cut 25 characters too early", "start", _at_stop(lambda answer, _: answer[:-25])),
    _case(20, "stop strings", "leaked in streams only", "start", _only_streams(_at_stop(lambda answer, stop: answer + stop))),
    _case(21, "stop strings", "finish reason `length`", "start", _ends("length", lambda call, old: bool(_stop_of(call)) and old == "stop")),
    _case(22, "finish reasons", "null", "start", _ends(None, lambda _, __: True)),
    _case(23, "finish reasons", "`stop` at the limit, in plain answers", "start", _only_plain(_ends("stop", lambda _, old: old == "length"))),
    _case(24, "finish reasons", "`stop` at the limit, in streams", "start", _only_streams(_ends("stop", lambda _, old: old == "length"))),
    _case(25, "finish reasons", "`stop` for a tool call", "verify", _ends("stop", lambda _, old: old == "tool_calls")),
    _case(26, "usage", "one too many", "start", _counted(completion_tokens=lambda n: n + 1)),
    _case(27, "usage", "eight too many", "start", _counted(completion_tokens=lambda n: n + 8)),
    _case(28, "usage", "twelve too many", "start", _counted(completion_tokens=lambda n: n + 12)),
    _case(29, "usage", "always 1 in streams", "start", _only_streams(_counted(completion_tokens=lambda _: 1))),
    _case(30, "usage", "1,000 too many in every prompt", "start", _counted(prompt_tokens=lambda n: n + 1000)),
    _case(31, "usage", "a cached prompt counts as 1", "start", _when(_used, _counted(prompt_tokens=lambda _: 1))),
    _case(32, "log probabilities", "shifted by one", "start", _scores(_shifted)),
    _case(33, "log probabilities", "all zero", "start", _all_scores(0.0)),
    _case(34, "log probabilities", "all -9999", "start", _all_scores(-9999.0)),
    _case(35, "log probabilities", "the chosen token above the best", "start", _scores(_above)),
    _case(36, "log probabilities", "the best token is another than the chosen", "start", _scores(_another_best)),
    _case(37, "context", "refuses half of the stated length", "start", Change(status=_refuses)),
    _case(38, "context", "cuts it silently", "start", Change(ask=_silently_cut)),
    _case(39, "context", "reads only the last 500 or 3,000 words", "start", _cut_prompt(lambda words: words[-500:], 500), _cut_prompt(lambda words: words[-3000:], 3000)),
    _case(40, "sampling", "temperature 0 ignored", "start", Change(ask=_hot)),
    _case(41, "sampling", "temperature ignored for long prompts", "verify", Change(ask=_cold_if_long)),
    _case(42, "sampling", "seed ignored", "verify", Change(ask=_other_seed)),
    _case(43, "JSON", "the schema is ignored", "verify", Change(ask=lambda request, _: {k: v for k, v in request.items() if k != "response_format"})),
    _case(44, "JSON", "`enum` is ignored", "verify", _json_answer(lambda _: '{"text": "whatever comes to mind"}')),
    _case(45, "JSON", "text after the JSON", "verify", _json_answer(lambda answer: f"{answer}\n\nI hope this helps!")),
    _case(46, "tools", "arguments truncated", "verify", _arguments(lambda a: a[: len(a) - 3])),
    _case(47, "tools", "arguments truncated in streams only", "verify", _only_streams(_arguments(lambda a: a[: len(a) - 3]))),
    _case(48, "tools", "arguments escaped twice", "verify", _arguments(lambda a: '"' + a.replace('"', '\\"') + '"')),
    _case(49, "tools", "the name has a prefix", "verify", tool_calls(_prefixed)),
    _case(50, "tools", "each call comes twice", "verify", each(_twice)),
    _case(51, "tools", "no id", "verify", tool_calls(_no_id)),
    _case(52, "tools", "ignored", "verify", Change(ask=_no_tools)),
    _case(53, "tools", "tool results refused with 500", "verify", Change(status=lambda call: 500 if _has_result(call) else 200)),
    _case(54, "thoughts", "in the answer", "start", _thoughts(keep=False), reasoning=True),
    _case(55, "thoughts", "in both fields", "start", _thoughts(keep=True), reasoning=True),
    _case(56, "thoughts", "\"Let me think\" before each answer", "verify", text(lambda answer: f"Let me think. {answer}")),
    _case(57, "system", "the system prompt is answered instead of obeyed", "verify", Change(ask=_answers_system), Change(ask=_system_as_user)),
    _case(58, "text", "replacement characters", "start", text(_replaced)),
    _case(59, "text", "UTF-8 cut in streams", "verify", _not_ascii(r"[^\x00-\x7f]", each_byte=True)),
    _case(60, "text", "emoji broken in streams", "verify", _not_ascii(r"[\U00010000-\U0010ffff]", each_byte=False)),
    _case(61, "streams", "no `[DONE]`", "start", Change(wire=Wire(done=None))),
    _case(62, "streams", "no `[DONE]` after tool calls", "verify", Change(wire_of=lambda call: Wire(done=None) if call.request.get("tools") else Wire())),
    _case(63, "model", "another model's name in answers", "start", field_of("model", lambda _: "other-70b-instruct")),
    _case(64, "embeddings", "norms that grow with the text", "start", Change(vectors=_grown), task="embeddings"),
    _case(65, "embeddings", "a dimension cut", "start", Change(vectors=_one_less), Change(vectors=_half), task="embeddings"),
    _case(66, "embeddings", "values in eight steps", "start", Change(vectors=_steps), task="embeddings"),
)  # fmt: skip

# --- harmless, to be left alone ---


def _with_bytes(chunks: list[Json], _: Call) -> list[Json]:
    for chunk in chunks:
        for delta in parts(chunk):
            if delta.get("content"):
                delta["bytes"] = list(delta["content"].encode())
    return chunks


def _details(usage: Json) -> Json:
    details = {"cached_tokens": 0, "audio_tokens": 0}
    return usage | {"prompt_tokens_details": details, "completion_tokens_details": {"reasoning_tokens": 0}}


def _last_with_reason(chunks: list[Json], _: Call) -> list[Json]:
    speaking = [chunk for chunk in chunks if content([chunk])]
    ending = [c for c in chunks if c.get("choices") and c["choices"][0].get("finish_reason")]
    if speaking and ending and ending[0] is not speaking[-1]:
        speaking[-1]["choices"][0]["finish_reason"] = ending[0]["choices"][0]["finish_reason"]
        return [chunk for chunk in chunks if chunk is not ending[0]]
    return chunks


def _usage_everywhere(chunks: list[Json], _: Call) -> list[Json]:
    if chunks and (final := chunks[-1].get("usage")):
        said = 0
        for chunk in chunks[:-1]:
            said += len(content([chunk]))
            chunk["usage"] = final | {
                "completion_tokens": said,
                "total_tokens": final["prompt_tokens"] + said,
            }
    return chunks


def _with_reasoning(answer: Json) -> None:
    for part in parts(answer):
        if "content" in part:
            part["reasoning"] = ""


def _no_system(call: Call) -> int:
    return 400 if any(m["role"] == "system" for m in call.request.get("messages", ())) else 200


_KNOWN = frozenset(
    (
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "stream",
        "stream_options",
        "stop",
        "tools",
        "tool_choice",
        "response_format",
        "logprobs",
        "top_logprobs",
    )
)


def _unknown(call: Call) -> int:
    return 400 if set(call.request) - _KNOWN else 200


def _one_limit(call: Call) -> int:
    return 400 if "max_tokens" in call.request else 200


def _ignores_limit(request: Json, _: Call) -> Json:
    return {key: value for key, value in request.items() if key != "max_tokens"}


def _before_call(answer: Json) -> None:
    for part in parts(answer):
        if part.get("tool_calls") and part["tool_calls"][0].get("function", {}).get("name"):
            part["content"] = "I will look that up for you."


HARMLESS: dict[str, Change] = {
    "a model alias with a date": _depending(lambda call: field_of("model", lambda name: f"{name}-2026-05-01")),
    "a byte-order mark": Change(wire=Wire(first="\ufeff")),
    "bytes per piece": Change(chunks=_with_bytes),
    "token details": field_of("usage", _details),
    "`error: null`": each(lambda answer: answer.update(error=None)),
    "gzip": Change(wire=Wire(gzip=True)),
    "spaces in JSON": Change(wire=Wire(encode=lambda one: one.replace('": ', '" :  ').encode() if one.startswith(("{", "data")) else one.encode())),
    "keep-alive comments": Change(wire=Wire(before=": keep-alive\n\n")),
    "the last content with the finish reason": Change(chunks=_last_with_reason),
    "no blank after `data:`": Change(wire=Wire(prefix="data:")),
    "system role refused with a clear error": Change(status=_no_system),
    "escaped instead of raw UTF-8": Change(wire=Wire(is_ascii=True)),
    "a reasoning field": each(_with_reasoning),
    "unknown parameters refused with a clear error": Change(status=_unknown),
    "a sentence before a tool call": each(_before_call),
    "trailing blanks": text(lambda answer: f"{answer}  \n"),
    "usage in every event": Change(chunks=_usage_everywhere),
    "`max_completion_tokens` only, the other refused": Change(status=_one_limit),
    "`max_completion_tokens` only, the other ignored": Change(ask=_ignores_limit),
    "carriage returns": Change(wire=Wire(newline="\r")),
    "events over several `data:` lines": Change(wire=Wire(is_split=True)),
}  # fmt: skip
"""What servers do that is unusual and harms nobody. Raw UTF-8 and tool arguments in pieces are what an
unchanged server sends."""
SPEAKERS: dict[str, Json] = {
    "emoji in answers": {"style": "emoji"},
    "Markdown in answers": {"style": "markdown"},
    "short answers": {"style": "short"},
    "a very sure model": {"is_sure": True},
    "answers in German": {"language": "de"},
    "answers in French": {"language": "fr"},
    "answers in Spanish": {"language": "es"},
    "answers in Russian": {"language": "ru"},
    "answers in Chinese": {"language": "zh"},
}
"""What models do that is as harmless: how to make a `Speaker` that does."""
