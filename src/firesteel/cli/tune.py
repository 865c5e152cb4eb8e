"""`firesteel tune MODEL`"""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import click
from rich.console import Group, RenderableType

from firesteel import engines, library
from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.load.measure import RunProgress
from firesteel.bench.results.history import new_run_id, open_history
from firesteel.bench.tune import journal as journals
from firesteel.bench.tune.candidate import CandidateRunner
from firesteel.bench.tune.events import Event, SpacePlanned, TrialFinished, TrialStarted, TuneResult
from firesteel.bench.tune.journal import Journal, RunningBefore, Trial, TuneOptions
from firesteel.bench.tune.proposals import PlanningContext
from firesteel.bench.tune.space import make_search_space
from firesteel.bench.tune.tune import TuneEnvironment, tune
from firesteel.cli.options import bench, common
from firesteel.cli.output.documents import DraftingJson, RefusedSettingJson, TrialJson, TuneJson
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import err, out, table
from firesteel.cli.up import command as up_command
from firesteel.edge.files.measured_memory import read_measured_memory
from firesteel.edge.host.process import uptime
from firesteel.errors import UsageError
from firesteel.launch import Ask
from firesteel.rules import Proposal
from firesteel.run import LOOPBACK, PhaseDone, PhaseProgress, Service, ServiceSpec

_QUIET_S = 10.0
_ROLES = {"search": "", "confirm": "best, again", "twin": "its twin", "start": "how it starts"}


