"""`tune`: tries settings for real, one after the other, and ends with the best, proved and written down.

    async for event in tune(journal, place): ...

Each candidate is a whole `up`: planned, held against the rules, started behind the memory guard, verified,
and only then measured. One that does not come up or answers wrongly is out, with its reason. The setting as
it is comes first, so there is always something to beat; the best is measured afresh at the end, since the
highest of many noisy figures flatters itself, and only if that really beats the setting as it is does
anything change. Where the model drafts, the best is also held against its twin without drafting, by kind of
text and number of users.

What ran before runs again at the end, as the best or as it was; what ran not does not. The journal has all
that is over, so whatever ends a tune, `--resume` goes on with the next run.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from firesteel.bench.compare.stats import FigureDifference, is_real
from firesteel.bench.load.measure import RunProgress
from firesteel.bench.tune import journal as journals
from firesteel.bench.tune.candidate import CandidateOrder, CandidateRunner
from firesteel.bench.tune.journal import Journal, Role, Trial
from firesteel.bench.tune.measure import CandidateScore, Effort, repetition_rates
from firesteel.bench.tune.points import goal_points, offered, sweep, texts, users
from firesteel.bench.tune.recipe import recipe_text, tuned_name
from firesteel.bench.tune.search import Search, SearchAxis
from firesteel.bench.tune.space import (
    OFF,
    SPECULATION,
    PlanningContext,
    SearchSpace,
    Setting,
    make_search_space,
)
from firesteel.bench.tune.summary import DraftRow, drafting, drafting_text, verdict_text
from firesteel.bench.values import Point
from firesteel.edge.files.home import Home, Locked, lock, write_text
from firesteel.edge.host.process import uptime
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.launch import Ask
from firesteel.rules import Proposal, insist
from firesteel.run import Event as RunEvent
from firesteel.run import RunOptions, ServiceReady

_FASTER_START = 0.9
"""A start that takes less than this share of the other's is a better one; smaller differences are chance."""


@dataclass(frozen=True, slots=True)
class TuneEnvironment:
    """Where it happens, and how it finds things out there."""

    home: Home
    propose: Callable[[Ask], tuple[Proposal, ...]]
    """With the memory that is free at that moment."""
    around: Callable[[], PlanningContext]
    hands: CandidateRunner


@dataclass(frozen=True, slots=True)
class SpacePlanned:
    """What there is to try."""

    space: SearchSpace
    refused: tuple[tuple[dict[str, str], str], ...]
    """Single changes that are never tried, with the reason."""


@dataclass(frozen=True, slots=True)
class TrialStarted:
    number: int
    role: Role
    changes: dict[str, str]


