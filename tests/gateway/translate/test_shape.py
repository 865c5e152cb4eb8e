"""One shape of a conversation that every template takes, in three APIs."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.gateway.translate.shape import has_inner_system, shaped

REMINDER = "<system-reminder>\nnow\n</system-reminder>"


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "ok"}
CHAT = {
    "one": ([message("system", "a"), message("user", "u")], None),
    "two at the head": (
        [message("system", "a"), message("developer", "b"), message("user", "u")],
        [message("system", "a\n\nb"), message("user", "u")],
    ),
    "developer": ([message("developer", "a")], [message("system", "a")]),
    "after a user": (
        [message("user", "u"), message("system", "now"), message("assistant", "x")],
        [message("user", f"{REMINDER}\n\nu"), message("assistant", "x")],
    ),
    "several after the first user": (
        [message("user", "u"), message("system", "now"), message("developer", "and"), message("user", "v")],
        [message("user", f"{REMINDER}\n\n{REMINDER.replace('now', 'and')}\n\nu\n\nv")],
    ),
    "after a later user": (
        [message("user", "u"), message("assistant", "x"), message("user", "v"), message("system", "now")],
        [message("user", "u"), message("assistant", "x"), message("user", f"v\n\n{REMINDER}")],
    ),
    "after a result": (
        [message("user", "u"), CALL, RESULT, message("system", "now")],
        [message("user", "u"), CALL, {**RESULT, "content": f"ok\n\n{REMINDER}"}],
    ),
    "after an assistant": (
        [message("user", "u"), message("assistant", "x"), message("system", "now"), message("user", "v")],
        [message("user", "u"), message("assistant", "x"), message("user", f"{REMINDER}\n\nv")],
    ),
    "with an image": (
        [message("user", [{"type": "image_url"}]), message("system", REMINDER)],
        [message("user", [{"type": "text", "text": REMINDER}, {"type": "image_url"}])],
    ),
    "users in a row": (
        [message("user", "a"), message("user", "b")],
        [message("user", "a\n\nb")],
    ),
    "parts stay": ([message("system", [{"type": "text", "text": "a"}]), message("user", "u")], None),
}


@pytest.mark.parametrize("name", CHAT)
def test_chat(name: str) -> None:
    before, after = CHAT[name]
    request = {"model": "m", "messages": before}
    kept = deepcopy(request)
    got = shaped("chat", request)
    assert request == kept, "the caller's is not changed"
    assert got == {"model": "m", "messages": after or before}
    if after is None:
        assert got is request
    assert shaped("chat", got) == got


def test_messages() -> None:
    block = {"type": "tool_result", "tool_use_id": "1", "content": "ok"}
    request = {
        "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            message("user", "u"),
            message("system", "now"),
            message("assistant", [{"type": "tool_use"}]),
            message("user", [block]),
            message("system", [{"type": "text", "text": "now"}]),
        ],
    }
    assert shaped("message", request) == {
        "system": request["system"],
        "messages": [
            message("user", f"{REMINDER}\n\nu"),
            message("assistant", [{"type": "tool_use"}]),
            message("user", [{**block, "content": f"ok\n\n{REMINDER}"}]),
        ],
    }
    assert has_inner_system(json.dumps(request).encode())
    assert not has_inner_system(json.dumps({**request, "messages": []}).encode())


def test_responses_as_codex_sends_them() -> None:
    def item(role: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    output = {"type": "function_call_output", "call_id": "1", "output": "ok"}
    request = {
        "instructions": "a",
        "input": [
            item("developer", "b"),
            item("developer", "c"),
            item("user", "u"),
            item("user", "v"),
            {"type": "function_call", "call_id": "1"},
            output,
            item("developer", "now"),
        ],
    }
    two = {**item("user", "u"), "content": [*item("user", "u")["content"], *item("user", "v")["content"]]}
    assert shaped("response", request) == {
        "instructions": "a\n\nb\n\nc",
        "input": [two, request["input"][4], {**output, "output": f"ok\n\n{REMINDER}"}],
    }


@pytest.mark.parametrize(
    ("kind", "request_", "after"),
    [
        (
            "chat",
            {"messages": [message("system", "a"), message("user", "u")]},
            {"messages": [message("user", "a\n\nu")]},
        ),
        (
            "message",
            {"system": "a", "messages": [message("user", [{"type": "text", "text": "u"}])]},
            {"messages": [message("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "u"}])]},
        ),
        (
            "response",
            {"instructions": "a", "input": [message("user", "u")]},
            {"input": [message("user", "a\n\nu")]},
        ),
    ],
)
def test_a_template_without_that_role(kind: str, request_: Any, after: Any) -> None:
    assert shaped(kind, request_, "none") == after


def test_what_an_agent_says_in_every_session_comes_before_the_task() -> None:
    """Claude Code 2.1.328: the environment follows the task, so that two sessions shared nothing after it."""

    def session(task: str) -> str:
        messages = [message("user", task), message("system", "environment " * 20)]
        return json.dumps(shaped("message", {"messages": messages})["messages"])

    one, other = session("List the files."), session("What is here?")
    shared = next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert shared > 240


ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
HISTORY = st.lists(st.builds(message, ROLES, st.text("ab", min_size=1, max_size=3)), max_size=8)


@given(HISTORY)
def test_any_history(history: list[Any]) -> None:
    got = shaped("chat", {"messages": history})["messages"]
    roles = [each["role"] for each in got]
    assert "developer" not in roles and "system" not in roles[1:]
    assert all(pair != ("user", "user") for pair in pairwise(roles))
    text = "".join(each["content"] for each in got)
    assert all(each["content"] in text for each in history), "nothing is lost"


@given(HISTORY, HISTORY)
def test_a_conversation_that_grows_keeps_its_beginning(history: list[Any], more: list[Any]) -> None:
    """An assistant answers in between, as in every turn of an agent."""
    history = [message("user", "u"), *history]
    before = shaped("chat", {"messages": history})["messages"]
    after = shaped("chat", {"messages": [*history, message("assistant", "x"), *more]})["messages"]
    assert after[: len(before)] == before
