"""`verify --agent`: at how many tools and turns calls stop being parsed, and what becomes of the number.

The servers are scripted ones (`tests.run.adversary.speaker`), with a threshold at which they break a call: no
figure here says anything about a model or an engine.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.run.adversary.change import Call, Change, Json, parts
from tests.run.adversary.server import Adversary, serving
from tests.run.adversary.speaker import Speaker

from firesteel.catalog.catalog import shipped
from firesteel.cli.output.show import plan_view
from firesteel.edge.home import Home
from firesteel.edge.records import read_measured_calls, save_measured_calls
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask
from firesteel.planner.choose import Use, choose
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.propose import AGENT_TOOLS, MeasuredCalls
from firesteel.run.verify import agent
from firesteel.run.verify.expected import Expected
from firesteel.run.verify.verify import Verification, VerifyBudget, VerifyTarget, target_at_url, verify
from firesteel.values import replace
from firesteel.workspace import Workspace

CALLS = json.loads((Path(__file__).parents[1] / "gateway" / "agents.json").read_text())


def turns(request: Json) -> int:
    return sum(message["role"] == "tool" for message in request["messages"])


def tools(request: Json) -> int:
    return len(request.get("tools") or ())


def called(chunk: Json) -> list[Json]:
    return [call for delta in parts(chunk) for call in delta.get("tool_calls") or ()]


def as_text(is_broken: Callable[[Json], bool]) -> Change:
    """What a server does whose parser gives up: the model's own words, and `stop`."""

    def chunks(found: list[Json], call: Call) -> list[Json]:
        if not is_broken(call.request) or not any(called(chunk) for chunk in found):
            return found
        for chunk in found:
            for choice in chunk.get("choices", ()):
                if pieces := choice["delta"].pop("tool_calls", None):
                    choice["delta"]["content"] = f"<tool_call>{json.dumps(pieces[0]['function'])}"
                choice["finish_reason"] = choice["finish_reason"] and "stop"
        return found

    return Change(chunks=chunks)


def cut(is_broken: Callable[[Json], bool]) -> Change:
    """Half of the arguments of a call."""

    def chunks(found: list[Json], call: Call) -> list[Json]:
        if is_broken(call.request):
            for piece in [piece for chunk in found for piece in called(chunk)][-1:]:
                piece["function"]["arguments"] = ""
        return found

    return Change(chunks=chunks)


async def asked(
    change: Change | None = None, expected: Expected | None = None, context: int = 131_072
) -> tuple[Verification, list[Json]]:
    """The verification, and the requests with tools that the server got."""
    adversary = Adversary(Speaker("llamacpp", context=context), change or Change(), time_scale=0.002)
    async with serving(adversary) as url:
        target = await target_at_url(url)
        items = verify(
            url,
            target.model,
            expected or target.expected,
            as_agent=True,
            seed=4242,
            budget=VerifyBudget(3600, 600),
        )
        found = [item async for item in items if isinstance(item, Verification)][-1]
    return found, [request for request in adversary.asked if tools(request)]


def observed(found: Verification, name: str) -> str:
    return next(check.observed for check in found.checks if check.name == name)


async def test_an_honest_server_parses_all() -> None:
    found, requests = await asked()
    assert found.calls == MeasuredCalls(tools=60, turns=40)
    assert {1, 8, 24, 60} <= set(map(tools, requests)) and max(map(turns, requests)) == 40
    assert observed(found, "agent results") == "long, wrong, empty results are taken"
    assert found.is_good


@pytest.mark.parametrize(("most", "fails"), [(0, 1), (1, 2), (23, 24), (36, 37), (59, 60)])
async def test_the_number_of_tools_at_which_calls_come_as_text(most: int, fails: int) -> None:
    found, requests = await asked(as_text(lambda request: tools(request) > most and turns(request) == 0))
    assert found.calls and (found.calls.tools, found.calls.tools_fail) == (most, fails)
    assert "the call came as text" in observed(found, "agent tools")
    assert len(requests) < 60
    assert found.calls.fails_agents is (fails <= AGENT_TOOLS)


@pytest.mark.parametrize("most", [3, 12, 38])
async def test_the_turn_from_which_arguments_are_cut(most: int) -> None:
    found, _ = await asked(cut(lambda request: turns(request) > most))
    assert found.calls and (found.calls.turns, found.calls.turns_fail) == (most, most + 1)
    assert "arguments are not JSON" in observed(found, "agent turns")


async def test_a_refusal_is_said_in_the_words_of_the_server() -> None:
    found, _ = await asked(Change(status=lambda call: 500 if tools(call.request) > 30 else 200))
    assert found.calls and (found.calls.tools, found.calls.tools_fail) == (30, 31)
    assert "HTTP 500" in observed(found, "agent tools")


