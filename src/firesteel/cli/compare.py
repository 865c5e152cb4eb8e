"""`firesteel bench compare`: two runs, a run and its plan or published ones, two servers, their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from firesteel.cli.history import show_notes
from firesteel.cli.options import json_option, load_options, print_json
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import err, out, table
from firesteel.errors import UsageError, printable
from firesteel.library import documents, history
from firesteel.library.history import load

if TYPE_CHECKING:
    from firesteel.bench.compare.against import PlanComparison, PublishedComparison
    from firesteel.bench.compare.answers import QualityComparison
    from firesteel.bench.compare.runs import AnswerComparison, Comparison
    from firesteel.bench.compare.servers import Side
    from firesteel.bench.load.measure import Event
    from firesteel.bench.measurements import BenchRun, MeasuredFigure


@click.command("compare")
@click.argument("runs", nargs=-1, metavar="RUN [RUN]")
@click.option("--plan", "is_plan", is_flag=True, help="Compare one run with its plan.")
@click.option(
    "--published", is_flag=True, help="Compare one run with published runs of the same model and engine."
)
@click.option("--ab", is_flag=True, help="Measure two servers now, in turns, and compare them.")
@click.option("--quality", is_flag=True, help="Ask two servers the same and compare their answers.")
@click.option("--model", help="With --ab and --quality: measure this model, if a server has several.")
@load_options(budget="4m", prefix="With --ab: ")
@click.option(
    "--despite", multiple=True, metavar="SETTING", help="Compare although this setting differs; repeatable."
)
@json_option
def command(
    runs: tuple[str, ...], is_plan: bool, published: bool, ab: bool, quality: bool, despite: tuple[str, ...],
    as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Compare the second RUN with the first, and report whether a difference is more than chance.

    RUN is an id from `firesteel bench list`, the beginning of one, `last`, `last~1`, or a file written by
    firesteel, llama-benchy or `vllm bench`. With --ab and --quality both are URLs (http://host:8000/v1) or
    running services.

    --quality needs no earlier run: both get the same prompts at temperature 0. It reports how many answers
    agree, how far their log probabilities are apart, and which one answers more of a short set of questions.

    \b
    Exits 0  compared
          1  not comparable; the output says why
    """
    if is_plan + published + ab + quality > 1:
        raise UsageError(
            "give only one of --plan, --published, --ab and --quality", next="firesteel bench compare --help"
        )
    wanted = 1 if is_plan or published else 2
    if len(runs) != wanted:
        example = (
            "firesteel bench compare last --plan" if wanted == 1 else "firesteel bench compare last~1 last"
        )
        raise UsageError(f"give {wanted} RUN{'s' if wanted > 1 else ''}, not {len(runs)}", next=example)
    if quality:
        return compare_answers(runs, options, as_json)
    if ab:
        return _show(_measured_in_turns(runs, options, despite), as_json)
    show_notes()
    stored = [history.stored_run(run) for run in runs]
    if is_plan:
        _show_plan(stored[0].run, as_json)
        return 0
    if published:
        _show_published(stored[0].run, as_json)
        return 0
    return _show(history.compare_runs(*stored, despite=despite), as_json)


def _measured_in_turns(
    names: tuple[str, ...], options: Mapping[str, Any], despite: tuple[str, ...]
) -> Comparison:
    from firesteel.library.bench import RunLimits, Sizes, measure_in_turns  # the client that measures
    from firesteel.library.run import environment_key

    first, second = names
    sizes = Sizes(
        options["users"], options["depth"], options["text"], answer=next(iter(options["answer"]), None)
    )
    events = measure_in_turns(
        first, second, model=options["model"], key=environment_key(), shapes=options["shapes"] or ("quick",),
        sizes=sizes, limits=RunLimits(options["budget"], options["precision"]), seed=options["seed"],
        despite=despite,
    )  # fmt: skip
    return asyncio.run(_followed(events))


async def _followed(events: AsyncIterator[tuple[Side, Event] | Comparison]) -> Comparison:
    from firesteel.library.bench import RunProgress  # the client that measures

    async for event in events:
        if not isinstance(event, tuple):
            return event
        side, progress = event
        if isinstance(progress, RunProgress):
            err.print(f"{'AB'[side]}       {progress.text} ...")
    raise AssertionError("the last event is the comparison")


# --- two runs ---


def _show(comparison: Comparison, as_json: bool) -> int:
    if as_json:
        print_json(documents.bench.compare_json(comparison))
    elif comparison.why_not:
        for setting, says in comparison.why_not:
            out.print(f"not comparable because {setting} differs: {says}")
        setting = comparison.why_not[0][0]
        hint = f"next: add --despite {setting}, if you want to compare exactly that"
        out.print(typed(hint))
    else:
        _print(comparison)
    return 1 if comparison.why_not or not comparison.rows else 0


def _print(comparison: Comparison) -> None:
    for line in comparison.apart:
        out.print(printable(f"differs  {line}"))
    first, second = comparison.first, comparison.second
    if comparison.rows:
        out.print(table(("point", "figure", first, second, "ratio", "verdict"), _cells(comparison)))
    for name, points in ((first, comparison.only_first), (second, comparison.only_second)):
        for point in points:
            out.print(f"only in {name}: {load(point)}")
    if not comparison.rows:
        out.print("the runs have no point in common, so nothing can be compared")
    if comparison.answers:
        out.print(_answers(comparison.answers))
    for note in comparison.notes:
        out.print(printable(f"note     {note}"))


