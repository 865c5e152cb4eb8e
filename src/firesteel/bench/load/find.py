"""Find the highest load that holds a target: first how many users, then how many requests a second. Pure.

    firesteel bench --find ttft=2s,token=50ms

A load holds the target if nine in ten of its requests do. For each repetition that is the 90th percentile of
the requests' times; over repetitions it has an interval. If all of the interval is within the target, the
load holds it; if none is, it misses; otherwise it is measured again, and after enough repetitions it
stays unclear. A load at which more than one in ten requests fails misses, and so does a rate that the server
cannot keep up with.

The load is doubled until it no longer holds, and then the gap is halved until it is small or time is up. An
unclear load does not count as holding: the result is the load that certainly holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Literal

from msgspec import Struct, field

from firesteel.bench.compare.stats import mean_interval, percentile
from firesteel.bench.load.repetition import MIN_ARRIVALS
from firesteel.bench.load.schedule import MAX_RATE, MAX_USERS, OPEN_USERS
from firesteel.bench.measurements import FoundLoad, LoadKind, Point, RequestSample
from firesteel.bench.results.figures import (
    KEEPS_UP,
    by_repetition,
    decode_tokens_per_s,
    served_share,
    ttft_ms,
    warm_repetitions,
)
from firesteel.values import Value, replace

_PERCENTILE = 90
_TOLERATED_FAILURES = 0.1
_MAX_WARM = 6
"""Repetitions after which a load stays unclear."""
_MIN_OVERLOADED = 40
"""Requests needed to see that the server does not keep up with a rate."""
_ROUNDS = 2
"""Answers of each user in one repetition."""
_USERS_SHARE = 0.5
"""Share of the time for the search for users; the rate gets what is left."""
_GAP = 1.1
"""Ratio of two loads between which nothing is looked for."""
_MIN_RATE = 0.01
_MAX_LOADS = 20


class LoadJudgement(Value):
    verdict: Literal["holds", "misses", "cannot tell"]
    why: str = ""


def judge(point: Point, samples: Sequence[RequestSample], target: Mapping[str, float]) -> LoadJudgement:
    warm = list(warm_repetitions(samples).values())
    requests = [each for repetition in warm for each in repetition.every if each.wrong != "late"]
    failed = [each for each in requests if each.wrong]
    if not requests:
        return LoadJudgement("cannot tell", "no time to measure it")
    if len(failed) > _TOLERATED_FAILURES * len(requests):
        return LoadJudgement("misses", f"{len(failed)} of {len(requests)} requests failed: {failed[0].why}")
    share = served_share(point, warm)
    if share is not None and share < KEEPS_UP and len(requests) >= _MIN_OVERLOADED:
        return LoadJudgement("misses", f"only {share:.0%} of the requests were answered in time")
    found = [_judge_figure(name, limit, point, samples) for name, limit in target.items()]
    for verdict in ("misses", "cannot tell", "holds"):
        for judged in found:
            if judged.verdict == verdict:
                return judged
    return LoadJudgement("cannot tell", "there is no target")


def _judge_figure(name: str, limit: float, point: Point, samples: Sequence[RequestSample]) -> LoadJudgement:
    label, read = _FIGURES[name]
    values = []
    for repetition in by_repetition(point, samples).values():
        known = [value for sample in repetition.counted if (value := read(sample)) is not None]
        values += [percentile(known, _PERCENTILE)] if known else []
    figure = mean_interval(values)
    if figure is None:
        return LoadJudgement("cannot tell", f"{label} cannot be measured here")
    why = f"{label} {figure.value:.0f} ms ({figure.low:.0f} to {figure.high:.0f}, n {figure.n})"
    if figure.low > limit:
        return LoadJudgement("misses", why)
    return LoadJudgement("holds" if figure.high <= limit else "cannot tell", why)


def _time_per_token_ms(sample: RequestSample) -> float | None:
    rate = decode_tokens_per_s(sample)
    return 1000 / rate if rate else None


_FIGURES: Mapping[str, tuple[str, Callable[[RequestSample], float | None]]] = {
    "ttft_ms": ("p90 of the first token", ttft_ms),
    "inter_token_ms": ("p90 of the time per token", _time_per_token_ms),
}


def next_load(tried: Mapping[float, LoadJudgement], start: float, kind: LoadKind) -> float | None:
    """The load to try next; None: the search is over."""
    if not tried:
        return start
    if len(tried) >= _MAX_LOADS:
        return None
    held, above = bracket(tried)
    if held is None:
        return None if kind == "users" or min(tried) <= 2 * _MIN_RATE else _rounded(min(tried) / 2)
    if above is None:
        most = MAX_USERS if kind == "users" else MAX_RATE
        return min(2 * held, most) if held < most else None
    middle = sqrt(held * above)
    if kind == "users":
        middle = min(max(round(middle), held + 1), above - 1)
        return None if above - held <= max(1, held * (_GAP - 1)) else float(middle)
    return None if above / held <= _GAP else _rounded(middle)


def bracket(tried: Mapping[float, LoadJudgement]) -> tuple[float | None, float | None]:
    """The highest load that holds below all that do not, and the lowest that does not."""
    above = min((load for load, judged in tried.items() if judged.verdict != "holds"), default=None)
    held = [load for load, judged in tried.items() if judged.verdict == "holds"]
    return max((load for load in held if above is None or load < above), default=None), above


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


def found_load(tried: Mapping[float, LoadJudgement], kind: LoadKind, *, is_final: bool) -> FoundLoad:
    held, _ = bracket(tried)
    missing = [load for load, judged in tried.items() if judged.verdict == "misses"]
    misses = min(missing, default=None)
    unclear = [load for load, judged in tried.items() if judged.verdict == "cannot tell"]
    between = sorted(load for load in unclear if misses is None or load < misses)
    shown = next(iter(between), misses)
    why = f"{shown:g}: {tried[shown].why}" if shown is not None else ""
    return FoundLoad(kind, held, misses, tuple(between), is_final, why)


class LoadSearch(Struct):
    """Chooses what to measure next, as `Schedule` does; `points` grows with the search."""

    points: list[Point]
    """At first one: a single user with the sizes to search with."""
    target: Mapping[str, float]
    budget_s: float
    samples_of: Callable[[int], Sequence[RequestSample]]
    repetitions: list[int] = field(default_factory=lambda: [0])
    dropped: set[int] = set()
    spent_s: float = 0.0
    kind: LoadKind = "users"
    _tried: dict[LoadKind, dict[float, LoadJudgement]] = field(
        default_factory=lambda: {"users": {}, "requests per second": {}}
    )
    _is_final: dict[LoadKind, bool] = {}
    """Whether the search for it ended by itself, and not because time was up."""

    @property
    def left_s(self) -> float:
        return max(0.0, self.budget_s - self.spent_s)

    def next(self, spent_s: float) -> int | None:
        self.spent_s = spent_s
        while True:
            index = len(self.points) - 1
            judged = judge(self.points[index], self.samples_of(index), self.target)
            is_measured = self.repetitions[index] > 1
            is_first = index == 0 and not is_measured and self.left_s > 0
            may_measure = is_first or self._has_time_for(_load(self.points[index]))
            if may_measure and judged.verdict == "cannot tell" and self.repetitions[index] <= _MAX_WARM:
                return index
            if is_measured:
                self._tried[self.kind][_load(self.points[index])] = judged
            following = self._following()
            if following is None:
                return None
            self.points.append(following)
            self.repetitions.append(0)

    def _following(self) -> Point | None:
        """The next point, of this kind or of the next one."""
        tried = self._tried[self.kind]
        start = 1.0 if self.kind == "users" else self._first_rate()
        load = next_load(tried, start, self.kind)
        self._is_final[self.kind] = load is None and bool(tried)
        if load is not None and self._has_time_for(load):
            if self.kind == "users":
                return replace(self.points[0], shape="sweep", users=round(load))
            return replace(self.points[0], shape="open", users=OPEN_USERS, rate_per_s=load)
        if self.kind != "users":
            return None
        self.kind = "requests per second"
        if bracket(tried)[0] is None and self._is_final["users"]:  # no load is lighter than one user
            self._is_final[self.kind] = True
            return None
        return self._following()

    def _has_time_for(self, load: float) -> bool:
        """A low rate needs long for enough arrivals."""
        arrivals_s = MIN_ARRIVALS / load if self.kind != "users" else 0.0
        share = _USERS_SHARE if self.kind == "users" else 1
        return self.spent_s < self.budget_s * share and arrivals_s <= self.left_s

    def _first_rate(self) -> float:
        """As many requests as the users that hold the target send; below it if not even one does."""
        held, _ = bracket(self._tried["users"])
        users = [index for index, point in enumerate(self.points) if point.rate_per_s is None]
        index = next((index for index in users if self.points[index].users == held), 0)
        durations = [sample.total_s for sample in self.samples_of(index) if not sample.wrong]
        if not durations or fmean(durations) <= 0:
            return 1.0
        return _rounded(max(_MIN_RATE, min(MAX_RATE, (held or 0.5) / fmean(durations))))

    def results(self) -> tuple[FoundLoad, ...]:
        return tuple(
            found_load(tried, kind, is_final=self._is_final.get(kind, False))
            for kind, tried in self._tried.items()
        )

    # --- as `Schedule` ---

    def record(self, index: int, duration_s: float, *, has_good_sample: bool) -> None:
        self.repetitions[index] += 1

    def given_up(self) -> list[int]:
        return []

    def is_missing(self, index: int) -> bool:
        """A search is over when it ends, whatever it had no time for."""
        return False

    def rounds(self, index: int) -> int:
        return _ROUNDS

    why_missing = "Not even one user was measured"

    @property
    def wanted_s(self) -> float:
        return 5 * self.spent_s


def _load(point: Point) -> float:
    return float(point.users) if point.rate_per_s is None else point.rate_per_s