async def test_what_does_not_fit_the_context_is_not_asked_and_not_a_failure() -> None:
    found, requests = await asked(context=12_000)
    assert found.calls and found.calls.tools == 24 and found.calls.tools_fail is None
    assert max(map(tools, requests)) == 24
    assert "more would not fit" in observed(found, "agent tools")
    assert not found.calls.fails_agents


async def test_a_result_that_breaks_the_next_call() -> None:
    def is_empty(request: Json) -> bool:
        return request["messages"][-1]["role"] == "tool" and not request["messages"][-1]["content"]

    found, _ = await asked(Change(status=lambda call: 500 if is_empty(call.request) else 200))
    assert observed(found, "agent results").startswith("empty: the engine answered HTTP 500")


async def test_a_service_that_drafts_says_so() -> None:
    expected = Expected(engine="llamacpp", parameters=8_000_000_000, context=131_072, drafts="eagle3")
    found, _ = await asked(as_text(lambda request: tools(request) > 8), expected)
    assert found.calls and found.calls.tools_fail == 9
    assert observed(found, "agent tools").endswith("(drafted by eagle3)")


# --- what becomes of the number ---

GB10 = idle_host(hardware("gb10"))
USE = Use("agent", 30_000, "speed")


def test_no_agent_that_was_recorded_sends_more_tools() -> None:
    assert max(len(found["tools"]) for found in CALLS.values()) <= AGENT_TOOLS


async def test_of_a_service_it_is_recorded(tmp_path: Path) -> None:
    kept: list[MeasuredCalls] = []
    async with serving(Adversary(Speaker("llamacpp", context=131_072), Change(), time_scale=0.002)) as url:
        target = replace(await target_at_url(url), on_calls=kept.append)
        assert isinstance(target, VerifyTarget)
        async for _ in target.verify(as_agent=True):
            pass
    assert kept == [MeasuredCalls(tools=60, turns=40)]


def test_the_file_keeps_the_last_figure_of_each_launch(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = MeasuredCalls(tools=8, tools_fail=9, turns=40, key="a" * 32, seen="2026-11-19")
    other = replace(first, key="b" * 32)
    for row in (first, other, replace(first, tools=60, tools_fail=None)):
        save_measured_calls(home, row)
    assert [row.tools for row in read_measured_calls(home).values()] == [8, 60]
    path = tmp_path / "measured_calls.json"
    rows: list[Any] = json.loads(path.read_text())
    for field, value in (("tools", -1), ("tools", "8"), ("seen", "today"), ("key", "x")):
        path.write_text(json.dumps([rows[0], {**rows[1], field: value}]))
        assert len(read_measured_calls(home)) == 1
    path.write_text("{")
    assert read_measured_calls(home) == {}


def test_a_measured_failure_lowers_a_rank_and_what_is_unknown_never() -> None:
    before = choose(shipped(), GB10, USE)
    key = launch_key(before.best.proposal.plan.launch)
    fails = MeasuredCalls(tools=8, tools_fail=9, turns=40, key=key, seen="2026-11-19")
    after = choose(shipped(), GB10, USE, calls={key: fails})
    assert after.best.name != before.best.name
    for known in (replace(fails, tools=60, tools_fail=None), replace(fails, tools=30, tools_fail=31)):
        same = choose(shipped(), GB10, USE, calls={key: known})
        assert same.best.name == before.best.name
        figure = next(figure for figure in same.best.figures if figure.what == "tool calls")
        assert figure.value == f"{known.text}" and figure.basis == "measured here on 2026-11-19"
    others = choose(shipped(), GB10, replace(USE, who="person"), calls={key: fails})
    assert not [figure for figure in others.best.figures if figure.what == "tool calls"]


def test_plan_shows_what_was_measured_here_and_nothing_else(tmp_path: Path) -> None:
    workspace = Workspace(Home(tmp_path))
    (plain, *_) = workspace.propose(Ask("smollm2"), workspace.host())
    assert plain.calls is None and not any("tool calls" in note for note in plain.plan.notes)
    key = launch_key(plain.plan.launch)
    save_measured_calls(workspace.home, MeasuredCalls(36, 37, 40, key=key, seen="2026-11-19"))
    again = Workspace(Home(tmp_path))
    (known, *_) = again.propose(Ask("smollm2"), again.host())
    said = "tool calls: parsed with up to 36 tools (not 37) and 40 turns; measured here on 2026-11-19"
    assert said in known.plan.notes
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(plan_view(known, ()))
    assert said in console.export_text()
    (elsewhere, *_) = again.propose(Ask("smollm2"), again.host("gb10"))
    assert elsewhere.calls is None


def test_schemas_and_conversations_are_as_agents_send_them() -> None:
    sent = agent.tools(60)
    assert len({tool["function"]["name"] for tool in sent}) == 60
    assert 700 < len(json.dumps(sent)) / 60 < 1200
    messages = agent.conversation(40)
    assert [message["role"] for message in messages[:4]] == ["system", "user", "assistant", "tool"]
    results = {message["content"][:9] for message in messages if message["role"] == "tool"}
    assert {"", "Traceback"} <= results