def _cells(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    for row in comparison.rows:
        difference = row.difference
        ratio, verdict = f"{difference.ratio:.3f}", str(difference.verdict)
        if verdict == "too few":
            verdict = f"too few to say ({difference.n})"
        else:
            ratio += f" ({difference.low:.3f} to {difference.high:.3f})"
        if difference.is_real:
            chance = "p < 0.001" if difference.p < 0.001 else f"p = {difference.p:.3f}"
            verdict = f"{verdict} by {abs(difference.ratio - 1):.1%}, {chance}"
        yield (
            load(row.point),
            f"{row.measure}, {row.unit}",
            figure_text(row.first),
            figure_text(row.second),
            ratio,
            verdict,
        )


def figure_text(figure: MeasuredFigure) -> str:
    digits = 0 if figure.value >= 100 else 1
    if figure.n < 2:
        return f"{figure.value:.{digits}f} (once)"
    return f"{figure.value:.{digits}f} ({figure.low:.{digits}f} to {figure.high:.{digits}f}, n {figure.n})"


def _answers(answers: AnswerComparison) -> str:
    if not answers.changed:
        return f"answers  all {answers.compared} are the same at temperature 0"
    return (
        f"answers  {answers.changed} of {answers.compared} changed at temperature 0; with several users an "
        "engine's own batching can cause that too"
    )


# --- a run and its plan ---


def _show_plan(run: BenchRun, as_json: bool) -> None:
    rows, why = history.planned_rows(run), run.subject.plan.get("why")
    if as_json:
        planned_from = str(why) if why else None
        print_json(documents.bench.ComparePlanJson.of(run=run.id, planned_from=planned_from, rows=rows))
        return
    history.require_planned(run)
    columns = ("point", "figure", "measured", "planned", "off by", "verdict")
    out.print(table(columns, [_plan_cells(row) for row in rows]))
    if why:
        out.print(printable(f"planned  {why}"))


def _plan_cells(row: PlanComparison) -> tuple[str, ...]:
    band = row.planned
    return (
        load(row.point),
        row.measure,
        figure_text(row.measured),
        f"{band.expected:.1f} ({band.low:.1f} to {band.high:.1f})",
        f"{row.off - 1:+.1%}",
        row.verdict,
    )


# --- a run and published ones ---


def _show_published(run: BenchRun, as_json: bool) -> None:
    rows = history.published_rows(run)
    if as_json:
        published = tuple(map(documents.bench.published_row, rows))
        print_json(documents.bench.ComparePublishedJson.of(run=run.id, rows=published))
        return
    history.require_published(run)
    columns = ("point", "decode here", "published", "ratio", "verdict", "source")
    out.print(table(columns, [_published_cells(row) for row in rows]))
    out.print("published figures are as others reported them, without an interval")


def _published_cells(row: PublishedComparison) -> tuple[str, ...]:
    theirs = row.published
    version = theirs.version or "version not named"
    return (
        load(row.point),
        figure_text(row.measured),
        f"{theirs.decode_tps:g} tok/s, {theirs.depth or 0:,} + {theirs.generated}, {version}",
        f"{row.ratio:.2f}",
        row.verdict,
        row.source,
    )


# --- answers ---


def compare_answers(names: Sequence[str], options: Mapping[str, Any], as_json: bool) -> int:
    found = asyncio.run(_ask_both(names, options))
    if as_json:
        print_json(documents.bench.CompareQualityJson.of(comparison=found))
    else:
        _show_answers(found)
    return 0


async def _ask_both(names: Sequence[str], options: Mapping[str, Any]) -> QualityComparison:
    from firesteel.library.bench import ask_both  # the client that asks
    from firesteel.library.run import environment_key

    first, second = names
    events = ask_both(
        first, second, model=options["model"], key=environment_key(), budget_s=options["budget"],
        answer_tokens=next(iter(options["answer"]), None),
    )  # fmt: skip
    async for event in events:
        if not isinstance(event, int):
            return event
        if event % 10 == 0:
            err.print(f"asked {event} prompts ...")
    raise AssertionError("the last event is the comparison")


def _show_answers(found: QualityComparison) -> None:
    score, kl = found.questions, found.kl
    lines = [
        ("answers", f"{_share(found.agreement)} are equal word for word at temperature 0"),
        (
            "until apart",
            f"{_share(found.tokens_until_apart)} of the tokens" if found.tokens_until_apart else "",
        ),
        (
            "KL",
            f"{kl.value:.4f} ({max(0.0, kl.low):.4f} to {kl.high:.4f}, n {kl.n}) nats per token, B from A"
            if kl
            else "",
        ),
        (
            "next token",
            f"{_share(found.top_token_agreement)} the same likeliest one"
            if found.top_token_agreement
            else "",
        ),
        (
            "questions",
            f"A {_share(score.first)}, B {_share(score.second)} right; {score.only_first} only by A, "
            f"{score.only_second} only by B",
        ),
        ("verdict", score.verdict + (f", p = {score.p:.3f}" if score.verdict != "cannot tell" else "")),
    ]
    names = f"A {printable(found.first)}, B {printable(found.second)}"
    out.print(f"{names}: {found.prompts} prompts")
    for name, text in lines:
        if text:
            out.print(f"{name:<12} {text}")
    for ask, first, second in found.differing[:2]:
        out.print(f"differs      {printable(ask, 100)}")
        out.print(f"  A          {printable(first, 100)}")
        out.print(f"  B          {printable(second, 100)}")
    for note in found.notes:
        out.print(f"note         {note}")


def _share(figure: MeasuredFigure) -> str:
    low, high = max(0.0, figure.low), min(1.0, figure.high)
    return f"{figure.value:.1%} ({low:.1%} to {high:.1%}, n {figure.n})"
