"""What the gateway changes in a request's body besides the model's name. Pure.

    rules = ParameterRules(config.parameters)
    parameter_edits(body, rules.of("chat")) -> edits of the body, or why it is rejected
    answer_size(body, rules.of("chat")) -> how long its answers may become
    request_usage(body, "continuous") -> the edit that asks the engine for token counts

Edits are made by position, like the model's name (`body.py`): everything else stays byte for byte, and a body
of megabytes is neither parsed nor copied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from firesteel.gateway.http.body import STREAM, STREAM_OPTIONS, Edit, find_near_ends
from firesteel.gateway.interfaces import Counting, Rejection
from firesteel.gateway.service_config import ModelParameters
from firesteel.gateway.translate.values import dump
from firesteel.values import Value, replace

MAX_BRACKETS = 100_000
"""Of one body: 30 ms."""
MAX_MEMBERS = 1000
_GENERATES = frozenset(("chat", "completion", "response", "message", "infill"))
"""The kinds of routes that have such parameters."""
_OF_RECIPES = {
    "message": frozenset(("temperature", "top_p", "top_k")),
    "response": frozenset(("temperature", "top_p")),
}
"""A recipe's settings are those of chat completions; these APIs have only some of them."""
_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
"""The names of one limit: OpenAI's, its newer ones, and llama.cpp's."""
_CHOICES = ("n", "best_of", "n_cmpl")
"""How many answers a prompt gets, each up to that limit; the last one is llama.cpp's."""

