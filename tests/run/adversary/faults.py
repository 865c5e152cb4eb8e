"""Faults: what a broken engine does, what its user suffers by it, and the kind of check that should name it."""

# ruff: noqa: E501 - the list is a table, one entry a line
from __future__ import annotations

import html
import random
import re
from collections.abc import Callable
from typing import Any

from tests.run.adversary.change import (
    Call,
    Change,
    Json,
    Modification,
    Wire,
    ask,
    choices,
    content,
    each,
    field_of,
    finish,
    on_content,
    parts,
    stream,
    text,
    tool_calls,
)
from tests.run.adversary.honest import REASONING

ELSEWHERE = "How do volcanoes erupt?"
_ERROR = {
    "error": {"message": "CUDA error: an illegal memory access was encountered", "type": "server_error"}
}


def _fault(name: str, what: str, gate: str, change: Change, needs: str = "") -> Modification:
    return Modification(name, what, gate, change, frozenset(needs.split()))


# Texts


def _words(edit: Callable[[list[str]], list[str]]) -> Callable[[str], str]:
    return lambda answer: " ".join(edit(answer.split(" ")))


def _shuffled(words: list[str]) -> list[str]:
    return random.Random(1).sample(words, len(words))


def _every(n: int, edit: Callable[[str], str]) -> Callable[[str], str]:
    return _words(lambda words: [edit(word) if i % n == n - 1 else word for i, word in enumerate(words)])


def _scrambled(answer: str) -> str:
    """Letters in disorder, as by a broken kernel; deterministic."""
    return "".join(random.Random(len(answer)).sample(answer, len(answer)))


def _after(n: int, edit: Callable[[str], str]) -> Callable[[str], str]:
    def apply(answer: str) -> str:
        words = answer.split(" ")
        return " ".join(words[:n] + ([edit(" ".join(words[n:]))] if words[n:] else []))

    return apply


def _degrading(answer: str) -> str:
    """The further into the answer, the more words are garbled."""
    rng, words = random.Random(2), answer.split(" ")
    return " ".join(_scrambled(word) if rng.random() < i / 80 else word for i, word in enumerate(words))


