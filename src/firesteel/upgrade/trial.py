"""Measure a candidate against what it would replace: in turns where both run, else one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from firesteel.bench.compare import quality
from firesteel.bench.compare.ab import find_servers, measure_alone, measure_in_turns
from firesteel.bench.compare.runs import answers, compare
from firesteel.bench.load.measure import RunFinished
from firesteel.bench.load.recorded import find_server
from firesteel.bench.load.schedule import RunLimits
from firesteel.bench.results.history import new_run_id, open_history
from firesteel.bench.results.serialize import StoredRun
from firesteel.edge.home import Home
from firesteel.edge.http.answer import Answer
from firesteel.edge.programs.build import BuildProgress
from firesteel.upgrade.verdict import AnswerPolicy, TrialVerdict, judge_trial
from firesteel.values import Value, replace


async def try_beside(
    home: Home, current: str, candidate: str, policy: AnswerPolicy, budget_s: float
) -> AsyncIterator[BuildProgress | TrialVerdict]:
    """Two services that run, measured in turns; the last item is the verdict."""
    servers = await find_servers(home, (current, candidate))
    done: dict[int, StoredRun] = {}
    yield BuildProgress("measuring both in turns", budget_s)
    with open_history(home) as history:
        async for side, event in measure_in_turns(history, servers, limits=RunLimits(budget_s)):
            if isinstance(event, RunFinished):
                done[side] = StoredRun(event.run, event.samples)
    comparison = compare(done[0], done[1], is_interleaved=True)
    asked = None
    if policy == "as_good" and (comparison.answers is None or comparison.answers.changed):
        yield BuildProgress("asking both the same questions", budget_s)
        pairs = [pair async for pair in quality.ask_both(servers, budget_s)]
        asked = quality.compare_quality((current, candidate), pairs)
    yield judge_trial(comparison, policy, asked)


class MeasuredService(Value):
    """One service, measured by itself, to be held against another that gets the same prompts."""

    run: StoredRun
    answers: Sequence[Answer]
    salt: str


async def measure_service(
    home: Home, name: str, policy: AnswerPolicy, budget_s: float, like: MeasuredService | None = None
) -> MeasuredService:
    server = await find_server(home, name)
    salt = like.salt if like else new_run_id()
    found: StoredRun | None = None
    with open_history(home) as history:
        async for event in measure_alone(history, server, salt, RunLimits(budget_s / 2)):
            if isinstance(event, RunFinished):
                found = StoredRun(event.run, event.samples)
    assert found is not None, "a measurement ends with its run"
    asked = await quality.ask_alone(server, budget_s / 2) if policy == "as_good" else ()
    return MeasuredService(found, asked, salt)


def judge_in_sequence(first: MeasuredService, second: MeasuredService, policy: AnswerPolicy) -> TrialVerdict:
    """Runs at different times differ by themselves, so a difference must be larger to count."""
    comparison = compare(first.run, second.run)
    comparison = replace(comparison, answers=answers(first.run, second.run))
    pairs = quality.paired(first.answers, second.answers)
    asked = quality.compare_quality(("before", "after"), pairs) if pairs else None
    return judge_trial(comparison, policy, asked)
