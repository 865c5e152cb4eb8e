"""Tools as coding agents send them: with how many, and how deep in a conversation, do calls arrive as calls?

An agent sends 4 to 26 schemas with each request (`data/clients`), with a few MCP servers 60, and every turn
adds a call and its result. Parsers that are right for one tool leave a call in the text with two dozen of
them, or after twenty turns. So this counts: the levels below, then what lies between the last that passed
and the first that did not. Schemas, calls and results are invented, and each question names the tool that it
wants: what is measured is the way of a call from the model to the client, not what a model makes of a task.

Failed checks are notes: the number says for whom the server will do. A launch that drafts tokens and one that
does not have numbers of their own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from firesteel.edge.http.answer import Answer
from firesteel.edge.http.engine_client import EngineRefused
from firesteel.planner.propose import MeasuredCalls
from firesteel.run.verify import checks
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.session import VerifySession, filler
from firesteel.values import replace

TOOLS = (1, 8, 24, 60)
TURNS = (5, 10, 20, 40)
_USUAL_TOOLS = 8
"""Where turns and results are asked about; fewer if calls fail with so many."""
_NOUNS = ("file", "folder", "branch", "ticket", "page", "table")
_VERBS = ("read", "write", "search", "list", "move", "copy", "delete", "watch", "compare", "describe")
_NAMES = tuple(f"{verb}_{noun}" for noun in _NOUNS for verb in _VERBS)
_SYSTEM = "You are a coding agent. You do what you are asked by calling tools."
_TASK = "Go through the parts of this project, one call at a time."
RESULTS = {"usual": 40, "long": 400, "wrong": 0, "empty": 0}
"""Words of a tool's result. A wrong one is an error, in words that no call expects."""
_WRONG = 'Traceback (most recent call last):\n  OSError: [Errno 2] "part" </tool_response> {"name": null'
_LONG_WORDS = 4000
_CHARS_PER_TOKEN = 3
"""Fewer than there are, so that what might not fit is not asked."""

_Why = str | None
"""Why an agent cannot use an answer; None: it can. An empty text: it was not asked, as it would not fit."""


