"""Sixty prompts that an engine reads again, each with the prompt before it, and why.

Written from what agents were seen or reported to change (dates, billing lines, git status, budgets, tools,
compaction, ...) by the author of the rules, with filler in place of real prompts. Nothing was copied from an
agent. A case is a request, then one that departs from it; what the engine says of the second is in `cached`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

Json = dict[str, Any]


class Case(NamedTuple):
    name: str
    cause: str
    before: Json
    after: Json
    cached: float | None = None
    """The part of the prompt that the engine had; None: what was shared from the beginning."""
    model: str = "coder"
    """That the second request asks for."""
    replica: int = 0
    restarts: bool = False
    block: int = 1


def words(count: int, salt: str = "") -> str:
    return "\n".join(
        f"- {salt}Prefer small changes in {chr(97 + at % 26)}{chr(97 + at // 26)}; say what was done and why."
        for at in range(count)
    )


RULES = f"You are a careful helper for code.\n\n# Tone\n{words(30)}\n\n# Work\n{words(30, 'W ')}"


def tool(name: str, text: str = "Does what its name says, in the folder of the project.") -> Json:
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string", "description": "Where."}},
        "required": ["path"],
    }
    return {"name": name, "description": f"{text} {name} is used with care.", "schema": schema}


TOOLS = [tool(name) for name in ("shell", "read", "write", "edit", "glob", "grep", "fetch", "plan")]


def chat(system: str, messages: list[Json], tools: list[Json] = TOOLS, **more: Any) -> Json:
    functions = [
        {
            "type": "function",
            "function": {"name": t["name"], "description": t["description"], "parameters": t["schema"]},
        }
        for t in tools
    ]
    return {
        "model": "coder", "messages": [{"role": "system", "content": system}, *messages], "tools": functions,
        "stream": True, **more,
    }  # fmt: skip


def anthropic(system: list[str] | str, messages: list[Json], tools: list[Json] = TOOLS, **more: Any) -> Json:
    blocks = system if isinstance(system, str) else [{"type": "text", "text": text} for text in system]
    own = [{"name": t["name"], "description": t["description"], "input_schema": t["schema"]} for t in tools]
    return {
        "model": "coder",
        "messages": messages,
        "system": blocks,
        "tools": own,
        "max_tokens": 32000,
        "stream": True,
        **more,
    }


def responses(instructions: str, items: list[Json], tools: list[Json] = TOOLS, **more: Any) -> Json:
    own = [
        {"type": "function", "name": t["name"], "description": t["description"], "parameters": t["schema"]}
        for t in tools
    ]
    return {
        "model": "coder",
        "instructions": instructions,
        "input": items,
        "tools": own,
        "store": False,
        "stream": True,
        **more,
    }


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def said(text: str) -> Json:
    return {"role": "assistant", "content": text}


def call(number: int, path: str) -> Json:
    function = {"name": "read", "arguments": json.dumps({"path": path})}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


def result(number: int, text: str) -> Json:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def item(role: str, text: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


FILE = "\n".join(
    f"    value = compute(value, step={chr(97 + at % 26)!r})  # part {chr(97 + at // 26)}" for at in range(60)
)
TASK, OTHER = (
    "Rename the function in the parser and run the tests.",
    "Explain what the cache in this project does.",
)
TALK = [
    user(TASK),
    call(1, "parser.py"),
    result(1, FILE),
    said("It is renamed."),
    user("Now the tests, please."),
]
LONG = [
    *TALK,
    call(2, "tests.py"),
    result(2, FILE.upper()),
    said("All of them pass."),
    user("Thanks. And the docs?"),
]
MORE = [said("Done as you asked."), user("Good. One more thing: the changelog.")]


def blocks(text: str, *others: str) -> Json:
    return {"role": "user", "content": [{"type": "text", "text": each} for each in (*others, text)]}


GIT = (
    "gitStatus: The state when the conversation began.\nCurrent branch: {branch}\n\nMain branch: main\n\n"
    "Status:\n{status}\n\nRecent commits:\n{commits}"
)
CLEAN = GIT.format(branch="main", status="(clean)", commits="1a2b3c4 Parse lists\n5d6e7f8 First version")
DIRTY = GIT.format(
    branch="main",
    status=" M src/parser.py\n?? notes.txt",
    commits="1a2b3c4 Parse lists\n5d6e7f8 First version",
)
NEWER = GIT.format(
    branch="main", status="(clean)", commits="9f8e7d6 Parse maps\n1a2b3c4 Parse lists\n5d6e7f8 First version"
)
BRANCH = GIT.format(branch="maps", status="(clean)", commits="1a2b3c4 Parse lists\n5d6e7f8 First version")
BILLING = "x-anthropic-billing-header: cc_version=2.1.{}; cc_entrypoint=cli;{}"
ENVIRONMENT = "<env>\nWorking directory: {}\nPlatform: linux\nToday's date: {}\n</env>"
CODEX_ENVIRONMENT = (
    "<environment_context>\n  <cwd>{}</cwd>\n  <shell>bash</shell>\n"
    "  <current_date>{}</current_date>\n</environment_context>"
)
CONTEXT = "<system-reminder>\nFollow these notes of the project.\n{}\n</system-reminder>"
SUMMARY = (
    "This work is continued from a previous session that had no room left. "
    "The summary: the parser was renamed."
)


def in_system(text: str) -> str:
    return f"{RULES}\n\n{text}\n\n# Notes\n{words(20, 'N ')}"


def of_sessions(name: str, cause: str, before: str, after: str, make: Callable[..., Json] = chat) -> Case:
    """Two sessions of one program, whose system prompts differ in one place."""
    return Case(name, cause, make(in_system(before), [user(TASK)]), make(in_system(after), [user(OTHER)]))


def of_turn(name: str, cause: str, before: list[Json], after: list[Json], **more: Any) -> Case:
    """Two turns of one conversation."""
    return Case(name, cause, chat(RULES, before), chat(RULES, after), **more)


def _changed(messages: list[Json], at: int, content: Any) -> list[Json]:
    return [*messages[:at], {**messages[at], "content": content}, *messages[at + 1 :]]


CASES = [
    # the attribution line
    Case(
        "billing, new session",
        "attribution",
        anthropic([BILLING.format("197.a1b", ""), RULES], [blocks(TASK)]),
        anthropic([BILLING.format("197.c3d", ""), RULES], [blocks(OTHER)]),
    ),
    Case(
        "billing, each turn",
        "attribution",
        anthropic([BILLING.format("100.7b4", " cch=eb6c6;"), RULES], TALK),
        anthropic([BILLING.format("100.7b4", " cch=0aaa9;"), RULES], [*TALK, *MORE]),
    ),
    Case(
        "billing, new version",
        "attribution",
        anthropic([BILLING.format("196.a1b", ""), RULES], [blocks(TASK)]),
        anthropic([BILLING.format("197.a1b", ""), RULES], [blocks(OTHER)]),
    ),
    Case(
        "billing, turned off",
        "attribution",
        anthropic([BILLING.format("197.a1b", ""), RULES], [blocks(TASK)]),
        anthropic([RULES], [blocks(OTHER)]),
    ),
    Case(
        "billing, as one text",
        "attribution",
        anthropic(BILLING.format("100.7b4", " cch=1;") + "\n" + RULES, TALK),
        anthropic(BILLING.format("100.7b4", " cch=2;") + "\n" + RULES, [*TALK, *MORE]),
    ),
    Case(
        "billing, translated",
        "attribution",
        chat(BILLING.format("197.a1b", "") + "\n\n" + RULES, [user(TASK)]),
        chat(BILLING.format("197.c3d", "") + "\n\n" + RULES, [user(OTHER)]),
    ),
    # dates and times
    of_sessions(
        "date in the environment",
        "date",
        ENVIRONMENT.format("/home/x", "2026-11-18"),
        ENVIRONMENT.format("/home/x", "2026-11-19"),
    ),
    of_sessions(
        "weekday and date",
        "date",
        "Today is Wednesday, November 18, 2026.",
        "Today is Thursday, November 19, 2026.",
    ),
    of_sessions("time of day", "date", "The current time is 10:22 AM.", "The current time is 4:05 PM."),
    of_sessions(
        "time stamp",
        "date",
        "Started at 2026-11-19T10:22:33Z on host a",
        "Started at 2026-11-19T11:02:13Z on host a",
    ),
    of_sessions("date, other order", "date", "Date: 18.11.2026", "Date: 19.11.2026", responses),
    of_sessions("seconds since 1970", "date", "now=1794790000", "now=1794793617"),
    Case(
        "date in Codex's first message",
        "date",
        responses(
            RULES,
            [
                item("user", CODEX_ENVIRONMENT.format("/home/x", "2026-11-18")),
                item("user", CONTEXT.format(words(9, "P "))),
                item("user", TASK),
            ],
        ),
        responses(
            RULES,
            [
                item("user", CODEX_ENVIRONMENT.format("/home/x", "2026-11-19")),
                item("user", CONTEXT.format(words(9, "P "))),
                item("user", OTHER),
            ],
        ),
    ),
    Case(
        "date in Claude Code's reminder",
        "date",
        anthropic([RULES], [blocks(TASK, CONTEXT.format("Today's date is 2026-11-18.\n" + words(9, "P ")))]),
        anthropic([RULES], [blocks(OTHER, CONTEXT.format("Today's date is 2026-11-19.\n" + words(9, "P ")))]),
    ),
    Case(
        "midnight in a conversation",
        "date",
        chat(in_system("Today's date: 2026-11-18"), TALK),
        chat(in_system("Today's date: 2026-11-19"), [*TALK, *MORE]),
    ),
    of_turn(
        "a note with the time moves on",
        "date",
        [
            user(TASK),
            call(1, "a.py"),
            result(1, FILE),
            user("<info>It is 2026-11-19 10:22:33</info>\n" + words(5, "I ")),
        ],
        [
            user(TASK),
            call(1, "a.py"),
            result(1, FILE),
            user("<info>It is 2026-11-19 10:23:12</info>\n" + words(5, "I ")),
            *MORE,
        ],
    ),
    # git
    of_sessions("git status, a file was changed", "git", CLEAN, DIRTY),
    of_sessions("git status, a commit", "git", CLEAN, NEWER),
    of_sessions("git status, another branch", "git", CLEAN, BRANCH),
    Case(
        "git status at the end of system",
        "git",
        anthropic([RULES, CLEAN], [blocks(TASK)]),
        anthropic([RULES, DIRTY], [blocks(OTHER)]),
    ),
    of_sessions(
        "git status in a tag",
        "git",
        '<context name="gitStatus">\n?? a.txt\n</context>',
        '<context name="gitStatus">\n?? a.txt\n?? b.txt\n</context>',
    ),
    Case(
        "git status turned off",
        "git",
        anthropic([RULES, CLEAN], [blocks(TASK)]),
        anthropic([RULES], [blocks(OTHER)]),
    ),
    of_sessions(
        "the head of the repository",
        "git",
        "Git branch: main at commit 1a2b3c4",
        "Git branch: main at commit 9f8e7d6",
    ),
    # counts
    Case(
        "tokens left, in system",
        "counter",
        chat(in_system("Token budget: 187,310 tokens left."), TALK),
        chat(in_system("Token budget: 165,002 tokens left."), [*TALK, *MORE]),
    ),
    Case(
        "usage of the context",
        "counter",
        chat(in_system("Context window usage: 12%"), TALK),
        chat(in_system("Context window usage: 17%"), [*TALK, *MORE]),
    ),
    Case(
        "number of the turn",
        "counter",
        chat(in_system("This is turn 3 of 40."), TALK),
        chat(in_system("This is turn 4 of 40."), [*TALK, *MORE]),
    ),
    of_turn(
        "a countdown in an earlier message",
        "counter",
        [
            user(TASK),
            call(1, "a.py"),
            result(1, FILE),
            user("<total_tokens>180000 tokens left</total_tokens>\n" + words(5, "I ")),
        ],
        [
            user(TASK),
            call(1, "a.py"),
            result(1, FILE),
            user("<total_tokens>150000 tokens left</total_tokens>\n" + words(5, "I ")),
            *MORE,
        ],
    ),
    # identifiers
    of_sessions(
        "a session's id",
        "id",
        "Session: 0b9c1d2e-3f40-4152-8637-48495a6b7c8d",
        "Session: 7c8d0b9c-1d2e-4f30-9152-86374849a6b5",
    ),
    of_sessions("a request's id", "id", "request_id=req_8f3kd92ls", "request_id=req_0c7ab41xz"),
    of_sessions(
        "a folder with a random name",
        "id",
        "Scratch space: /tmp/agent-5f0c9a7b3d2e41aa/",
        "Scratch space: /tmp/agent-9b1d77e0c4a2f6d8/",
    ),
    # folders
    of_sessions(
        "another project", "folder", "Working directory: /home/x/parser", "Working directory: /home/x/website"
    ),
    of_sessions(
        "a list of files",
        "folder",
        "Files in the folder:\n- a.py\n- b.py\n- tests/",
        "Files in the folder:\n- a.py\n- b.py\n- c.py\n- tests/",
    ),
    of_sessions("open tabs", "folder", "Open tabs: a.py, b.py", "Open tabs: c.py", responses),
    # tools
    Case(
        "tools in another order", "tools", chat(RULES, [user(TASK)]), chat(RULES, [user(OTHER)], TOOLS[::-1])
    ),
    Case(
        "a tool was added",
        "tools",
        chat(RULES, TALK),
        chat(RULES, [*TALK, *MORE], [*TOOLS[:3], tool("mcp__search"), *TOOLS[3:]]),
    ),
    Case(
        "a tool was removed", "tools", anthropic([RULES], TALK), anthropic([RULES], [*TALK, *MORE], TOOLS[1:])
    ),
    Case(
        "a tool has another description",
        "tools",
        chat(RULES, TALK),
        chat(RULES, [*TALK, *MORE], [*TOOLS[:2], tool("write", "Writes, with new rules."), *TOOLS[3:]]),
    ),
    Case(
        "a schema was changed",
        "tools",
        responses(RULES, [item("user", TASK)]),
        responses(
            RULES,
            [item("user", OTHER)],
            [
                *TOOLS[:1],
                {**TOOLS[1], "schema": {"type": "object", "properties": {"file": {"type": "string"}}}},
                *TOOLS[2:],
            ],
        ),
    ),
    Case("tools are left out of a turn", "tools", chat(RULES, TALK), chat(RULES, [*TALK, *MORE], [])),
    # the system prompt
    Case(
        "another mode",
        "system",
        chat(in_system("You may edit files."), TALK),
        chat(in_system("Only plan; do not edit anything."), [*TALK, *MORE]),
    ),
    Case(
        "notes were added",
        "system",
        chat(RULES, TALK),
        chat(f"{RULES}\n\n# More\nAlways answer in French.", [*TALK, *MORE]),
    ),
    Case(
        "instructions of the project changed",
        "system",
        anthropic([RULES], [blocks(TASK, CONTEXT.format("Use tabs.\n" + words(12, "P ")))]),
        anthropic([RULES], [blocks(OTHER, CONTEXT.format("Use four blanks.\n" + words(12, "P ")))]),
    ),
    Case(
        "a small system prompt was replaced",
        "system",
        chat("You help.", TALK, []),
        chat("You are a pirate.", [*TALK, *MORE], []),
    ),
    Case(
        "reminders moved to the head",
        "system",
        chat(RULES, TALK),
        chat(f"{RULES}\n\nRemember to keep the list of tasks up to date.", [*TALK, *MORE]),
    ),
    # compaction
    Case(
        "compacted into a summary",
        "compaction",
        anthropic([RULES], LONG),
        anthropic([RULES], [blocks(SUMMARY), *MORE]),
    ),
    of_turn(
        "compacted, the task stays",
        "compaction",
        LONG,
        [LONG[0], user("Summary of the conversation so far: the parser was renamed, tests pass."), *MORE],
    ),
    of_turn("the oldest messages were dropped", "compaction", LONG, [*LONG[4:], *MORE]),
    of_turn("messages in the middle were dropped", "compaction", LONG, [LONG[0], *LONG[5:], *MORE]),
    # history
    of_turn("an old result was cleared", "history", LONG, [*_changed(LONG, 2, "[cleared]"), *MORE]),
    of_turn(
        "the user went back",
        "history",
        LONG,
        [*LONG[:4], user("No. Rename it back, and look at the lexer instead.")],
    ),
    of_turn(
        "an answer lost its reasoning",
        "history",
        [*_changed(LONG, 3, "<think>It is in two places, so both must go.</think>It is renamed."), *MORE],
        [*LONG, *MORE, *MORE],
    ),
    of_turn("a result was cut", "history", LONG, [*_changed(LONG, 6, FILE.upper()[:400] + "\n[cut]"), *MORE]),
    # another model, and what the engine did
    of_turn("continued with another model", "model", LONG, [*LONG, *MORE], model="coder-polite"),
    of_turn("evicted", "evicted", LONG, [*LONG, *MORE], cached=0.0),
    of_turn("evicted, but for the head", "evicted", LONG, [*LONG, *MORE], cached=0.2),
    of_turn("the engine was restarted", "restart", LONG, [*LONG, *MORE], cached=0.0, restarts=True),
    of_turn("another replica", "replica", LONG, [*LONG, *MORE], cached=0.0, replica=1),
    Case(
        "another effort",
        "settings",
        chat(RULES, LONG, reasoning_effort="low"),
        chat(RULES, [*LONG, *MORE], reasoning_effort="high"),
        cached=0.0,
    ),
    Case(
        "thinking was switched",
        "settings",
        chat(RULES, LONG, chat_template_kwargs={"enable_thinking": True}),
        chat(RULES, [*LONG, *MORE], chat_template_kwargs={"enable_thinking": False}),
        cached=0.1,
    ),
    of_turn("below the block of a hybrid", "floor", TALK, [*TALK, *MORE], cached=0.0, block=16384),
]

VARIANTS = [
    of_sessions("uptime", "date", "Up since 3 hours ago", "Up since 5 hours ago"),
    of_sessions(
        "jan fmt",
        "date",
        "It's currently Tue Nov 18 10:22:01 UTC 2026",
        "It's currently Wed Nov 19 08:02:44 UTC 2026",
    ),
    of_sessions("de date", "date", "Heute ist der 18. November 2026", "Heute ist der 19. November 2026"),
    of_sessions(
        "tz",
        "date",
        "Current datetime: 2026-11-18 10:22 (Europe/Berlin)",
        "Current datetime: 2026-11-19 07:00 (Europe/Berlin)",
    ),
    of_sessions("year only", "date", "The year is 2025.", "The year is 2026."),
    of_sessions("git short", "git", "On branch main, 2 files modified", "On branch main, 3 files modified"),
    of_sessions("git diff", "git", "Git diff:\n M a.py", "Git diff:\n M a.py\n M b.py"),
    of_sessions(
        "git commit hash", "git", "Latest commit: 1a2b3c4d Fix parser", "Latest commit: 9f9f9f9f Add lexer"
    ),
    of_sessions(
        "repo status md",
        "git",
        "## Repository status\n- branch: main\n- dirty: no",
        "## Repository status\n- branch: main\n- dirty: yes",
    ),
    of_sessions(
        "trace",
        "id",
        "X-Trace-Id: 4bf92f3577b34da6a3ce929d0e0e4736",
        "X-Trace-Id: 00f067aa0ba902b7aaaa929d0e0e4736",
    ),
    of_sessions("nonce", "id", "nonce: k3j4h5", "nonce: z9x8c7"),
    of_sessions("conv", "id", "Conversation ID: conv-7781-ab", "Conversation ID: conv-9912-zz"),
    of_sessions(
        "port", "counter", "The dev server listens on port 41233.", "The dev server listens on port 51877."
    ),
    of_sessions("cwd", "folder", "cwd=/home/a/one", "cwd=/srv/other/two"),
    of_sessions(
        "cwd windows",
        "folder",
        "Current Working Directory (C:\\work\\one) Files",
        "Current Working Directory (C:\\work\\two) Files",
    ),
    of_sessions(
        "tree",
        "folder",
        "Project structure:\n├── src\n└── tests",
        "Project structure:\n├── src\n├── docs\n└── tests",
    ),
    of_sessions("cost", "counter", "Cost so far: $0.12", "Cost so far: $0.31"),
    of_sessions(
        "user mem", "system", "The user likes short answers.", "The user likes long answers with tables."
    ),
    of_sessions("lang", "system", "Answer in English.", "Answer in German."),
    Case(
        "temp in system moved",
        "system",
        chat(in_system("A\nB line that is long enough here"), TALK),
        chat(in_system("B line that is long enough here\nA"), [*TALK, *MORE]),
    ),
    Case(
        "responses history",
        "history",
        responses(
            RULES,
            [
                item("user", TASK),
                item("assistant", "Sure, it is done now."),
                item("user", "And now the tests, all of them please."),
            ],
        ),
        responses(
            RULES,
            [
                item("user", TASK),
                item("assistant", "Sure."),
                item("user", "And now the tests, all of them please."),
                item("assistant", "ok"),
                item("user", "x"),
            ],
        ),
    ),
    Case(
        "responses evict",
        "evicted",
        responses(RULES, [item("user", TASK)]),
        responses(RULES, [item("user", TASK), item("assistant", "Sure."), item("user", "x")]),
        cached=0.0,
    ),
    Case(
        "anth history",
        "history",
        anthropic([RULES], LONG),
        anthropic(
            [RULES],
            [*LONG[:2], {**LONG[2], "content": "The result was cleared"}, *LONG[3:], *MORE],
        ),
    ),
    Case(
        "codex compaction",
        "compaction",
        responses(
            RULES,
            [
                item("user", TASK),
                *[
                    item("assistant" if i % 2 else "user", f"message number {i} with some text to fill it")
                    for i in range(1, 14)
                ],
            ],
        ),
        responses(
            RULES,
            [
                item("user", TASK),
                item(
                    "user",
                    "Somebody else began with this and left a summary of the work: the parser is renamed.",
                ),
            ],
        ),
    ),
    Case(
        "opencode compaction",
        "compaction",
        chat(RULES, LONG),
        chat(
            RULES,
            [
                user("What did we do so far?"),
                said("We renamed the parser."),
                user("Continue if you have next steps"),
            ],
        ),
    ),
    Case(
        "qwen compaction",
        "compaction",
        chat(RULES, LONG),
        chat(
            RULES,
            [
                user("<state_snapshot>\n<overall_goal>rename</overall_goal>\n</state_snapshot>"),
                said("Understood."),
                user("go on"),
            ],
        ),
    ),
    Case(
        "cline truncation",
        "compaction",
        chat(RULES, LONG),
        chat(
            RULES,
            [
                LONG[0],
                said("A part of the conversation was removed to make room for more."),
                *LONG[7:],
                *MORE,
            ],
        ),
    ),
    Case(
        "tool enum",
        "tools",
        chat(RULES, TALK),
        chat(RULES, [*TALK, *MORE], [*TOOLS[:-1], {**TOOLS[-1], "description": "x"}]),
    ),
    Case(
        "mcp added at end",
        "tools",
        anthropic([RULES], [blocks(TASK)]),
        anthropic([RULES], [blocks(OTHER)], [*TOOLS, tool("mcp__a"), tool("mcp__b")]),
    ),
    Case(
        "billing third pos",
        "attribution",
        anthropic([RULES[:40], BILLING.format("1.a", ""), RULES], [blocks(TASK)]),
        anthropic([RULES[:40], BILLING.format("1.b", ""), RULES], [blocks(OTHER)]),
    ),
    Case(
        "date first user chat",
        "date",
        chat(RULES, [user("Today is 2026-11-18.\n" + words(10, "Q ") + "\n" + TASK)]),
        chat(RULES, [user("Today is 2026-11-19.\n" + words(10, "Q ") + "\n" + OTHER)]),
    ),
    Case(
        "git in first user",
        "git",
        chat(RULES, [user("<git_status>\n M a.py\n</git_status>\n" + words(10, "Q ")), user(TASK)]),
        chat(RULES, [user("<git_status>\n M a.py\n M b.py\n</git_status>\n" + words(10, "Q ")), user(OTHER)]),
    ),
    Case(
        "model swap mid", "model", anthropic([RULES], LONG), anthropic([RULES], [*LONG, *MORE]), model="other"
    ),
    Case("plan mode tools", "tools", chat(RULES, TALK), chat(RULES, [*TALK, *MORE], TOOLS[:5])),
    Case(
        "thinking stripped anth",
        "history",
        anthropic(
            [RULES],
            [
                user(TASK),
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "long thoughts about it all here"},
                        {"type": "text", "text": "Done with it."},
                    ],
                },
                user("next please, the second thing on the list"),
            ],
        ),
        anthropic(
            [RULES],
            [
                user(TASK),
                {"role": "assistant", "content": [{"type": "text", "text": "Done with it."}]},
                user("next please, the second thing on the list"),
                said("ok"),
                user("more"),
            ],
        ),
    ),
    Case(
        "reminder inserted",
        "history",
        chat(RULES, LONG),
        chat(
            RULES, [*LONG[:3], user("<system-reminder>todo list empty</system-reminder>"), *LONG[3:], *MORE]
        ),
    ),
    of_sessions(
        "path plain",
        "folder",
        "You are working in /home/me/projects/parser today.",
        "You are working in /srv/other/website today.",
    ),
    of_sessions("home", "folder", "Notes are in ~/notes/one", "Notes are in ~/notes/two"),
    of_sessions("win path", "folder", "Root: C:\\Users\\me\\one", "Root: C:\\Users\\me\\two"),
    of_sessions(
        "date with week",
        "date",
        "Today is Wednesday, week 47, day 322 (2026-11-18).",
        "Today is Thursday, week 47, day 323 (2026-11-19).",
    ),
    of_sessions("tasks left", "counter", "2026-11-19: 5 tasks", "2026-11-19: 6 tasks"),
    of_sessions(
        "text with path",
        "system",
        "Read /etc/rules and be nice.",
        "Read /etc/rules and be very strict with the user.",
    ),
    of_sessions("version", "system", "Version 2.1", "Version 2.2"),
    of_sessions(
        "version in a sentence", "system", "Helper 1.12.3 answers here.", "Helper 1.13.0 answers here."
    ),
    of_sessions(
        "many tokens, written with dots", "counter", "1.204.311 tokens used", "1.310.022 tokens used"
    ),
    of_sessions(
        "commits ahead",
        "git",
        "main is ahead of the server by 4 commits",
        "main is ahead of the server by 5 commits",
    ),
    of_sessions("short state of a branch", "git", "trunk [behind 2]", "trunk [behind 7]"),
    of_sessions("HEAD with a colon", "git", "HEAD: 0a1b2c3, detached", "HEAD: 77d0e1f, detached"),
    of_sessions("day in Chinese", "date", "今天是2025年3月8日", "今天是2025年3月9日"),
    of_sessions("time in Korean", "date", "지금은 9시 20분", "지금은 11시 5분"),
    of_sessions(
        "telemetry", "attribution", "telemetry: channel a, cohort 2", "telemetry: channel b, cohort 7"
    ),
    Case(
        "a tree of files before the task",
        "folder",
        chat(RULES, [user("Here it is:\n├── src\n│   └── a.py\n└── docs\n" + words(9, "P ")), user(TASK)]),
        chat(RULES, [user("Here it is:\n├── src\n│   └── b.py\n└── docs\n" + words(9, "P ")), user(OTHER)]),
    ),
    of_turn(
        "a file joins the list in the first message",
        "folder",
        [user("Open files:\nlib/a.py\nlib/c.py"), *LONG],
        [user("Open files:\nlib/a.py\nlib/b.py\nlib/c.py"), *LONG, *MORE],
    ),
    of_turn(
        "usage in the first message",
        "counter",
        [user("Used: 1,200 of 65,536 (2%)\nShell: none\n" + words(4)), user(TASK)],
        [user("Used: 9,800 of 65,536 (15%)\nShell: none\n" + words(4)), user(TASK), *TALK[1:]],
    ),
    of_turn(
        "a reminder with the date leaves the first message",
        "date",
        [user("<reminder>\nIt is 2026-11-19, 10:20\n</reminder>\n" + TASK), *TALK[1:]],
        [*TALK, said("They pass."), user("<reminder>\nIt is 2026-11-19, 10:31\n</reminder>\nFine.")],
    ),
    Case(
        "notes of the project changed within a conversation",
        "system",
        anthropic([RULES], [user(CONTEXT.format("Use tabs.\n" + words(12, "P "))), *LONG]),
        anthropic([RULES], [user(CONTEXT.format("Use four blanks.\n" + words(12, "P "))), *LONG, *MORE]),
    ),
    of_turn("as many dropped as added", "compaction", LONG, [*LONG[4:], *MORE, *MORE]),
    of_turn(
        "the requests stay, the rest is handed over",
        "compaction",
        LONG,
        [LONG[0], LONG[4], user("Hand-over: the parser was renamed and all tests pass."), user("Go on.")],
    ),
    of_turn(
        "the middle is condensed, with as many messages",
        "compaction",
        LONG,
        [
            LONG[0],
            said("[condensed] parser.py was read and renamed."),
            user("Go on from there."),
            said("I do."),
            *LONG[4:5],
            *LONG[7:],
            *MORE,
        ],
    ),
    of_turn(
        "a summary below a line of its own",
        "compaction",
        LONG,
        [user("The conversation before this was too long.\n\nSummary:\nThe parser was renamed.")],
    ),
]
"""More of the same, in other words."""