_SPACE = rb"[ \t\r\n]*+"
_STRING = rb'"(?>(?:[^"\\]++|\\.)*)"'
_OPEN = re.compile(_SPACE + rb"\{" + _SPACE)
_NAME = re.compile(rb"(" + _STRING + rb")" + _SPACE + b":" + _SPACE, re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[-+.0-9A-Za-z]++", re.DOTALL)
_TO_BRACKET = re.compile(rb'[^"\[\]{}]*+(?>(?:' + _STRING + rb'[^"\[\]{}]*+)*)([\[\]{}])', re.DOTALL)
_NEXT = re.compile(_SPACE + rb"([,}])" + _SPACE)


class _Invalid(Exception):
    def __init__(self, why: str, advice: str = "Send one JSON object.") -> None:
        super().__init__(why)
        self.advice = advice


class _Member(Value):
    """`body[start:end]` is `"name": value`, and `body[value:end]` its value."""

    name: str
    start: int
    value: int
    end: int


def _members(body: bytes) -> Iterator[_Member]:
    """The members of the outermost object."""
    match = _OPEN.match(body)
    if match is None:
        raise _Invalid("is not an object")
    position = match.end()
    if body.startswith(b"}", position):
        return
    for _ in range(MAX_MEMBERS):
        name = _NAME.match(body, position)
        if name is None:
            raise _Invalid("is missing a name")
        end = _end_of_value(body, name.end())
        yield _Member(_text(name[1]), position, name.end(), end)
        follows = _NEXT.match(body, end)
        if follows is None:
            raise _Invalid("is missing a comma")
        position = follows.end()
        if follows[1] == b"}":
            if position != len(body):
                raise _Invalid("continues after its end")
            return
    raise _Invalid(f"has more than {MAX_MEMBERS} members")


def _end_of_value(body: bytes, start: int) -> int:
    if body[start : start + 1] not in (b"[", b"{"):
        scalar = _SCALAR.match(body, start)
        if scalar is None:
            raise _Invalid("is missing a value")
        return scalar.end()
    depth, position = 1, start + 1
    for _ in range(MAX_BRACKETS):
        match = _TO_BRACKET.match(body, position)
        if match is None:
            raise _Invalid("ends too early")
        depth += 1 if match[1] in b"[{" else -1
        position = match.end()
        if not depth:
            return position
    raise _Invalid("has too many brackets")


def _text(token: bytes) -> str:
    try:
        text: str = json.loads(token) if b"\\" in token else token[1:-1].decode()
    except ValueError:
        raise _Invalid("has a name that is not text") from None
    return text


class RouteRules(Value):
    """The parameters of a model for one kind of route; values as JSON."""

    defaults: Mapping[str, bytes]
    for_tools: Mapping[str, bytes]
    """Defaults of requests with tools."""
    fixed: Mapping[str, bytes]
    stripped: frozenset[str]
    max_tokens: int | None
    max_tokens_name: str
    """How this API calls it."""


class ParameterRules:
    """The parameters of a model or an alias."""

    def __init__(self, parameters: ModelParameters) -> None:
        self._parameters = parameters
        self._by_kind: dict[str, RouteRules] = {}

    def limited(self, max_tokens: int) -> ParameterRules:
        """The same, and no more tokens than this."""
        own = self._parameters.max_tokens
        limit = max_tokens if own is None else min(own, max_tokens)
        return ParameterRules(replace(self._parameters, max_tokens=limit))

    def of(self, kind: str) -> RouteRules | None:
        """None: this kind of route has no parameters."""
        if kind not in _GENERATES:
            return None
        rules = self._by_kind.get(kind)
        if rules is None:
            rules = self._by_kind[kind] = _route_rules(self._parameters, kind)
        return rules


def _route_rules(parameters: ModelParameters, kind: str) -> RouteRules:
    allowed = _OF_RECIPES.get(kind)

    def of_recipe(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in settings.items() if allowed is None or name in allowed}

    name = "max_output_tokens" if kind == "response" else "max_tokens"
    limit = parameters.max_tokens
    fixed = {**parameters.fixed}

    def encoded(settings: Mapping[str, Any]) -> dict[str, bytes]:
        """A default of null takes away one of the recipe; one of `max_tokens` has each API's own name."""
        found = {
            name if key in _MAX_TOKENS else key: value
            for key, value in settings.items()
            if value is not None and key not in fixed
        }
        if limit is not None and isinstance(found.get(name), int):
            found[name] = min(found[name], limit)
        return {key: dump(value) for key, value in found.items()}

    defaults = encoded({**of_recipe(parameters.recipe), **parameters.defaults})
    for_tools = encoded({**of_recipe(parameters.recipe_for_tools), **parameters.defaults})
    return RouteRules(
        defaults,
        {**defaults, **for_tools} if parameters.recipe_for_tools else defaults,
        {key: dump(value) for key, value in fixed.items()},
        frozenset(parameters.strip),
        limit,
        name,
    )


def parameter_edits(body: bytes, rules: RouteRules) -> list[Edit] | Rejection:
    """Defaults, fixed values, stripped fields and limits of a model.

    Only requests to a model with parameters come here. The top level of the body is walked once, since a
    limit must hold wherever a client writes the field; what is nested is skipped and never parsed.
    """
    try:
        members = list(_members(body))
        limit = _limit_of_each(body, members, rules)
    except _Invalid as error:
        return _bad_body(error)
    last = {member.name: index for index, member in enumerate(members)}
    removed: list[bool] = []
    edits: list[Edit] = []
    given = set()
    """Names that the client has given a value, which stays or is limited."""
    for index, member in enumerate(members):
        name, value = member.name, body[member.value : member.end]
        is_ruled = name in rules.fixed or name in rules.defaults or name in _MAX_TOKENS
        removed.append(name in rules.stripped or (is_ruled and index != last[name]))
        if removed[-1]:
            continue
        new = _new_value(name, value, rules, limit)
        if new is None and value == b"null" and is_ruled:
            removed[-1] = True  # the same as if it were not there
            continue
        given.add(name)
        if new is not None and new != value:
            edits.append((member.value, member.end, new))
    tools = next((body[each.value : each.end] for each in members if each.name == "tools"), b"[]")
    has_tools = tools not in (b"[]", b"null")
    added = _added(rules, rules.for_tools if has_tools else rules.defaults, given, limit)
    edits += _removals(members, removed)
    if added:
        text = b",".join(b"%b:%b" % (dump(name), value) for name, value in added.items())
        start = members[0].start if members else body.index(b"{") + 1
        edits.append((start, start, text + b"," if not all(removed) else text))
    return edits


def _bad_body(error: _Invalid) -> Rejection:
    return Rejection(400, "bad_body", f"The body {error}. {error.advice}")


def _new_value(name: str, value: bytes, rules: RouteRules, limit: int | None) -> bytes | None:
    """None: it stays as it is."""
    if name in rules.fixed:
        return rules.fixed[name]
    if limit is None or name not in _MAX_TOKENS or value == b"null":
        return None
    # Anything but a whole number up to the limit: an engine might take `-1`, `1e9` or "99999" for one.
    is_within = value.isdigit() and len(value) < 20 and int(value) <= limit
    return None if is_within else b"%d" % limit


def _added(
    rules: RouteRules, defaults: Mapping[str, bytes], given: set[str], limit: int | None
) -> dict[str, bytes]:
    added = {name: value for name, value in rules.fixed.items() if name not in given}
    has_max_tokens = any(name in given or name in added for name in _MAX_TOKENS)
    for name, value in defaults.items():
        if name not in given and name not in added and not (has_max_tokens and name in _MAX_TOKENS):
            is_limited = limit is not None and name in _MAX_TOKENS
            added[name] = b"%d" % min(limit or 0, _number(value) or 0) if is_limited else value
    if limit is not None and not has_max_tokens:
        added.setdefault(rules.max_tokens_name, b"%d" % limit)
    return added


def _limit_of_each(body: bytes, members: list[_Member], rules: RouteRules) -> int | None:
    """The limit of tokens is for all answers to a request together."""
    if rules.max_tokens is None:
        return None
    choices = _answers(body, members, rules)
    if choices > rules.max_tokens:
        why = f"asks for {choices} answers, and all together may have {rules.max_tokens} tokens"
        raise _Invalid(why, "Ask for fewer.")
    return rules.max_tokens // choices


def _answers(body: bytes, members: list[_Member], rules: RouteRules) -> int:
    """To one request: choices of each prompt, and prompts. Of a name that is there twice the larger one."""
    values = [(each.name, body[each.value : each.end]) for each in members]
    values = [each for each in values if each[0] not in rules.stripped and each[0] not in rules.fixed]
    given = {name for name, _ in values}
    values += [each for each in rules.defaults.items() if each[0] not in given] + [*rules.fixed.items()]
    choices = max((_number(value) or 1 for name, value in values if name in _CHOICES), default=1)
    return choices * max((_prompts(value) for name, value in values if name == "prompt"), default=1)


def _number(value: bytes) -> int | None:
    """As engines read it: some take `1e3` or "1000" for 1000."""
    try:
        number = float(json.loads(value))
    except (ValueError, TypeError, RecursionError):
        return None
    return int(number) if 0 <= number < 2**53 else None


def _prompts(value: bytes) -> int:
    """Of a completion: each text, or list of tokens, of a list gets its own answer."""
    if not value.startswith(b"["):
        return 1
    try:
        prompts = json.loads(value)
    except (ValueError, RecursionError):
        return 1
    return len(prompts) if prompts and not isinstance(prompts[0], int) else 1


class AnswerSize(Value):
    """How long all answers to a request may become together."""

    tokens: int | None
    """None: it sets no limit."""
    is_stream: bool = False


def answer_size(body: bytes, rules: RouteRules) -> AnswerSize | Rejection:
    """`rules`: of the model, which may set a limit or have a default.

    For keys with limits, which a body that can be read in two ways must not escape: engines take the last of
    two keys with one name, however it is spelled.
    """
    try:
        members = list(_members(body))
        limit = _limit_of_each(body, members, rules)
        answers = _answers(body, members, rules)
    except _Invalid as error:
        return _bad_body(error)
    names = [member.name for member in members]
    for name in ("stream", *_MAX_TOKENS, *_CHOICES):
        if names.count(name) > 1:
            return Rejection(400, "ambiguous_body", f"The body has `{name}` twice. Send it once.")
    values = {member.name: body[member.value : member.end] for member in members}
    values = {**rules.defaults, **{k: v for k, v in values.items() if v != b"null"}, **rules.fixed}
    values = {name: value for name, value in values.items() if name not in rules.stripped}
    asked = [number for name in _MAX_TOKENS if (number := _number(values.get(name, b""))) is not None]
    each = max(asked, default=limit)
    each = each if limit is None or each is None else min(each, limit)
    is_stream = values.get("stream") == b"true"
    return AnswerSize(None if each is None else each * answers, is_stream)


def _removals(members: list[_Member], removed: list[bool]) -> Iterator[Edit]:
    """Each with one of its commas: the one behind it or, for those at the end, the one before."""
    kept = [index for index, is_removed in enumerate(removed) if not is_removed]
    last_kept = kept[-1] if kept else len(members)
    for index, member in enumerate(members):
        if not removed[index]:
            continue
        if index < last_kept:
            end = members[index + 1].start if index + 1 < len(members) else member.end
            yield member.start, end, b""
        else:
            yield members[index - 1].end, member.end, b""


_DATA = re.compile(rb'"(?:data:[^"\\]{64,}+|[A-Za-z0-9+/=]{1024,}+)"')
"""Images and sounds in base64."""
_BYTES_PER_TOKEN = 4


def estimated_tokens(body: bytes) -> int:
    """Of the prompt, from its length: a token of English text has 4 bytes, code and other languages less.
    Tokenizers are the engines'."""
    if len(body) < 4096:
        return len(body) // _BYTES_PER_TOKEN
    data = sum(match.end() - match.start() for match in _DATA.finditer(body))
    return (len(body) - data) // _BYTES_PER_TOKEN


_MAX_OPTIONS_BYTES = 1024
_DECODER = json.JSONDecoder()


class UsageRequest(Value):
    edit: Edit
    strips_event: bool
    """The client did not ask for the event with the counts at the end."""
    strips_fields: bool
    """It did not ask for counts in every event."""


def request_usage(body: bytes, counting: Counting) -> UsageRequest | None:
    """Ask an engine for the token counts of a stream, where its client did not. None: the body asks for no
    stream, or for all the counts already.

    Engines count in a stream only on request: `stream_options.include_usage` brings the counts at the end,
    and `continuous_usage_stats` (vLLM, SGLang) or `timings_per_token` (llama.cpp) with every event, so that a
    stream that is cut has them too. What the client did not ask for is taken out of the response again
    (`usage.py`).

    Only options near either end of the body are seen, where all known clients write them. A stream that
    escapes this is counted by its deltas (`usage.py`).
    """
    if (value := find_near_ends(body, STREAM)) is None or not body.startswith(b"true", value):
        return None
    if counting == "timings":
        is_asked = b'"timings_per_token"' in body
        edit = (value + 4, value + 4, b',"timings_per_token":true')
        return None if is_asked else UsageRequest(edit, False, True)
    is_continuous = counting != "at the end"
    options = find_near_ends(body, STREAM_OPTIONS)
    if options is not None:
        return _extend(body, options, is_continuous)
    if b'"stream_options"' in body:  # somewhere in the middle, or in a prompt
        return None
    text = b',"stream_options":' + dump(_wanted(is_continuous))
    return UsageRequest((value + 4, value + 4, text), True, is_continuous)


def _extend(body: bytes, start: int, is_continuous: bool) -> UsageRequest | None:
    text = body[start : start + _MAX_OPTIONS_BYTES].decode("latin-1")
    try:
        options, size = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if options is None:
        options = {}
    wanted = _wanted(is_continuous)
    if not isinstance(options, dict) or not text[:size].isascii() or options == options | wanted:
        return None
    edit = (start, start + size, dump(options | wanted))
    strips_fields = is_continuous and options.get("continuous_usage_stats") is not True
    return UsageRequest(edit, options.get("include_usage") is not True, strips_fields)


def _wanted(is_continuous: bool) -> dict[str, bool]:
    wanted = {"include_usage": True}
    return wanted | {"continuous_usage_stats": True} if is_continuous else wanted
