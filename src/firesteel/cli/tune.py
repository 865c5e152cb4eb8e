"""`firesteel tune MODEL`: the settings that it searches, its trials and its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group, RenderableType

from firesteel.cli.options import (
    complete_recipe,
    json_option,
    one,
    print_json,
    runtime_options,
    seconds,
    seed_option,
    text_option,
    thinking_option,
    tokens,
)
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import SlowLines, told_on_interrupt
from firesteel.cli.output.show import err, out, table
from firesteel.edge.host.signals import cancel_on_signals
from firesteel.launch import Ask
from firesteel.library import documents
from firesteel.library.tune import (
    PhaseProgress,
    RunProgress,
    SpacePlanned,
    TrialFinished,
    TrialStarted,
    TuneOptions,
    TuneResult,
    begin_search,
    interval_of,
    plan_search,
    run_search,
)

if TYPE_CHECKING:
    from firesteel.bench.tune.journal import Trial
    from firesteel.bench.tune.outcome import Event
    from firesteel.bench.tune.search import SearchSpace


@click.command("tune")
@click.argument("model", shell_complete=complete_recipe)
@click.option(
    "--goal",
    type=click.Choice(["latency", "throughput"]),
    default="latency",
    show_default=True,
    help="Make one user's answers fast, or all users' together.",
)
@text_option()
@click.option("--users", type=click.IntRange(1, 1024), help="Tune for this many requests at once.")
@click.option("--context", type=click.IntRange(1), help="Allow each request this many tokens.")
@click.option("--port", type=click.IntRange(1, 65535), help="Serve on this port while measuring.")
@runtime_options
@click.option(
    "--budget",
    default="2h",
    callback=one(seconds),
    metavar="TIME",
    show_default=True,
    help="Search for this long at most.",
)
@click.option(
    "--max-runs",
    type=click.IntRange(2, 1000),
    default=40,
    show_default=True,
    help="Start the engine at most this often.",
)
@click.option("--only", multiple=True, metavar="KNOB", help="Change only this setting; repeatable.")
@click.option(
    "--depth",
    default="512",
    callback=one(tokens),
    show_default=True,
    help="Send prompts of this many tokens.",
)
@click.option(
    "--answer",
    default="128",
    callback=one(tokens),
    show_default=True,
    help="Ask for answers of this many tokens.",
)
@thinking_option
@seed_option()
@click.option("--resume", is_flag=True, help="Continue a search that was interrupted.")
@click.option("--anew", is_flag=True, help="Drop an interrupted search and begin another.")
@click.option("--dry-run", is_flag=True, help="Print what would and would not be tried, and start nothing.")
@json_option
def command(model: str, resume: bool, anew: bool, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Search for better settings of MODEL: each candidate is started, verified and measured.

    Tries speculative decoding, batch sizes, cache types and kernels, if the engine has them, they fit and no
    rule stops them. A setting that is really better is left running and written as a recipe, MODEL-tuned;
    otherwise what ran before runs again.

    \b
    Exits 0  finished, whether or not something better was found
          1  the current setting could not be measured
    """
    wish = TuneOptions(
        options["goal"], options["text"], options["users"], options["budget"], options["max_runs"],
        options["depth"], options["answer"], options["seed"],
        {"on": True, "off": False}.get(options["thinking"]), options["only"],
    )  # fmt: skip
    ask = Ask(
        model, options["context"], options["users"], options["port"],
        runtime=options["runtime"], engine_path=options["engine_path"],
    )  # fmt: skip
    if dry_run:
        name, space = plan_search(ask, wish)
        if as_json:
            print_json(documents.bench.space_json(name, space))
        else:
            out.print(space_view(space))
        return
    journal = begin_search(ask, wish, resume=resume, anew=anew)
    state = "what ran before runs again" if journal.before else "nothing was left running"
    again = f"firesteel tune {journal.ask.model} --resume"
    with told_on_interrupt(f"{state}; to continue: {again}"):
        result = asyncio.run(_followed(run_search(journal)))
    if as_json:
        print_json(documents.bench.tune_json(result))
    else:
        out.print(result_view(result))


async def _followed(events: AsyncIterator[Event]) -> TuneResult:
    """Shows progress on stderr. A signal ends the search like Ctrl-C, and what ran before runs again."""
    cancel_on_signals()
    result, lines = None, SlowLines()
    async for event in events:
        match event:
            case SpacePlanned():
                err.print(f"{'space':<7} {space_text(event)}")
            case TrialStarted():
                role = f" ({ROLES[event.role]})" if event.role != "search" else ""
                err.print(f"run {event.number:<3} {setting_text(event.changes)}{role}")
            case TrialFinished():
                err.print(f"        {outcome(event.trial)}")
            case RunProgress():
                lines.print(f"        {event.text} ...")
            case PhaseProgress():
                lines.print(f"        {event.phase}: {event.text} ...")
            case TuneResult():
                result = event
            case _:
                pass
    assert result is not None
    return result


# --- as text ---


ROLES = {"search": "", "confirm": "best, again", "twin": "drafting switched", "start": "start-up time"}
"""What a trial is for."""


def setting_text(changes: Mapping[str, str]) -> str:
    return ", ".join(f"{knob} {label}" for knob, label in changes.items()) or "as it is"


def space_text(event: SpacePlanned) -> str:
    names = ", ".join(f"{knob.name} ({len(knob.choices)})" for knob in event.space.knobs)
    refused = f"; {len(event.refused)} changes will not be tried" if event.refused else ""
    return f"{names or 'nothing to change'}: {event.space.size} settings{refused}"


def space_view(space: SearchSpace) -> RenderableType:
    """What would be tried, and what would not."""
    rows = [
        (knob.name, ", ".join(knob.labels), knob.labels[index], knob.why)
        for knob, index in zip(space.knobs, space.start, strict=True)
    ]
    return Group(table(("setting", "choices", "now", "why"), rows), *_refused_view(space))


def _refused_view(space: SearchSpace) -> list[RenderableType]:
    refused = [(setting_text(changes), why) for changes, why in space.refused()]
    return ["", table(("not tried", "why"), refused)] if refused else []


def outcome(trial: Trial) -> str:
    if trial.failed:
        return f"failed: {trial.failed}"
    if trial.same_as is not None:
        return f"the same setting as run {trial.same_as}"
    interval = interval_of(trial)
    if interval is None:
        return f"up in {trial.start_s or 0:.1f} s"
    end = ", clearly slower than the best" if trial.was_beaten else ""
    return f"{interval.value:.1f} tok/s \u00b1{interval.half_width:.1%}{end}"


def result_view(result: TuneResult) -> RenderableType:
    journal, space = result.journal, result.space
    rows = [
        (
            str(number),
            setting_text(space.changes(space.setting(trial.labels))),
            ROLES[trial.role],
            outcome(trial),
            trial.run or "",
        )
        for number, trial in enumerate(journal.trials, 1)
    ]
    parts: list[RenderableType] = [table(("run", "setting", "", "result", "history"), rows)]
    parts += _refused_view(space)
    if result.advice:
        parts += ["", *result.advice]
    parts += ["", result.text, *result.notes]
    if result.recipe:
        parts.append(f"recipe {result.recipe}: {result.recipe_path}")
    if result.running:
        setting = "with the better setting" if result.is_better else "as it was"
        parts.append(f"{result.running} runs, {setting}")
    next_ = f"bench {result.running}" if result.running else f"up {result.recipe or journal.name}"
    parts.append(typed(f"\nnext: firesteel {next_}"))
    return Group(*parts)