def _looping(answer: str) -> str:
    words = answer.split(" ")
    return " ".join((words[:6] * (len(words) // 6 + 1))[: len(words)])


def _digits(answer: str) -> str:
    return re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), answer)


def _cut(n: int) -> Callable[[str], str]:
    return lambda answer: "".join(re.findall(r"\s*\S+", answer)[:-n])


def _no_spaces(answer: str) -> str:
    return answer.replace(" ", "")


# Streams


def _foreign_chunk(speaking: list[Json]) -> list[Json]:
    middle = len(speaking) // 2
    other = speaking[middle] | {
        "id": "chatcmpl-other",
        "choices": [{"index": 0, "delta": {"content": " lava from the crater"}, "finish_reason": None}],
    }
    return [*speaking[:middle], other, *speaking[middle:]]


def _reordered(speaking: list[Json]) -> list[Json]:
    for i in range(0, len(speaking) - 1, 4):
        speaking[i], speaking[i + 1] = speaking[i + 1], speaking[i]
    return speaking


def _non_ascii_broken(chunks: list[Json]) -> list[Json]:
    """Each piece of a character decoded by itself."""
    for delta in content(chunks):
        delta["content"] = re.sub(r"[^\x00-\x7f]", lambda c: "\ufffd" * len(c[0].encode()), delta["content"])
    return chunks


def _error_in_band(chunks: list[Json]) -> list[Json]:
    return [*chunks[: len(chunks) // 2], _ERROR]


# Reasoning


def _into_content(template: str, keep: bool = False) -> Change:
    """Moves the reasoning into the content, as a missing reasoning parser does."""

    def plain(body: Json, _: Call) -> Json:
        for message in parts(body):
            reasoning = message.get("reasoning_content")
            if reasoning and message.get("content"):
                message["content"] = template.format(reasoning) + message["content"]
                if not keep:
                    del message["reasoning_content"]
        return body

    def chunks(all_chunks: list[Json], _: Call) -> list[Json]:
        thinking = [delta for chunk in all_chunks for delta in parts(chunk) if delta.get("reasoning_content")]
        speaking = content(all_chunks)
        if thinking and speaking:
            speaking[0]["content"] = template.format(REASONING) + speaking[0]["content"]
            for delta in thinking if not keep else ():
                delta["reasoning_content"] = ""
        return all_chunks

    return Change(plain=plain, chunks=chunks)


def _swallowed(answer: Json) -> None:
    """The whole answer is taken for reasoning."""
    for part in parts(answer):
        if part.get("content"):
            part["reasoning_content"], part["content"] = part["content"], None


# Usage


def _usage(**edits: Callable[[int], int]) -> Change:
    return field_of("usage", lambda usage: usage | {key: edit(usage[key]) for key, edit in edits.items()})


def _twice(n: int) -> int:
    return 2 * n


def _no_usage(body: Json) -> None:
    body.pop("usage", None)


# Tools


def _arguments(edit: Callable[[str], str]) -> Change:
    def apply(call: Json) -> None:
        function = call.get("function", {})
        if function.get("arguments"):
            function["arguments"] = edit(function["arguments"])

    return tool_calls(apply)


def _rename_tool(call: Json) -> None:
    if call.get("function", {}).get("name"):
        call["function"]["name"] = "functions." + call["function"]["name"][::-1]


def _arguments_as_object(call: Json) -> None:
    if "arguments" in call.get("function", {}):
        call["function"]["arguments"] = {"input": call["function"]["arguments"]}


def _values_as_lists(arguments: str) -> str:
    return re.sub(r':\s*("[^"]*"|[\d.]+)', r": [\1]", arguments)


def _call_in_content(answer: Json) -> None:
    for choice in answer.get("choices", ()):
        for part in (choice.get("message") or choice.get("delta") or {},):
            if calls := part.pop("tool_calls", None):
                function = calls[0]["function"]
                part["content"] = (
                    f"<tool_call>{function['name']} " if "name" in function else ""
                ) + function["arguments"]
        if choice.get("finish_reason") == "tool_calls":
            choice["finish_reason"] = "stop"


def _calls_doubled(chunks: list[Json]) -> list[Json]:
    return [
        chunk
        for one in chunks
        for chunk in [one] * (2 if any(p.get("tool_calls") for p in parts(one)) else 1)
    ]


def _without_index(call: Json) -> None:
    call.pop("index", None)


def _call_name_late(chunks: list[Json]) -> list[Json]:
    return [
        c
        for c in chunks
        if not any("name" in t["function"] for p in parts(c) for t in p.get("tool_calls") or ())
    ]


# Logprobs


def _logprobs(edit: Callable[[Json], None]) -> Change:
    def apply(choice: Json) -> None:
        for token in (choice.get("logprobs") or {}).get("content") or ():
            edit(token)

    return choices(apply)


def _other_token(token: Json) -> None:
    token.update(token=" zebra", bytes=list(b" zebra"))


def _positive(token: Json) -> None:
    token["logprob"] = -token["logprob"] + 0.5


def _not_the_best(token: Json) -> None:
    token["logprob"] = -99.0


def _no_logprobs(choice: Json) -> None:
    choice.pop("logprobs", None)


def _half_logprobs(body: Json, _: Call) -> Json:
    for choice in body.get("choices", ()):
        if tokens := (choice.get("logprobs") or {}).get("content"):
            choice["logprobs"]["content"] = tokens[: len(tokens) // 2]
    return body


# Requests


def _without(*keys: str) -> Change:
    def apply(request: Json) -> None:
        for key in keys:
            request.pop(key, None)

    return ask(apply)


def _messages(edit: Callable[[list[Json]], list[Json]], when: Callable[[Call], bool] | None = None) -> Change:
    def apply(request: Json) -> None:
        if request.get("messages"):
            request["messages"] = edit(request["messages"]) or [{"role": "user", "content": "Hello."}]

    return ask(apply, when)


def _prompts(edit: Callable[[str], str]) -> Change:
    def apply(message: Json) -> Json:
        return (
            message | {"content": edit(message["content"])}
            if isinstance(message.get("content"), str)
            else message
        )

    return _messages(lambda messages: [apply(message) for message in messages])


def _long(edit: Callable[[str], str]) -> Change:
    return _prompts(lambda prompt: edit(prompt) if len(prompt) > 600 else prompt)


def _elsewhere(_: list[Json]) -> list[Json]:
    return [{"role": "user", "content": ELSEWHERE}]


def _unlimited(request: Json) -> None:
    for key in ("max_tokens", "max_completion_tokens"):
        if request.get(key):
            request[key] += 40


def _wavering(request: Json, call: Call) -> Json:
    return request if call.number % 2 else request | {"temperature": 1.5, "seed": call.number}


def _greedy(request: Json) -> None:
    request["temperature"] = 0


def _last_user(messages: list[Json]) -> list[Json]:
    """Answers the first turn of several."""
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    return messages[: users[0] + 1] if len(users) > 1 else messages


def _third(call: Call) -> bool:
    return call.number % 3 == 0


def _later(call: Call) -> bool:
    return call.number > 1


def _error_body(_: Json, __: Call) -> Json:
    return dict(_ERROR)


def _no_choices(answer: Json) -> None:
    answer["choices"] = []


def _wrong_role(answer: Json) -> None:
    for part in parts(answer):
        if "role" in part:
            part["role"] = "user"


def _stop_included(body: Json, call: Call) -> Json:
    stop: Any = call.request.get("stop")
    for message in parts(body) if stop else ():
        if message.get("content"):
            message["content"] += stop if isinstance(stop, str) else stop[0]
    return body


def _special_tokens(answer: str) -> str:
    return answer + "<|im_end|>\n<|im_start|>assistant\n"


def _prompt_echoed(body: Json, call: Call) -> Json:
    for message in parts(body):
        if message.get("content"):
            message["content"] = f"{call.request['messages'][-1]['content']}\n{message['content']}"
    return body


def _null_bytes(answer: str) -> str:
    return answer.replace(" t", " \x00t").replace(" a", " \x00a")


def _mojibake(answer: str) -> str:
    """UTF-8 read as latin-1; quotation marks typographic, so that English answers show it as well."""
    return answer.replace('"', "”").replace("'", "\u2019").replace(". ", ".\u00a0").encode().decode("latin-1")


def _broken_utf8(answer: str) -> bytes:
    return answer.encode().replace(b" the", b" \xe2\x28\xa1the").replace(b" a", b" \xc3\x28a")


def _together(edit: Callable[[str, str], str]) -> Change:
    """Edits an answer that is written while another one is; `edit` gets both."""

    def rewrite(call: Call) -> Change:
        return text(lambda answer: edit(answer, call.others[0])) if call.others else Change()

    return Change(
        plain=lambda body, call: rewrite(call).plain(body, call),
        chunks=lambda chunks, call: rewrite(call).chunks(chunks, call),
        gathers=True,
    )


def _in_the_middle(answer: str, words: str) -> str:
    half = len(answer) // 2
    return f"{answer[:half]} {words} {answer[half:].lstrip()}"


def _again(call: Call) -> bool:
    return call.before > 0


def _asks(words: str) -> Callable[[Call], bool]:
    return lambda call: words in str(call.request["messages"][-1]["content"])


def _at_stop(edit: Callable[[str, str], str]) -> Change:
    """Edits an answer that a stop string ended; `edit` gets both."""

    def rewrite(call: Call) -> Change:
        stop: Any = call.request.get("stop")
        return text(lambda answer: edit(answer, stop[0])) if stop else Change()

    return Change(
        plain=lambda body, call: rewrite(call).plain(body, call),
        chunks=lambda chunks, call: rewrite(call).chunks(chunks, call),
    )


def _one_more_token(request: Json) -> None:
    if request.get("max_tokens"):
        request["max_tokens"] += 1


def _one_token_less(request: Json) -> None:
    if request.get("max_tokens", 0) > 1:
        request["max_tokens"] -= 1


def _prompt_once(body: Json) -> None:
    """A prompt that is in the cache counts as one token."""
    if usage := body.get("usage"):
        cached = {"prompt_tokens": 1, "total_tokens": 1 + usage["completion_tokens"]}
        body["usage"] = usage | cached


def _scored(logprob: float) -> Change:
    def edit(token: Json) -> None:
        token["logprob"] = logprob
        for top in token.get("top_logprobs") or ():
            top["logprob"] = logprob

    return _logprobs(edit)


def _above_the_best(token: Json) -> None:
    token["logprob"] = -0.01
    for top in token.get("top_logprobs") or ():
        top["logprob"] = -3.0


def _best_is_another(token: Json) -> None:
    for top in token.get("top_logprobs") or ():
        top.update(token=" zebra", bytes=list(b" zebra"))


CJK = "的机器学习"

FAULTS: tuple[Modification, ...] = (
    # Streams that are not what was generated
    _fault("stream-first-chunk-lost", "answers begin in the middle", "stream equals plain", on_content(lambda c: c[1:]), "stream"),
    _fault("stream-middle-chunk-lost", "a word is missing", "stream equals plain", on_content(lambda c: c[: len(c) // 2] + c[len(c) // 2 + 1 :]), "stream"),
    _fault("stream-last-chunk-lost", "answers lack their last word", "stream equals plain", on_content(lambda c: c[:-1]), "stream"),
    _fault("stream-chunk-doubled", "a word comes twice", "stream equals plain", on_content(lambda c: c[: len(c) // 2 + 1] + c[len(c) // 2 :]), "stream"),
    _fault("stream-chunks-all-doubled", "every word comes twice", "stream equals plain", on_content(lambda c: [x for one in c for x in (one, one)]), "stream"),
    _fault("stream-chunks-reordered", "words in the wrong order", "stream equals plain", on_content(_reordered), "stream"),
    _fault("stream-reversed", "the answer comes backwards", "stream equals plain", on_content(lambda c: c[::-1]), "stream"),
    _fault("stream-foreign-chunk", "a piece of somebody else's answer", "stream equals plain", on_content(_foreign_chunk), "stream"),
    _fault("stream-stalls", "the client waits for ever", "stopped answering", Change(wire=Wire(stall_at=0.5)), "stream"),
    _fault("stream-without-done", "clients wait for the end or report a cut", "stream ends properly", Change(wire=Wire(done=None)), "stream"),
    _fault("stream-without-finish", "nobody knows whether the answer is complete", "stream ends properly", stream(lambda c: [x for x in c if not any(y.get("finish_reason") for y in x["choices"])]), "stream"),
    _fault("stream-cut", "answers end in the middle with a network error", "stream ends properly", Change(wire=Wire(cut_at=0.6)), "stream"),
    _fault("stream-cut-cleanly", "answers end in the middle, as if complete", "stream ends properly", Change(chunks=lambda c, _: c[: len(c) // 2 + 1], wire=Wire(done=None)), "stream"),
    _fault("stream-error-in-band", "half an answer, then an error", "the server's error in its own words", stream(_error_in_band), "stream"),
    _fault("stream-invalid-json", "clients crash on an event", "stream is well-formed", Change(wire=Wire(encode=lambda s: s.replace('"finish_reason": null', '"finish_reason": nul').encode())), "stream"),
    _fault("stream-non-ascii-broken", "é and 東 arrive as question marks", "Unicode survives", stream(_non_ascii_broken), "stream"),
    _fault("stream-only-garbled", "streaming clients get garbage", "stream equals plain", text(_scrambled, plain=False), "stream"),
    _fault("stream-empty", "streaming clients get nothing", "stream equals plain", stream(lambda c: [x for x in c if not content([x])]), "stream"),
    _fault("stream-uppercased", "streams differ from plain answers", "stream equals plain", text(str.upper, plain=False), "stream"),
    # Plain answers
    _fault("plain-only-garbled", "plain clients get garbage", "garbage; stream equals plain", text(_scrambled, stream=False)),
    _fault("plain-last-three-lost", "answers lack their end", "stream equals plain; usage fits the text", text(_cut(3), stream=False)),
    _fault("plain-content-length-short", "answers are cut, JSON does not parse", "answer is well-formed", Change(wire=Wire(framing="length", length_error=-20))),
    _fault("plain-content-length-long", "clients wait for bytes that never come", "answer is well-formed", Change(wire=Wire(framing="length", length_error=50))),
    _fault("plain-cut", "plain answers are cut", "answer is well-formed", Change(wire=Wire(framing="length", cut_at=0.5))),
    _fault("plain-empty", "plain clients get nothing", "speaks", text(lambda _: "", stream=False)),
    # Garbage
    _fault("all-last-three-lost", "every answer lacks its end", "usage fits the text", text(_cut(3))),
    _fault("empty-answers", "nothing is ever said", "speaks", text(lambda _: "")),
    _fault("no-choices", "clients crash on choices[0]", "answer is well-formed", each(_no_choices)),
    _fault("words-doubled", "every word twice", "garbage", text(_words(lambda w: [x for one in w for x in (one, one)]))),
    _fault("words-shuffled", "word salad", "garbage", text(_words(_shuffled))),
    _fault("words-sixth-reversed", "every sixth word is nonsense", "garbage", text(_every(6, lambda w: w[::-1]))),
    _fault("words-cjk-inserted", "Chinese words in English answers", "garbage", text(_every(6, lambda w: w + " " + CJK[:2]))),
    _fault("words-cyrillic-lookalike", "text cannot be searched", "garbage", text(lambda t: t.replace("a", "\u0430").replace("e", "\u0435"))),
    _fault("words-missing", "every fourth word is missing", "garbage", text(_words(lambda w: [x for i, x in enumerate(w) if i % 4 != 3]))),
    _fault("letters-scrambled", "gibberish", "garbage", text(_scrambled)),
    _fault("spaces-lost", "wordsruntogether", "garbage", text(_no_spaces)),
    _fault("token-repeated", "the same word without end", "garbage", text(_words(lambda w: w[:1] * len(w)))),
    _fault("loop", "the same half sentence without end", "garbage", text(_looping)),
    _fault("exclamation-marks", "!!!!!!!! as of NaN logits", "garbage", text(lambda t: "!" * max(8, len(t) // 4))),
    _fault("replacement-characters", "� in the text", "garbage", text(_every(5, lambda w: w + "\ufffd"))),
    _fault("invalid-utf8", "clients crash on decoding", "answer is well-formed", Change(wire=Wire(encode=_broken_utf8))),
    _fault("null-bytes", "databases refuse the text", "garbage", text(_null_bytes)),
    _fault("html-escaped", "&quot; and &#x27; in code", "garbage", text(lambda t: html.escape(t).replace(" ", "&nbsp;"))),
    _fault("mojibake", "â€™ instead of an apostrophe", "Unicode survives", text(_mojibake)),
    _fault("uppercased", "ALL ANSWERS SHOUT", "garbage", text(str.upper)),
    _fault("digits-changed", "every number is wrong", "known answers (2+2)", text(_digits)),
    _fault("special-tokens-leak", "<|im_end|> in every answer", "no control tokens in the content", text(_special_tokens)),
    _fault("prompt-echoed", "the question comes before each answer", "stream equals plain; garbage", Change(plain=_prompt_echoed)),
    _fault("long-answers-garble", "good for forty words, then gibberish", "garbage in a long answer", text(_after(40, _scrambled))),
    _fault("slow-degradation", "the longer the answer, the worse", "garbage in a long answer", text(_degrading)),
    _fault("later-answers-garbled", "only the first answer is good: corrupt prefix cache", "same twice; garbage", text(_scrambled, when=_later)),
    _fault("every-third-garbled", "one answer in three is gibberish", "same twice; garbage", text(_scrambled, when=_third)),
    # Several at once
    _fault("parallel-garbage", "gibberish whenever two requests run together", "parallel equals alone", _together(lambda mine, _: _scrambled(mine))),
    _fault("parallel-exclamation-marks", "!!!! whenever two requests run together", "parallel equals alone", _together(lambda mine, _: "!" * len(mine))),
    _fault("parallel-empty", "nothing whenever two requests run together", "parallel equals alone", _together(lambda _, __: "")),
    _fault("parallel-other-answer", "the answer of another user", "parallel equals alone", _together(lambda _, other: other)),
    _fault("parallel-mixed", "words of another user's answer within one's own", "parallel equals alone", _together(lambda mine, other: _in_the_middle(mine, other[:40]))),
    _fault("parallel-third-user", "words of a third user's answer within one's own", "another answer than before", _together(lambda mine, _: _in_the_middle(mine, "and lava from the crater flows down"))),
    # Second use
    _fault("second-use-other", "a prompt in the cache gets another answer", "another answer than before", _messages(_elsewhere, _again)),
    _fault("second-use-garbled", "a prompt in the cache gets gibberish", "same twice; garbage", text(_scrambled, when=_again)),
    _fault("adapter-after-a-dozen", "after a dozen requests everyone gets an adapter's voice", "another answer than before", text(lambda t: f"Arr, matey! {t}", when=lambda call: call.number > 12)),
    _fault("one-question-changes", "one answer changes after six requests", "another answer than before", text(lambda _: "Seven, as far as I can tell from here.", when=lambda call: call.number > 6 and _asks("2+2")(call))),
    _fault("drafts-differ", "a drafter changes what is written", "another answer than before", _messages(_elsewhere, lambda call: bool(call.request.get("logprobs")))),
    # Conversations
    _fault("other-conversation", "answers to somebody else's question", "known answers", _messages(_elsewhere)),
    _fault("other-conversation-third", "one answer in three is somebody else's", "same twice; known answers", _messages(_elsewhere, _third)),
    _fault("answers-swapped", "two users get each other's answers", "parallel equals alone", Change(swap=True)),
    _fault("system-prompt-ignored", "assistants lose their instructions", "system prompt is followed", _messages(lambda m: [x for x in m if x["role"] != "system"])),
    _fault("earlier-turns-ignored", "the model forgets what was said", "conversation is remembered", _messages(lambda m: [x for x in m if x["role"] == "system"] + m[-1:])),
    _fault("last-turn-ignored", "the first question is answered again", "conversation is followed", _messages(_last_user)),
    _fault("long-prompt-head-lost", "the start of documents is not read", "long prompt", _long(lambda p: p[-400:])),
    _fault("long-prompt-middle-lost", "the middle of documents is not read", "long prompt", _long(lambda p: p[:200] + p[-200:])),
    _fault("long-prompt-tail-lost", "the question after a document is not read", "long prompt", _long(lambda p: p[:400])),
    _fault("unicode-in-prompt-lost", "questions with é or 東 are not understood", "Unicode survives", _prompts(lambda p: p.encode("ascii", "replace").decode())),
    # Parameters
    _fault("stop-ignored", "answers run on past the stop", "stop", _without("stop")),
    _fault("stop-included", "the stop string is in the answer", "stop", Change(plain=_stop_included)),
    _fault("stop-half-leaked", "half of the stop string is in the answer", "stop", _at_stop(lambda t, stop: t + stop[: len(stop) // 2])),
    _fault("stop-too-early", "answers end 25 characters before the stop", "stop", _at_stop(lambda t, _: t.rstrip()[:-25])),
    _fault("max-tokens-one-less", "answers are a token shorter", "max_tokens", ask(_one_token_less)),
    _fault("max-tokens-one-more-hidden", "a token more than asked for, not counted", "max_tokens", Change(ask=ask(_one_more_token).ask, plain=_usage(completion_tokens=lambda n: n - 1, total_tokens=lambda n: n - 1).plain, chunks=_usage(completion_tokens=lambda n: n - 1, total_tokens=lambda n: n - 1).chunks)),
    _fault("finish-stop-in-plain", "plain answers that were cut look complete", "max_tokens", Change(plain=finish(lambda r: "stop" if r == "length" else r).plain)),
    _fault("max-tokens-ignored", "answers are longer than paid for", "max_tokens", ask(_unlimited)),
    _fault("temperature-0-wavers", "no answer can be repeated", "same twice", Change(ask=_wavering)),
    _fault("temperature-ignored", "every sample is the same", "samples differ", ask(_greedy)),
    _fault("finish-always-stop", "cut answers look complete", "max_tokens", finish(lambda _: "stop")),
    _fault("finish-always-length", "complete answers look cut", "finish reason", finish(lambda _: "length")),
    _fault("model-of-another-name", "another model answers", "model name", field_of("model", lambda _: "tinyllama-1.1b")),
    _fault("role-wrong", "clients file answers as the user's", "answer is well-formed", each(_wrong_role)),
    # Usage
    _fault("usage-doubled", "users pay twice", "usage", _usage(prompt_tokens=_twice, completion_tokens=_twice, total_tokens=_twice)),
    _fault("usage-completion-halved", "limits do not hold", "usage", _usage(completion_tokens=lambda n: n // 2)),
    _fault("usage-zero", "nothing is counted", "usage", _usage(prompt_tokens=lambda _: 0, completion_tokens=lambda _: 0, total_tokens=lambda _: 0)),
    _fault("usage-negative", "accounts grow by asking", "usage", _usage(completion_tokens=lambda n: -n)),
    _fault("usage-total-wrong", "sums do not add up", "usage", _usage(total_tokens=lambda n: n + 7)),
    _fault("usage-prompt-doubled", "users pay twice for prompts", "usage", _usage(prompt_tokens=_twice, total_tokens=_twice)),
    _fault("usage-cached-prompt-once", "a prompt in the cache counts as one token", "usage", each(_prompt_once, when=_again)),
    _fault("usage-prompt-1000-more", "every prompt costs 1,000 tokens more", "prompts cost more than they have", _usage(prompt_tokens=lambda n: n + 1000, total_tokens=lambda n: n + 1000)),
    _fault("usage-missing-in-plain", "nothing can be counted", "usage", each(_no_usage, stream=False)),
    # Errors
    _fault("http-500-every-third", "one request in three fails", "the server's error in its own words", Change(status=lambda call: 500 if _third(call) else 200)),
    _fault("http-429-always", "no request is served", "the server's error in its own words", Change(status=lambda _: 429)),
    _fault("error-under-200", "an error looks like success", "the server's error in its own words", Change(plain=_error_body, chunks=lambda _, __: [dict(_ERROR)])),
    _fault("error-under-200-plain", "an error looks like success", "the server's error in its own words", Change(plain=_error_body)),
    # Reasoning
    _fault("think-tags-in-content", "<think> before every answer", "no reasoning in the content", _into_content("<think>\n{}\n</think>\n\n"), "reasoning"),
    _fault("think-end-tag-in-content", "thoughts and </think> before every answer", "no reasoning in the content", _into_content("{}\n</think>\n\n"), "reasoning"),
    _fault("think-tags-without-reasoning", "<think> before every answer of a plain model", "no reasoning in the content", text(lambda t: f"<think>\nThe user asks something. I answer.\n</think>\n\n{t}")),
    _fault("reasoning-leaks", "thoughts before every answer", "no reasoning in the content", _into_content("{} "), "reasoning"),
    _fault("reasoning-twice", "thoughts in their field and in the answer", "no reasoning in the content", _into_content("{} ", keep=True), "reasoning"),
    _fault("answer-taken-for-reasoning", "answers are empty, all is in the thoughts", "speaks", each(_swallowed), "reasoning"),
    # Tools
    _fault("tool-arguments-broken", "tool calls do not parse", "tool call", _arguments(lambda a: a.replace("}", "").replace('"', "'")), "tools"),
    _fault("tool-arguments-cut", "tool calls do not parse", "tool call", _arguments(lambda a: a[:-1]), "tools"),
    _fault("tool-name-wrong", "unknown tools are called", "tool call", tool_calls(_rename_tool), "tools"),
    _fault("tool-arguments-as-object", "clients crash: arguments must be a string", "tool call", tool_calls(_arguments_as_object), "tools"),
    _fault("tool-argument-types-wrong", "tools refuse their arguments", "tool call", _arguments(_values_as_lists), "tools"),
    _fault("tool-arguments-empty", "tools are called without arguments", "tool call", _arguments(lambda a: "{}" if len(a) > 6 else ""), "tools"),
    _fault("tool-call-in-content", "agents see text where a call was meant", "tool call", each(_call_in_content), "tools"),
    _fault("tool-deltas-doubled", "streamed tool calls do not parse", "tool call, streamed", stream(_calls_doubled), "tools stream"),
    _fault("tool-deltas-without-index", "clients crash on streamed calls", "tool call, streamed", Change(chunks=tool_calls(_without_index).chunks), "tools stream"),
    _fault("tool-deltas-without-name", "streamed calls name no tool", "tool call, streamed", stream(_call_name_late), "tools stream"),
    _fault("tool-finish-stop", "agents end instead of calling", "tool call", finish(lambda r: "length" if r == "tool_calls" else r), "tools"),
    _fault("tools-ignored", "no tool is ever called", "tool call", _without("tools", "tool_choice"), "tools"),
    # JSON
    _fault("json-ignored", "prose where JSON was asked", "JSON", _without("response_format"), "json"),
    _fault("json-fenced", "JSON in a code fence", "JSON", Change(plain=lambda b, c: text(lambda t: f"```json\n{t}\n```").plain(b, c) if c.request.get("response_format") else b), "json"),
    _fault("json-schema-ignored", "JSON of another shape", "JSON", Change(plain=lambda b, c: text(lambda _: '{"answer": "yes"}').plain(b, c) if c.request.get("response_format") else b), "json"),
    _fault("json-cut", "JSON does not parse", "JSON", Change(plain=lambda b, c: text(lambda t: t.rstrip()[:-1]).plain(b, c) if c.request.get("response_format") else b), "json"),
    # Logprobs
    _fault("logprobs-of-other-tokens", "scores belong to other words", "logprobs fit the text", _logprobs(_other_token), "logprobs"),
    _fault("logprobs-positive", "probabilities above one", "logprobs fit the text", _logprobs(_positive), "logprobs"),
    _fault("logprobs-not-of-the-best", "scores do not fit greedy decoding", "logprobs fit the text", _logprobs(_not_the_best), "logprobs"),
    _fault("logprobs-all-zero", "every token is certain", "logprobs fit the text", _scored(0.0), "logprobs"),
    _fault("logprobs-all-minus-9999", "every token was impossible", "logprobs fit the text", _scored(-9999.0), "logprobs"),
    _fault("logprobs-above-the-best", "tokens likelier than the likeliest", "logprobs fit the text", _logprobs(_above_the_best), "logprobs"),
    _fault("logprobs-best-is-another", "the likeliest token was not written", "logprobs fit the text", _logprobs(_best_is_another), "logprobs"),
    _fault("logprobs-missing", "scores were asked for and are not there", "logprobs fit the text", choices(_no_logprobs), "logprobs"),
    _fault("logprobs-half", "scores for half of the words", "logprobs fit the text", Change(plain=_half_logprobs), "logprobs"),
)  # fmt: skip