@dataclass(frozen=True, slots=True)
class TrialFinished:
    number: int
    trial: Trial
    changes: dict[str, str]


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What it came to."""

    journal: Journal
    space: SearchSpace
    changes: dict[str, str]
    """Of the best that was seen, against the setting as it was."""
    is_better: bool
    difference: FigureDifference
    words: str
    drafts: tuple[DraftRow, ...] = ()
    advice: tuple[str, ...] = ()
    recipe: str | None = None
    """The name under which it is in the catalog now."""
    recipe_path: Path | None = None
    running: str | None = None
    notes: tuple[str, ...] = ()


Event = RunEvent | RunProgress | SpacePlanned | TrialStarted | TrialFinished | TuneResult


async def tune(journal: Journal, place: TuneEnvironment) -> AsyncIterator[Event]:
    """The last event is Tuned. Whatever ends it early, what ran before runs again, as the best so far."""
    try:
        with lock(journals.folder(place.home) / "tune.lock"):
            state = _Tune(journal, place)
            try:
                async for event in state.go():
                    yield event
            except BaseException:
                await asyncio.shield(asyncio.ensure_future(state.restore_quietly()))
                raise
    except Locked:
        raise FiresteelError("another tune is at work on this machine", next="firesteel ps") from None


@dataclass(slots=True)
class _Tune:
    journal: Journal
    place: TuneEnvironment
    _space: SearchSpace | None = None
    _search: Search | None = None
    began: float = field(default_factory=uptime)
    spent_before: float = 0.0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spent_before = self.journal.spent_s

    @property
    def space(self) -> SearchSpace:
        assert self._space is not None
        return self._space

    @property
    def search(self) -> Search:
        assert self._search is not None
        return self._search

    async def go(self) -> AsyncIterator[Event]:
        self.journal.is_restored = False
        journals.keep(self.place.home, self.journal)
        async for event in self._clear():
            yield event
        self._plan()
        yield SpacePlanned(self.space, self.space.refused())
        async for each in self._look():
            yield each
        async for each in self._confirm():
            yield each
        async for each in self._starts():
            yield each
        async for each in self._end():
            yield each

    # --- what there is to try ---

    def _plan(self) -> None:
        base = self.place.propose(self.journal.ask)[0]
        insist(base)
        wish = self.journal.wish
        whole = make_search_space(base, wish.goal, wish.users or offered(base), self.place.around())
        self._space = space = _only(whole, wish.only)
        axes = [SearchAxis(len(knob.choices), knob.is_ladder) for knob in space.knobs]
        many = users(wish, base)
        self._search = Search(
            axes,
            space.start,
            lambda setting: space.worth(setting, wish.goal, texts(wish), many),
            self._is_barred,
            most=max(1, wish.max_runs - self._finals),
            seed=wish.seed,
        )
        for trial in self.journal.of("search"):
            self._search.tell(space.setting(trial.labels), trial.values)

    def _is_barred(self, setting: Setting) -> bool:
        """What moves the start alone is looked at by itself, later."""
        rows = zip(self.space.knobs, setting, self.space.start, strict=True)
        if any(at != was and knob.moves == "start" for knob, at, was in rows):
            return True
        return self.space.barred(setting) is not None

    @property
    def _finals(self) -> int:
        """Runs that are kept for the end."""
        return 2 if self.space.at(SPECULATION) is not None else 1

    def _points(self) -> tuple[Point, ...]:
        return goal_points(self.journal.wish, self.space.base)

    # --- looking for the best ---

    async def _look(self) -> AsyncIterator[Event]:
        while (setting := self.search.ask()) is not None:
            if self.search.told and not self._has_time():
                self.notes.append("its time was over before the search was")
                return
            async for event in self._try(setting, "search", self._points()):
                yield event
            trial = self.journal.trials[-1]
            if len(self.journal.trials) == 1 and trial.failed:
                raise FiresteelError(
                    f"the setting as it is cannot be measured: {trial.failed}",
                    next=f"firesteel up {self.journal.ask.model}",
                )
            self.search.tell(setting, trial.values)

    def _has_time(self) -> bool:
        """For this run and those at the end, as long as the longest so far."""
        longest = max((each.took_s for each in self.journal.trials), default=0.0)
        return self.spent_s + (1 + self._finals) * longest <= self.journal.wish.budget_s

    @property
    def spent_s(self) -> float:
        return self.spent_before + uptime() - self.began

    # --- the best again, and its twin ---

    async def _confirm(self) -> AsyncIterator[Event]:
        if self.journal.wish.max_runs < 2:
            return
        best, twin = self._best, self._twin()
        if best == self.space.start and twin is None:
            return
        done = {each.role for each in self.journal.trials}
        points = sweep(self.journal.wish, self.space.base) if twin is not None else self._points()
        for role, setting in (("confirm", best), ("twin", twin)):
            if setting is not None and role not in done:
                async for event in self._try(setting, "confirm" if role == "confirm" else "twin", points):
                    yield event

    @property
    def _best(self) -> Setting:
        return self.search.best.setting if self.search.best else self.space.start

    def _twin(self) -> Setting | None:
        """The best without its drafter; or, where it drafts nothing, with the best drafter that was seen."""
        at = self.space.at(SPECULATION)
        if at is None or self.journal.wish.max_runs < 3:
            return None
        labels, best = self.space.knobs[at].labels, self._best
        if labels[best[at]] != OFF:
            twin = self.space.moved(best, at, labels.index(OFF))
        else:
            drafts = [each for each in self.search.told if each.values and labels[each.setting[at]] != OFF]
            if not drafts:
                return None
            twin = self.space.moved(best, at, max(drafts, key=lambda each: each.level).setting[at])
        return None if self.space.barred(twin) else twin

    async def _starts(self) -> AsyncIterator[Event]:
        """The best with other ways to load, for how long each takes to come up."""
        done = {tuple(sorted(each.labels.items())) for each in self.journal.of("start")}
        for at, knob in enumerate(self.space.knobs):
            if knob.moves != "start":
                continue
            for to in range(len(knob.choices)):
                setting = self.space.moved(self._best, at, to)
                labels = self.space.labels(setting)
                is_done = to == self._best[at] or tuple(sorted(labels.items())) in done
                if is_done or self.space.barred(setting):
                    continue
                if not self._has_time() or len(self.journal.trials) >= self.journal.wish.max_runs:
                    return
                async for event in self._try(setting, "start", ()):
                    yield event

    # --- one run ---

    async def _try(self, setting: Setting, role: Role, points: tuple[Point, ...]) -> AsyncIterator[Event]:
        number, changes, began = len(self.journal.trials) + 1, self.space.changes(setting), uptime()
        yield TrialStarted(number, role, changes)
        trial = Trial(self.space.labels(setting), role)
        try:
            proposal = self.space.proposal(setting)
            ready: ServiceReady | None = None
            async for step in self.place.hands.up(proposal, self._manner()):
                ready = step if isinstance(step, ServiceReady) else ready
                yield step
            assert ready is not None
            trial = replace(trial, start_s=ready.report.start_s)
            if points:
                async for each in self.place.hands.measured(proposal, self._asked(role, points)):
                    if isinstance(each, CandidateScore):
                        trial = self._with(trial, each, points)
                    else:
                        yield each
        except HostNotReady:  # that says nothing of the candidate
            raise
        except FiresteelError as error:
            trial = replace(trial, failed=error.what, values=())
        async for event in self._clear():
            yield event
        trial = replace(trial, took_s=uptime() - began)
        self.journal.trials.append(trial)
        self.journal.spent_s = self.spent_s
        journals.keep(self.place.home, self.journal)
        yield TrialFinished(number, trial, changes)

    def _asked(self, role: Role, points: tuple[Point, ...]) -> CandidateOrder:
        wish = self.journal.wish
        return CandidateOrder(
            self.journal.id,
            points,
            len(self._points()),
            wish.goal,
            wish.seed,
            wish.thinking,
            Effort.within(wish.budget_s),
            self.search.is_beaten if role == "search" else lambda values: False,
        )

    def _with(self, trial: Trial, found: CandidateScore, points: tuple[Point, ...]) -> Trial:
        if not found.values:
            wrong = [note for each in found.run.figures for note in each.notes]
            why = wrong[0] if wrong else "nothing came of any round"
            return replace(trial, run=found.run.id, failed=f"it could not be measured: {why}")
        swept = len(points) > len(self._points())
        rows = tuple(
            (point.text, point.users, tuple(repetition_rates(found.samples, at, "throughput").values()))
            for at, point in enumerate(points)
        )
        return replace(
            trial, run=found.run.id, values=found.values, was_beaten=found.was_beaten,
            rows=rows if swept else (),
        )  # fmt: skip

    def _manner(self) -> RunOptions:
        """Loopback, whatever the service had: only we are to ask it now."""
        before = self.journal.before
        return RunOptions(trusts_code=before.trusts_code if before else False)

    async def _clear(self) -> AsyncIterator[Event]:
        async for event in self.place.hands.clear(self.journal.name):
            yield event

    # --- what it came to ---

    async def _end(self) -> AsyncIterator[Event]:
        difference = self._difference()
        is_better = difference.verdict == "faster" and self._best != self.space.start
        best = self._quickest_start(self._best) if is_better else self.space.start
        name, path = self._write(best, difference) if is_better else (None, None)
        rows = self._drafting()
        running = None
        if self.journal.before:
            async for event in self._run_again(best if is_better else None, name):
                yield event
            running = self.journal.name
        self.journal.ended, self.journal.recipe = "done", str(path) if path else None
        journals.keep(self.place.home, self.journal)
        changes = self.space.changes(best if is_better else self._best)
        yield TuneResult(
            self.journal, self.space, changes, is_better, difference, verdict_text(difference, changes),
            rows, drafting_text(rows), name, path, running, tuple(self.notes),
        )  # fmt: skip

    def _difference(self) -> FigureDifference:
        """The best, afresh, against the setting as it is."""
        base = self.search.told[0].values if self.search.told else ()
        again = self.journal.of("confirm")
        best = self.search.best.values if self.search.best else ()
        return is_real(again[-1].values if again else best, base)

    def _drafting(self) -> tuple[DraftRow, ...]:
        confirm, twin = (next(iter(self.journal.of(role)), None) for role in ("confirm", "twin"))
        if confirm is None or twin is None or confirm.failed or twin.failed:
            return ()
        drafts = confirm.labels.get(SPECULATION) != OFF
        return drafting(confirm, twin) if drafts else drafting(twin, confirm)

    def _quickest_start(self, best: Setting) -> Setting:
        usual = next((each.start_s for each in self.journal.of("confirm") if each.start_s), None)
        good = [each for each in self.journal.of("start") if each.start_s and not each.failed]
        fastest = min(good, key=lambda each: each.start_s or 0, default=None)
        if usual and fastest and fastest.start_s and fastest.start_s < _FASTER_START * usual:
            self.notes.append(
                f"it starts in {fastest.start_s:.0f} s so, in {usual:.0f} s otherwise; one start each"
            )
            return self.space.setting(fastest.labels)
        return best

    def _write(self, best: Setting, difference: FigureDifference) -> tuple[str, Path]:
        base = self.space.base.recipe
        if base is None:
            raise UsageError("only a recipe of the catalog can be tuned", next="firesteel models")
        runs = [each.run for each in self.journal.trials if each.run]
        gain = f"{difference.ratio:.2f} x ({difference.low:.2f} to {difference.high:.2f})"
        wish = self.journal.wish
        note = (
            f"Made from {base.name} by `firesteel tune` ({self.journal.id}), measured here: {gain} for "
            f"{wish.goal}, {', '.join(texts(wish))}, {users(wish, self.space.base)} at once. "
            f"Runs: {', '.join(runs)}; `firesteel history show RUN` has each."
        )
        why = {
            flag: f"tune {self.journal.id}: {gain} with all of its changes"
            for knob, label in self.space.changes(best).items()
            for flag in self._flags(knob, label)
        }
        name = tuned_name(base.name)
        path = self.place.home.catalog / "recipes" / f"{name}.yaml"
        write_text(path, recipe_text(base, self.space.proposal(best), why, note))
        return name, path

    def _flags(self, knob: str, label: str) -> tuple[str, ...]:
        found = next(each for each in self.space.knobs if each.name == knob)
        return tuple(found.choices[found.labels.index(label)].flags)

    async def _run_again(self, setting: Setting | None, recipe: str | None) -> AsyncIterator[Event]:
        """None: as it was."""
        before = self.journal.before
        assert before is not None
        proposal = self.space.proposal(setting) if setting else self.place.propose(before.ask)[0]
        words = (recipe, *before.words[1:]) if recipe else before.words
        manner = RunOptions(before.listen, before.trusts_code, before.at_boot, words)
        async for event in self.place.hands.up(proposal, manner):
            yield event

    async def restore_quietly(self) -> None:
        """It ends early: what ran before runs again, as the best that really is one, else as it was."""
        self.journal.spent_s = self.spent_s
        journals.keep(self.place.home, self.journal)
        async for _ in self._clear():
            pass
        before = self.journal.before
        if before is not None:
            is_known = self._search is not None and self._difference().verdict == "faster"
            try:
                async for _ in self._run_again(self._best if is_known else None, None):
                    pass
            except FiresteelError as error:
                raise FiresteelError(
                    f"{self.journal.name} ran before and did not come up again: {error.what}",
                    next=f"firesteel up {shlex.join(before.words)}",
                ) from error
        self.journal.is_restored = True
        journals.keep(self.place.home, self.journal)


def _only(space: SearchSpace, names: tuple[str, ...]) -> SearchSpace:
    if not names:
        return space
    known = [knob.name for knob in space.knobs]
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None:
        raise UsageError(f"there is no knob `{wrong[:40]}` here", next=f"--only with {', '.join(known)}")
    kept = [at for at, name in enumerate(known) if name in names]
    return SearchSpace(
        space.base, tuple(space.knobs[at] for at in kept), tuple(space.start[at] for at in kept), space.around
    )