@click.command("tune")
@click.argument("model")
@click.option("--goal", type=click.Choice(["latency", "throughput"]), default="latency", show_default=True)
@click.option("--text", callback=bench.several(bench.kind), metavar="KIND", help="prose, code, json, math.")
@click.option("--users", type=click.IntRange(1, 1024), help="Requests at once that it is to be good for.")
@click.option("--context", type=click.IntRange(1), help="Tokens each request may use.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to serve on while it is measured.")
@click.option("--budget", default="2h", callback=bench.one(bench.seconds), metavar="TIME", show_default=True)
@click.option(
    "--max-runs", type=click.IntRange(2, 1000), default=40, show_default=True, help="Starts in all."
)
@click.option("--only", multiple=True, metavar="KNOB", help="Turn this one alone; may be given again.")
@click.option("--depth", default="512", callback=bench.one(bench.tokens), help="Tokens of a prompt.")
@click.option("--answer", default="128", callback=bench.one(bench.tokens), help="Tokens of an answer.")
@click.option("--thinking", type=click.Choice(["on", "off"]), help="Pin it; else as the server has it.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="Of texts and order.")
@click.option("--resume", is_flag=True, help="Go on with a tune that was cut off.")
@click.option("--anew", is_flag=True, help="Leave one that was cut off, and begin another.")
@click.option("--dry-run", is_flag=True, help="Print what would be tried and what never, and start nothing.")
@common.json_option
def command(
    model: str, resume: bool, anew: bool, dry_run: bool, as_json: bool, **asked: Any
) -> int:  # fmt: skip
    """Find better settings for MODEL by trying them: each is started, verified and measured.

    Searches speculation, batch sizes, cache types and kernels, as far as this engine has them, they fit and
    no rule stops them. What ran before runs again at the end; if a setting really is better, it is
    the one that runs, and it is written as a recipe, MODEL-tuned.

    \b
    Exits 0  over: a better one was found, or there is none
          1  the setting as it is could not be measured
    """
    if dry_run and as_json:
        raise UsageError("what would be tried is for people", next=f"firesteel tune {model} --dry-run")
    journal = _journal(model, resume, anew or dry_run, asked)
    if dry_run:
        return _show_space(journal)
    with open_history(library.home()) as history:
        hands = CandidateRunner(library.home(), history, library.host)
        place = TuneEnvironment(
            library.home(), lambda ask: library.propose(ask, library.host()), _around, hands
        )
        done = _run(tune(journal, place), journal)
    if as_json:
        common.print_json(document(done))
    else:
        out.print(view(done))
    return 0


# --- words -> journal ---


def _journal(model: str, resume: bool, anew: bool, asked: dict[str, Any]) -> Journal:
    wish = TuneOptions(
        asked["goal"], asked["text"], asked["users"], asked["budget"], asked["max_runs"], asked["depth"],
        asked["answer"], asked["seed"], {"on": True, "off": False}.get(asked["thinking"]), asked["only"],
    )  # fmt: skip
    chosen, running = _chosen(model, asked)
    kept = journals.unfinished(library.home(), chosen.name)
    if resume:
        return _resumed(kept, chosen.name, wish)
    if kept and not anew:
        raise UsageError(
            f"tune {kept.id} of {chosen.name} was cut off after {len(kept.trials)} runs",
            next=f"firesteel tune {model} --resume, or --anew for another one",
        )
    if kept and anew:
        kept.ended = "left"
        journals.write(library.home(), kept)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    ask = Ask(chosen.recipe.name if chosen.recipe else model, asked["context"], asked["users"], asked["port"])
    if kept and not kept.is_restored:  # what runs now is a candidate that a killed tune left
        ask, before = replace(kept.ask, context=ask.context or kept.ask.context), kept.before
    else:
        ask, before = _as_it_runs(ask, running)
    return Journal(new_run_id(), began, chosen.name, ask, wish, before)


def _as_it_runs(ask: Ask, running: Service | None) -> tuple[Ask, RunningBefore | None]:
    """The setting as it is, with the words of the `up` that started it."""
    if running is None:
        return ask, None
    given = _typed_before(running.spec)
    was = Ask(
        ask.model, given["context"], given["users"], urlsplit(running.spec.url).port,
        engine=given["engine"], version=given["version"],
    )  # fmt: skip
    typed_words = tuple(shlex.split(running.spec.again)[2:])
    before = RunningBefore(typed_words, was, given["listen"], given["trusts_code"], given["at_boot"])
    sizes = (ask.context or was.context, ask.users or was.users, ask.port or was.port)
    return replace(was, context=sizes[0], users=sizes[1], port=sizes[2]), before


def _chosen(model: str, asked: dict[str, Any]) -> tuple[Proposal, Service | None]:
    """What runs of it, else the best way to serve it."""
    ways = library.propose(Ask(model, asked["context"], asked["users"], asked["port"]), library.host())
    alive = {each.name: each for each in library.services() if each.phase not in ("dead", "stopping")}
    chosen = next((way for way in ways if way.name in alive), ways[0])
    if chosen.recipe is None:
        raise UsageError(
            f"{model} is in no catalog, and what tune finds becomes a recipe there",
            next="firesteel models, for what is",
        )
    return chosen, alive.get(chosen.name)


def _resumed(kept: Journal | None, name: str, wish: TuneOptions) -> Journal:
    """With what was wished for then; time and runs may be given anew."""
    if kept is None:
        raise UsageError(f"no tune of {name} was cut off", next=f"firesteel tune {name}")
    kept.options = replace(kept.options, budget_s=wish.budget_s, max_runs=wish.max_runs)
    return kept


def _typed_before(spec: ServiceSpec) -> dict[str, Any]:
    """The words of the `up` that started it."""
    typed_words = shlex.split(spec.again)[2:]
    try:
        return dict(up_command.make_context("up", typed_words, resilient_parsing=True).params)
    except click.ClickException:
        return {
            "context": None, "users": None, "engine": None, "version": None, "listen": LOOPBACK,
            "trusts_code": False, "at_boot": False,
        }  # fmt: skip


def _around() -> PlanningContext:
    known, home = library.catalog(), library.home()
    return PlanningContext(known.images, read_measured_memory(home), tuple(known.recipes.values()))


def _show_space(journal: Journal) -> int:
    """What would be tried, and what never."""
    base = library.propose(journal.ask, library.host())[0]
    users = journal.options.users or engines.served(base.plan.launch).users or 1
    space = make_search_space(base, journal.options.goal, users, _around())
    rows = [
        (knob.name, ", ".join(knob.labels), knob.labels[at], knob.why)
        for knob, at in zip(space.knobs, space.start, strict=True)
    ]
    out.print(table(("knob", "choices", "as it is", "why"), rows))
    never = [(_said(changes), why) for changes, why in space.refused()]
    if never:
        out.print(table(("never tried", "why"), never))
    return 0


# --- the run ---


def _run(events: AsyncIterator[Event], journal: Journal) -> TuneResult:
    try:
        return asyncio.run(_followed(events))
    except (asyncio.CancelledError, KeyboardInterrupt):
        again = typed(f"firesteel tune {journal.ask.model} --resume")
        ran = "what ran before runs again" if journal.before else "nothing of it runs any more"
        err.print(f"{ran}; to go on: {again}", markup=False)  # click keeps no words of an interruption
        raise KeyboardInterrupt from None


async def _followed(events: AsyncIterator[Event]) -> TuneResult:
    """On stderr; whatever ends us puts back what ran before, like Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    told: list[bool] = []

    def cancel_once() -> None:  # an impatient second Ctrl-C must not cut the putting back short
        if not told:
            told.append(True)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, cancel_once)
    last, quiet = None, _Seldom()
    async for event in events:
        _tell(event, quiet)
        last = event if isinstance(event, TuneResult) else last
    assert last is not None
    return last


class _Seldom:
    """A moving line becomes a line every ten seconds."""

    def __init__(self) -> None:
        self.at = -_QUIET_S

    def say(self, what: str) -> None:
        if uptime() - self.at >= _QUIET_S:
            self.at = uptime()
            err.print(what, markup=False)


def _tell(event: Event, quiet: _Seldom) -> None:
    match event:
        case SpacePlanned():
            err.print(f"{'space':<7} {_space_words(event)}", markup=False)
        case TrialStarted():
            role = f" ({_ROLES[event.role]})" if event.role != "search" else ""
            err.print(f"run {event.number:<3} {_said(event.changes)}{role}", markup=False)
        case TrialFinished():
            err.print(f"        {_outcome(event.trial)}", markup=False)
        case RunProgress():
            quiet.say(f"        {event.text} ...")
        case PhaseProgress():
            quiet.say(f"        {event.phase}: {event.text} ...")
        case PhaseDone():
            pass
        case _:
            pass


def _space_words(event: SpacePlanned) -> str:
    names = ", ".join(f"{knob.name} ({len(knob.choices)})" for knob in event.space.knobs)
    never = f"; {len(event.refused)} changes are never tried" if event.refused else ""
    return f"{names or 'nothing to turn'}: {event.space.size} settings{never}"


def _said(changes: dict[str, str]) -> str:
    return ", ".join(f"{knob} {label}" for knob, label in changes.items()) or "as it is"


def _outcome(trial: Trial) -> str:
    if trial.failed:
        return f"out: {trial.failed}"
    found = mean_interval(trial.values)
    if found is None:
        return f"up in {trial.start_s or 0:.1f} s"
    end = ", clearly beaten" if trial.was_beaten else ""
    return f"{found.value:.1f} tok/s \u00b1{found.half_width:.1%}{end}"


# --- what it came to ---


def view(done: TuneResult) -> RenderableType:
    rows = [
        (str(at), _said(_changed(done, trial)), _ROLES[trial.role], _outcome(trial), trial.run or "")
        for at, trial in enumerate(done.journal.trials, 1)
    ]
    parts: list[RenderableType] = [table(("run", "setting", "", "came to", "history"), rows)]
    refused = [(_said(changes), why) for changes, why in done.space.refused()]
    if refused:
        parts += ["", table(("never tried", "why"), refused)]
    if done.advice:
        parts += ["", *done.advice]
    parts += ["", f"{done.text}", *done.notes]
    if done.recipe:
        parts.append(f"recipe {done.recipe}: {done.recipe_path}")
    if done.running:
        parts.append(f"{done.running} runs, {'with the better setting' if done.is_better else 'as it was'}")
    parts.append(typed(f"\nnext: {_next(done)}"))
    return Group(*parts)


def _next(done: TuneResult) -> str:
    if done.running:
        return f"firesteel bench {done.running}"
    return f"firesteel up {done.recipe or done.journal.name}"


def _changed(done: TuneResult, trial: Trial) -> dict[str, str]:
    return done.space.changes(done.space.setting(trial.labels))


def document(done: TuneResult) -> TuneJson:
    journal = done.journal
    return TuneJson(
        id=journal.id, model=journal.name, goal=journal.options.goal, users=journal.options.users,
        settings_in_all=done.space.size, is_better=done.is_better, changes=done.changes, words=done.text,
        ratio=done.difference.ratio, ratio_low=done.difference.low, ratio_high=done.difference.high,
        verdict=done.difference.verdict, recipe=done.recipe,
        recipe_path=str(done.recipe_path) if done.recipe_path else None, running=done.running,
        trials=[_trial_json(done, each) for each in journal.trials],
        refused=[RefusedSettingJson(changes=changes, why=why) for changes, why in done.space.refused()],
        drafting=[
            DraftingJson(
                text=row.text, users=row.users,
                drafting_tps=row.drafting_tokens_per_s, plain_tps=row.plain_tokens_per_s,
                ratio=row.difference.ratio, verdict=row.difference.verdict,
            )
            for row in done.drafts
        ],
        advice=list(done.advice), notes=list(done.notes),
    )  # fmt: skip


def _trial_json(done: TuneResult, trial: Trial) -> TrialJson:
    found = mean_interval(trial.values)
    return TrialJson(
        role=trial.role, changes=_changed(done, trial), run=trial.run, failed=trial.failed,
        tokens_per_s=found.value if found else None, low=found.low if found else None,
        high=found.high if found else None, rounds=len(trial.values), was_beaten=trial.was_beaten,
        start_s=trial.start_s, took_s=trial.took_s,
    )  # fmt: skip
