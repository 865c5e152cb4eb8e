"""`firesteel compare`"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from firesteel.bench.compare.against import (
    PlanComparison,
    PublishedComparison,
    against_plan,
    against_published,
)
from firesteel.bench.compare.runs import AnswerComparison, Comparison, compare, were_interleaved
from firesteel.bench.results import other_tools
from firesteel.bench.results.history import History
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, MeasuredFigure, Point
from firesteel.cli.history import opened, read_file
from firesteel.cli.options import common
from firesteel.cli.options.bench import count, kind, several, tokens
from firesteel.cli.output.documents import (
    AgainstPlanJson,
    AgainstPublishedJson,
    AnswersJson,
    BandJson,
    BesideJson,
    ComparedRowJson,
    DifferenceJson,
    FigureJson,
    HeldJson,
    PointJson,
    RunComparisonJson,
    WhyNotJson,
)
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import out, table
from firesteel.errors import UsageError
from firesteel.planner.speed import published
from firesteel.planner.speed.constants import constants
from firesteel.printable import printable


@click.command("compare")
@click.argument("runs", nargs=-1, metavar="RUN [RUN]")
@click.option("--plan", "is_plan", is_flag=True, help="A run against what was planned for it.")
@click.option("--published", is_flag=True, help="A run against published ones of the same model and engine.")
@click.option("--ab", is_flag=True, help="Both RUNs are addresses: measure them now, in turns.")
@click.option("--model", help="With --ab: which model, where a server has several.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME", help="With --ab: the load, as for `bench`.")
@click.option("--users", callback=several(count), metavar="1,4", help="With --ab: streams at once.")
@click.option("--depth", callback=several(tokens), metavar="1k", help="With --ab: tokens of each prompt.")
@click.option("--answer", callback=several(tokens), metavar="N", help="With --ab: tokens of each answer.")
@click.option("--text", callback=several(kind), metavar="KIND", help="With --ab: prose, code, json, math.")
@click.option("--budget", default="4m", metavar="TIME", help="With --ab: for both together.")
@click.option("--precision", default="2%", help="With --ab: stop when intervals are so narrow.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="With --ab: of the prompts.")
@click.option("--despite", multiple=True, metavar="SETTING", help="It may differ: it is what is compared.")
@common.json_option
def command(
    runs: tuple[str, ...], is_plan: bool, published: bool, ab: bool, despite: tuple[str, ...], as_json: bool,
    **asked: Any,
) -> int:  # fmt: skip
    """Is the difference real? The second RUN against the first.

    RUN is an id of `firesteel history`, the beginning of one, `last`, `last~1`, or a file: one of ours, of
    llama-benchy, of `vllm bench`. With --ab both are addresses (http://host:8000/v1) or running services.

    \b
    Exits 0  compared
          1  they cannot be compared, and why
    """
    _insist(runs, is_plan, published, ab)
    if ab:
        return _show(_measured_ab(runs[0], runs[1], despite, asked), as_json)
    with opened() as history:
        kept = [find(history, word) for word in runs]
    if is_plan:
        return _show_plan(kept[0].run, as_json)
    if published:
        return _show_published(kept[0].run, as_json)
    return _show(compare(kept[0], kept[1], despite=despite, is_interleaved=were_interleaved(*kept)), as_json)


def _insist(runs: tuple[str, ...], is_plan: bool, published: bool, ab: bool) -> None:
    if is_plan + published + ab > 1:
        raise UsageError("one of --plan, --published and --ab at a time", next="firesteel compare --help")
    wanted = 1 if is_plan or published else 2
    if len(runs) != wanted:
        example = "firesteel compare last --plan" if wanted == 1 else "firesteel compare last~1 last"
        raise UsageError(f"{wanted} RUN{'s' if wanted > 1 else ''} here, not {len(runs)}", next=example)


def find(history: History, word: str) -> StoredRun:
    """A file is one that has a `.` or a `/` in its name and is there; all else is in the history."""
    path = Path(word)
    if ("/" in word or "." in word) and len(word) < 4096 and "\0" not in word and path.exists():
        return other_tools.read(read_file(path), word)
    return history.run(word)


# --- A/B ---


def _measured_ab(first: str, second: str, despite: Sequence[str], asked: dict[str, Any]) -> Comparison:
    from firesteel.cli.ab import measured_ab  # it brings the client that measures

    with opened() as history:
        one, other = asyncio.run(measured_ab(history, first, second, asked))
    return compare(one, other, despite=despite, is_interleaved=True)


# --- two runs ---


def _show(found: Comparison, as_json: bool) -> int:
    if as_json:
        common.print_json(compared_json(found))
    elif found.why_not:
        for setting, says in found.why_not:
            out.print(f"not comparable because {setting} differs: {says}", markup=False)
        name = found.why_not[0][0]
        out.print(typed(f"next: the same with --despite {name}, if that is what is compared"), markup=False)
    else:
        _print(found)
    return 1 if found.why_not or not found.rows else 0


def _print(found: Comparison) -> None:
    for line in found.apart:
        out.print(printable(f"differs  {line}"), markup=False)
    if found.rows:
        names = (escape(found.first), escape(found.second))  # of a file they may be anything
        out.print(table(("point", "figure", *names, "ratio", "verdict"), list(_cells(found))))
    for name, only in ((found.first, found.only_first), (found.second, found.only_second)):
        for point in only:
            out.print(f"only in {name}: {said(point)}", markup=False)
    if not found.rows:
        out.print("no point is in both, so nothing can be compared", markup=False)
    if found.answers:
        out.print(_answers(found.answers), markup=False)
    for note in found.notes:
        out.print(printable(f"note     {note}"), markup=False)


def _cells(found: Comparison) -> Iterator[tuple[str, ...]]:
    for row in found.rows:
        apart = row.difference
        ratio = f"{apart.ratio:.3f}"
        if apart.verdict != "too few":
            ratio += f" ({apart.low:.3f} to {apart.high:.3f})"
        verdict = apart.verdict if apart.verdict != "too few" else f"too few to say ({apart.n})"
        if apart.is_real:
            verdict = f"{verdict} by {abs(apart.ratio - 1):.1%}, {_chance(apart.p)}"
        yield (
            said(row.point),
            f"{row.measure}, {row.unit}",
            shown(row.first),
            shown(row.second),
            ratio,
            verdict,
        )


def _chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def said(point: Point) -> str:
    """A point in a few words."""
    users = (
        f"{point.rate_per_s:g}/s"
        if point.rate_per_s
        else f"{point.users} user{'s' if point.users > 1 else ''}"
    )
    shared = f" ({point.shared_tokens:,} shared)" if point.shared_tokens else ""
    turns = f", {point.turns} turns" if point.turns > 1 else ""
    return f"{point.text}, {users}, {point.depth:,} + {point.answer_tokens}{shared}{turns}"


def shown(figure: MeasuredFigure) -> str:
    digits = 0 if figure.value >= 100 else 1
    if figure.n < 2:
        return f"{figure.value:.{digits}f} (once)"
    return f"{figure.value:.{digits}f} ({figure.low:.{digits}f} to {figure.high:.{digits}f}, n {figure.n})"


def _answers(found: AnswerComparison) -> str:
    if not found.changed:
        return f"answers  all {found.compared} are the same at temperature 0"
    return (
        f"answers  {found.changed} of {found.compared} changed at temperature 0; with several users at once "
        "an engine's own batching can do that too"
    )


def compared_json(found: Comparison) -> RunComparisonJson:
    return RunComparisonJson(
        first=found.first,
        second=found.second,
        is_comparable=not found.why_not and bool(found.rows),
        why_not=[WhyNotJson(setting=setting, says=says) for setting, says in found.why_not],
        is_interleaved=found.is_interleaved,
        apart=list(found.apart),
        rows=[
            ComparedRowJson(
                point=_point(row.point),
                measure=row.measure,
                unit=row.unit,
                first=_figure(row.first),
                second=_figure(row.second),
                difference=DifferenceJson(
                    ratio=row.difference.ratio,
                    low=row.difference.low,
                    high=row.difference.high,
                    p=row.difference.p,
                    verdict=row.difference.verdict,
                ),
            )
            for row in found.rows
        ],
        only_first=[_point(point) for point in found.only_first],
        only_second=[_point(point) for point in found.only_second],
        answers=AnswersJson(compared=found.answers.compared, equal=found.answers.equal)
        if found.answers
        else None,
        notes=list(found.notes),
    )


def _point(point: Point) -> PointJson:
    return PointJson(**asdict(point))


def _figure(figure: MeasuredFigure) -> FigureJson:
    return FigureJson(**asdict(figure))


# --- a run against its plan ---


def _show_plan(run: BenchRun, as_json: bool) -> int:
    held, why = against_plan(run), run.subject.plan.get("why")
    if as_json:
        rows = [_held_json(each) for each in held]
        common.print_json(AgainstPlanJson(run=run.id, planned_from=str(why) if why else None, rows=rows))
        return 0
    if not held:
        raise _not_held(run)
    columns = ("point", "figure", "measured", "planned", "off", "verdict")
    out.print(table(columns, [_held_cells(each) for each in held]))
    if why:
        out.print(printable(f"planned  {why}"), markup=False)
    return 0


def _not_held(run: BenchRun) -> UsageError:
    """The true reason: nothing planned, nothing measured, or two things that do not meet."""
    other = "firesteel bench NAME, of a service that `up` started"
    if not run.subject.plan:
        return UsageError(f"run {run.id}: no plan was kept with it", next=other)
    if any(each.samples for each in run.figures):
        return UsageError(f"run {run.id}: its plan speaks of none of its figures", next=other)
    if run.is_whole:
        return UsageError(
            f"run {run.id}: no request of it went right", next=f"firesteel history show {run.id}"
        )
    what = f"run {run.id} was cut off before anything was measured"
    return UsageError(what, next=f"firesteel bench --resume {run.id}")


def _held_cells(held: PlanComparison) -> tuple[str, ...]:
    band = held.planned
    planned = f"{band.expected:.1f} ({band.low:.1f} to {band.high:.1f})"
    return said(held.point), held.measure, shown(held.measured), planned, f"{held.off - 1:+.1%}", held.verdict


def _held_json(held: PlanComparison) -> HeldJson:
    return HeldJson(
        point=_point(held.point),
        measure=held.measure,
        measured=_figure(held.measured),
        planned=BandJson(**asdict(held.planned)),
        off=held.off,
        verdict=held.verdict,
    )


# --- a run against what others published ---


def _show_published(run: BenchRun, as_json: bool) -> int:
    found = _published(run)
    if as_json:
        common.print_json(AgainstPublishedJson(run=run.id, rows=[_beside_json(each) for each in found]))
        return 0
    if not found:
        raise UsageError(
            f"no published run of {run.subject.launch.get('model') or run.subject.model} in "
            f"{run.subject.engine or 'an engine that is not known'} is at these depths",
            next=f"firesteel compare {run.id} --plan",
        )
    columns = ("point", "decode here", "published", "ratio", "verdict", "source")
    out.print(table(columns, [_beside_cells(each) for each in found]))
    out.print("published figures are reported: by other hands, without an interval", markup=False)
    return 0


def _published(run: BenchRun) -> tuple[PublishedComparison, ...]:
    checkpoint = str(run.subject.launch.get("model") or run.subject.model)
    sparks = run.subject.launch.get("sparks")
    rows = published.runs_of(checkpoint, run.subject.engine or "", sparks if isinstance(sparks, int) else 1)
    sources = {name: origin.url for name, origin in published.origins().items()}
    carried = constants().carried
    return against_published(run, rows, sources, (carried.low, carried.high))


def _beside_cells(each: PublishedComparison) -> tuple[str, ...]:
    row = each.published
    version = row.version or "version not named"
    theirs = f"{row.decode_tps:g} tok/s, {row.depth or 0:,} + {row.generated}, {version}"
    return said(each.point), shown(each.measured), theirs, f"{each.ratio:.2f}", each.verdict, each.source


def _beside_json(each: PublishedComparison) -> BesideJson:
    row = each.published
    return BesideJson(
        point=_point(each.point),
        measured=_figure(each.measured),
        published_tps=row.decode_tps or 0.0,
        depth=row.depth,
        version=row.version,
        ratio=each.ratio,
        verdict=each.verdict,
        source=each.source,
        note=row.note,
    )