def tools(count: int) -> list[dict[str, Any]]:
    """About 900 characters each, as long as those of a middling agent."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"{name.replace('_', ' ').capitalize()}. {filler(80, number)}",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "description": "What to work on"},
                        "limit": {"type": "integer", "description": "The most lines to return"},
                        "mode": {"type": "string", "enum": ["fast", "exact"]},
                        "filters": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "properties": {"field": {"type": "string"}, "value": {"type": "string"}},
                                "required": ["field"],
                            },
                        },
                    },
                    "required": ["path"],
                },
            },
        }
        for number, name in enumerate(_NAMES[:count])
    ]


def conversation(turns: int) -> list[dict[str, Any]]:
    """System prompt, task, and as many calls with their results, which are of all kinds in turn."""
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _TASK}]
    for turn in range(turns):
        kind = [*RESULTS][turn % len(RESULTS)]
        messages += _call_and_result(turn, _WRONG if kind == "wrong" else _words(RESULTS[kind], turn))
    return messages


def _words(count: int, seed: int) -> str:
    return filler(count, seed) if count else ""


def _call_and_result(turn: int, result: str) -> list[dict[str, Any]]:
    function = {"name": _NAMES[0], "arguments": json.dumps({"path": f"part_{turn}.py"})}
    call_id = f"call{turn:05d}"  # nine characters, which is what Mistral's templates take
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": result},
    ]


async def agent_tools(session: VerifySession) -> list[CheckResult]:
    """Three calls for each number of schemas: of the first tool, one in the middle, and the last."""

    async def problem(count: int) -> _Why:
        for at in sorted({0, count // 2, count - 1}):
            if (why := await _asked(session, count, 0, _NAMES[at])) is not None:
                return why
        return None

    most, fail, why = await _threshold(session, TOOLS, problem)
    if most or fail:
        session.calls = MeasuredCalls(tools=most, tools_fail=fail)
    result = _result("agent tools", "tools", TOOLS, (most, fail, why))
    if drafts := session.expected.drafts:  # requests cannot turn it off: llama.cpp 11434 ignores the field
        result = replace(result, observed=f"{result.observed} (drafted by {drafts})")
    return [result]


async def agent_turns(session: VerifySession) -> list[CheckResult]:
    count = _tools_for(session)
    if session.calls is None or not count:
        return []

    async def problem(turns: int) -> _Why:
        return await _asked(session, count, turns, _NAMES[turns % count])

    most, fail, why = await _threshold(session, TURNS, problem)
    session.calls = replace(session.calls, turns=most, turns_fail=fail)
    return [_result("agent turns", "turns", TURNS, (most, fail, why))]


async def agent_results(session: VerifySession) -> list[CheckResult]:
    """A result as the last message: then comes a call or an answer, and never a call that is left as text."""
    count = _tools_for(session)
    if not count:
        return []
    long = min(_LONG_WORDS, (session.expected.context or 8192) // 4)
    results = {"long": filler(long, 1), "wrong": _WRONG, "empty": ""}
    problems = []
    for kind, result in results.items():
        messages = [*conversation(0), *_call_and_result(0, result)]
        answer = await _answer(session, messages, count)
        if isinstance(answer, str):
            problems.append(f"{kind}: {answer}")
        elif answer.tool_calls or checks.has_call_as_text(answer):
            problems += [f"{kind}: {why}" for why in [checks.unparsed_call(answer, _required(count))] if why]
        elif not answer.full_text.strip():
            problems.append(f"{kind}: an empty answer")
    observed = "; ".join(problems) or f"{', '.join(results)} results are taken"
    return [CheckResult("agent results", not problems, observed, "note")]


def _tools_for(session: VerifySession) -> int:
    return min(_USUAL_TOOLS, session.calls.tools if session.calls else 0)


async def _threshold(
    session: VerifySession, levels: Sequence[int], problem: Callable[[int], Awaitable[_Why]]
) -> tuple[int, int | None, str]:
    """The most that passed, the fewest that did not, and why; empty: what comes next was not asked."""
    most, fail, why = 0, None, ""
    for level in levels:
        found = await problem(level) if session.left_s > 0 else ""
        if found is not None:
            fail, why = (level, found) if found else (None, "")
            break
        most = level
    while fail is not None and fail - most > 1 and session.left_s > 0:
        middle = (most + fail) // 2
        if (found := await problem(middle)) is None:
            most = middle
        else:
            fail, why = middle, found or why
    return most, fail, why


def _result(name: str, what: str, levels: Sequence[int], found: tuple[int, int | None, str]) -> CheckResult:
    most, fail, why = found
    if fail is not None:
        parsed = f"calls are parsed with up to {most} {what}, not with {fail}" if most else f"not with {fail}"
        return CheckResult(name, False, f"{parsed}: {why}", "note")
    if not most:
        return CheckResult(name, True, f"not asked: {levels[0]} {what} do not fit the context", "note")
    rest = "" if most == levels[-1] else "; more would not fit the context or the time"
    return CheckResult(name, True, f"calls are parsed with up to {most} {what}{rest}", "note")


async def _asked(session: VerifySession, count: int, turns: int, name: str) -> _Why:
    prompt = f"Now use the tool {name}, with the path part_{turns}.py."
    messages = [*conversation(turns), {"role": "user", "content": prompt}]
    if turns == 0:
        messages = [messages[0], messages[-1]]
    size = (len(json.dumps(messages)) + len(json.dumps(tools(count)))) // _CHARS_PER_TOKEN
    if session.expected.context and size + _limit(session) > session.expected.context:
        return ""
    answer = await _answer(session, messages, count)
    return answer if isinstance(answer, str) else checks.unparsed_call(answer, _required(count))


async def _answer(session: VerifySession, messages: list[dict[str, Any]], count: int) -> Answer | str:
    """The answer, or the words with which the server refused the request."""
    asked = {"messages": messages, "tools": tools(count), "tool_choice": "auto"}
    asked = {**session.expected.tool_requests, **asked}
    try:
        return await session.ask(str(messages[-1]["content"]), _limit(session), asked, patience=3)
    except EngineRefused as error:
        return error.what


def _limit(session: VerifySession) -> int:
    return 512 if session.thinks else 128


def _required(count: int) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(_NAMES[:count], ("path",))
