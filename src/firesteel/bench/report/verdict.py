"""A run in plain sentences: speed for one user, for several, against the plan, and warnings.
Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from firesteel.bench.compare.against import PlanComparison, against_plan
from firesteel.bench.load.client import late_text
from firesteel.bench.measurements import SHARE_HIGH, SHARE_LOW, BenchRun, Point
from firesteel.bench.report import tables
from firesteel.bench.report.charts import has_no_gpu
from firesteel.units import show_seconds
from firesteel.values import Value, replace

PACES = (50, 20, 10)
"""tok/s per user for which it reports how many users there may be; a stated target takes precedence."""
_FEW_REPETITIONS = 3


class VerdictLine(Value):
    kind: Literal["fact", "good", "warning", "unknown"]
    text: str


def verdict(run: BenchRun) -> tuple[VerdictLine, ...]:
    """The most important line first."""
    if not any(figures.samples for figures in run.figures):
        return VerdictLine("warning", "Nothing could be measured: every request failed."), *_warnings(run)
    return (
        *_one_user(run),
        *_several_users(run),
        *_as_planned(run),
        *_bandwidth(run),
        *_target(run),
        *_warnings(run),
    )


# --- one user ---


def _one_user(run: BenchRun) -> Iterator[VerdictLine]:
    alone = [
        figures
        for figures in run.figures
        if figures.decode_tokens_per_s
        and (figures.point.users, figures.point.rate_per_s, figures.point.turns) == (1, None, 1)
    ]
    if not alone:
        yield VerdictLine("unknown", "The speed for a single user was not measured.")
        return
    depth = min(figures.point.depth for figures in alone)
    by_text = {figures.point.text: figures for figures in reversed(alone) if figures.point.depth == depth}
    rates = tables.join_words(
        f"{tables.figure(figures.decode_tokens_per_s)} tok/s of {text}" for text, figures in by_text.items()
    )
    waits = [figures.ttft_mean_ms.value / 1000 for figures in by_text.values() if figures.ttft_mean_ms]
    wait = f"; the first token comes after {_seconds(waits)}" if waits else ""
    yield VerdictLine("fact", f"A single user gets {rates}, with a prompt of {depth:,} tokens{wait}.")
    deepest = max(alone, key=lambda figures: figures.point.depth)
    if deepest.point.depth > depth:
        ttft, rate = deepest.ttft_mean_ms, tables.figure(deepest.decode_tokens_per_s)
        wait = f", and waits {show_seconds(ttft.value / 1000)} for the first token" if ttft else ""
        prompt = f"With a prompt of {deepest.point.depth:,} tokens"
        yield VerdictLine("fact", f"{prompt} a user gets {rate} tok/s{wait}.")


def _seconds(waits: Sequence[float]) -> str:
    low, high = show_seconds(min(waits)), show_seconds(max(waits))
    return low if low == high else f"{low} to {high}"


# --- several users ---


def _several_users(run: BenchRun) -> Iterator[VerdictLine]:
    """For the load that was measured with the most different numbers of users."""
    loads: dict[Point, dict[int, float]] = defaultdict(dict)
    for figures in run.figures:
        point = figures.point
        if figures.decode_tokens_per_s and point.rate_per_s is None:
            pace = figures.decode_tokens_per_s.value
            if total := figures.total_tokens_per_s:  # decode leaves out the wait for the first token
                pace = min(pace, total.value / point.users)
            loads[replace(point, shape="", users=1)][point.users] = pace
    load, paces = max(loads.items(), key=lambda item: len(item[1]), default=(None, {}))
    if load is None or len(paces) < 2:
        yield VerdictLine(
            "unknown", "How many users it can serve at once was not measured; add `--users 1,2,4,8`."
        )
        return
    max_gap_ms = run.settings.target.get("inter_token_ms", 0)
    wanted: Sequence[float] = (round(1000 / max_gap_ms, 1),) if max_gap_ms > 0 else PACES
    reached = [pace for pace in wanted if max(paces.values()) >= pace] or [min(PACES)]
    counts = "; ".join(f"{_users_at(paces, pace)} at {pace:g} tok/s or more" for pace in reached)
    measured = tables.join_words(f"{users:,}" for users in sorted(paces))
    yield VerdictLine(
        "fact", f"Concurrent users it can serve with {load.text}: {counts}. Measured: {measured}."
    )


def _users_at(paces: Mapping[int, float], pace: float) -> str:
    """The largest measured number of users at which every user still gets this pace."""
    most = 0
    for users in sorted(paces):
        if paces[users] < pace:
            return f"{most:,}" if most else "none"
        most = users
    return f"all {most:,}"


# --- plan, bandwidth, target ---


def _as_planned(run: BenchRun) -> Iterator[VerdictLine]:
    rows = against_plan(run)
    if not rows:
        why = "its plan covers none of these loads" if run.subject.plan else "no plan is stored with it"
        yield VerdictLine("unknown", f"The run cannot be compared with a plan: {why}.")
        return
    outside = [row for row in rows if row.verdict != "inside the band"]
    if not outside:
        one = f"It is inside its plan's band: {_plan_text(rows[0])}"
        several = f"All {len(rows)} figures that the plan covers are inside its band"
        once = sum(row.measured.n < 2 for row in rows)
        yield _praise(several if len(rows) > 1 else one, once, len(rows))
        return
    kinds: tuple[tuple[str, Literal["warning", "fact"]], ...] = (
        ("slower than planned", "warning"),
        ("faster than planned", "fact"),
    )
    for text, kind in kinds:
        found = [row for row in outside if row.verdict == text]
        if found:
            count = f"{len(found)} of {len(rows)} figures" if len(rows) > 1 else "It"
            verb, example = ("are", ", for example") if len(found) > 1 else ("is", "")
            yield VerdictLine(kind, f"{count} {verb} {text}: {_plan_text(found[0])}{example}.")


def _praise(text: str, once: int, of: int) -> VerdictLine:
    """Good only if it was measured more than once."""
    if not once:
        return VerdictLine("good", f"{text}.")
    return VerdictLine(
        "fact", f"{text}, but {f'{once} of them were' if of > 1 else 'that was'} measured only once."
    )


def _plan_text(row: PlanComparison) -> str:
    return f"{row.measure} {tables.figure(row.measured)}, planned {tables.band(row.planned)}"


def _bandwidth(run: BenchRun) -> Iterator[VerdictLine]:
    found = [figures for figures in run.figures if figures.bandwidth_share is not None]
    shares = [share for figures in found if (share := figures.bandwidth_share) is not None]
    if not shares:
        return
    once = sum(figures.decode_tokens_per_s is None or figures.decode_tokens_per_s.n < 2 for figures in found)
    low, high = min(shares), max(shares)
    share_text = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    text = f"Decode of one user reaches {share_text} of the memory bandwidth bound"
    if high <= SHARE_HIGH and has_no_gpu(run):  # the usual share is known for GB10s only
        reason = "; without a GPU arithmetic is the limit, so this is not a sign of a fault"
        yield VerdictLine("fact", f"{text}{reason if low < SHARE_LOW else ''}.")
    elif low >= SHARE_LOW and high <= SHARE_HIGH:
        yield _praise(f"{text}, as is usual on a GB10", once, len(found))
    else:
        yield VerdictLine("warning", f"{text}, where {SHARE_LOW} to {SHARE_HIGH} is usual on a GB10.")


def _target(run: BenchRun) -> Iterator[VerdictLine]:
    for found in run.found:
        text = tables.found_text(found, run.settings.target)
        yield VerdictLine("fact" if found.holds is not None else "warning", f"{text[0].upper()}{text[1:]}.")
    met = [(rate, figures.point) for figures in run.figures if (rate := figures.goodput_per_s) is not None]
    if met and run.settings.target:
        most, point = max(met, key=lambda row: row[0])
        goal = tables.join_words(
            f"{name.replace('_', ' ')} {value:g}" for name, value in run.settings.target.items()
        )
        yield VerdictLine(
            "fact", f"At most {most:.2f} requests/s met the target ({goal}): {tables.load(point)}."
        )


# --- warnings ---


def _warnings(run: BenchRun) -> Iterator[VerdictLine]:
    def warn(text: str) -> VerdictLine:
        return VerdictLine("warning", text)

    wrong = sum(sum(figures.wrong.values()) for figures in run.figures)
    if wrong:
        good = sum(figures.samples for figures in run.figures)
        noun = "request" if wrong == 1 else "requests"
        yield warn(f"{wrong:,} {noun} failed and are in no figure; {good:,} succeeded.")
    if not run.is_whole:
        yield warn("The run was stopped early: some loads were measured too rarely or never.")
    few = [each for each in run.figures if each.samples and each.repetitions < _FEW_REPETITIONS]
    if few:
        loads = f"{len(few)} of {len(run.figures)} loads"
        yield warn(f"{loads} have fewer than {_FEW_REPETITIONS} repetitions: trust them less.")
    if late := late_text(run.client):
        yield warn(f"{late[0].upper()}{late[1:]}.")
    if noted := sum(bool(figures.notes) for figures in run.figures):
        yield warn(f"{noted} of {len(run.figures)} loads have their own notes, below.")
