"""`tune`: try settings for real, one after the other, and keep the best as a recipe.

    async for event in tune(begin(home, ask, options, services), environment(home, history)): ...

Each candidate is a complete `up`: planned, checked against the rules, started behind the memory guard,
verified, and only then measured. A candidate that does not start or answers wrongly is out, with its reason.
The current setting comes first, so there is always something to beat. The best is measured again at the end,
since the highest of many noisy figures is too optimistic, and nothing changes unless it really beats the
current setting. If the model drafts, the best is also compared with its twin without drafting, by kind of
text and number of users.

A service that ran before runs again at the end, with the best setting or as it was. The journal records all
finished runs, so `resume` continues a tune that ended for any reason.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from urllib.parse import urlsplit

from firesteel.bench.compare.stats import FigureDifference, compare_values
from firesteel.bench.load.schedule import budget_text
from firesteel.bench.measurements import Point
from firesteel.bench.results.history import History, new_run_id
from firesteel.bench.tune.candidate import (
    CandidateOrder,
    CandidateRunner,
    CandidateScore,
    Effort,
    repetition_rates,
)
from firesteel.bench.tune.journal import (
    Journal,
    Role,
    RunningBefore,
    Trial,
    TuneOptions,
    goal_points,
    goal_texts,
    goal_users,
    served_users,
    sweep_points,
    tune_folder,
    unfinished_journal,
    write_journal,
)
from firesteel.bench.tune.knobs import OFF, SPECULATION
from firesteel.bench.tune.outcome import (
    Event,
    SpacePlanned,
    TrialFinished,
    TrialStarted,
    TuneResult,
    drafting_rows,
    drafting_text,
    fastest_start,
    final_difference,
    verdict_text,
    write_recipe,
)
from firesteel.bench.tune.search import (
    PlanningContext,
    Search,
    SearchAxis,
    SearchSpace,
    Setting,
    make_search_space,
)
from firesteel.edge.home import Home, Locked, lock
from firesteel.edge.host.process import uptime
from firesteel.errors import FiresteelError, HostNotReady, ServerNotReady, UsageError
from firesteel.launch import Ask
from firesteel.planner.advice import require_runnable
from firesteel.planner.propose import Proposal
from firesteel.run.events import ServiceReady
from firesteel.run.service import Service
from firesteel.run.spec import RunOptions
from firesteel.units import show_seconds
from firesteel.values import Value, replace
from firesteel.workspace import Workspace

_LEAST_RUNS = 5
"""Runs that a budget has to allow: the current setting, three changes, and the best again."""


class TuneEnvironment(Value):
    """Where a tune runs, and how it gets its proposals."""

    home: Home
    propose: Callable[[Ask], tuple[Proposal, ...]]
    """It plans with the memory that is free at that moment."""
    planning_context: Callable[[], PlanningContext]
    runner: CandidateRunner


async def tune(journal: Journal, environment: TuneEnvironment) -> AsyncIterator[Event]:
    """The last event is TuneResult. If it ends early, what ran before runs again, with the best setting so
    far."""
    try:
        with lock(tune_folder(environment.home) / "tune.lock"):
            state = _Tune(journal, environment)
            try:
                async for event in state.run():
                    yield event
            except BaseException:
                await asyncio.shield(asyncio.ensure_future(state.restore()))
                raise
    except Locked:
        raise FiresteelError("another tune is running on this machine", next="firesteel ps") from None


def environment(home: Home, history: History) -> TuneEnvironment:
    """The real one. It makes each proposal in a new Workspace: a search changes the measured memory and the
    catalog."""
    return TuneEnvironment(
        home,
        lambda ask: Workspace(home).propose(ask, Workspace(home).host()),
        lambda: _make_planning_context(Workspace(home)),
        CandidateRunner(home, history, lambda: Workspace(home).host()),
    )


# --- begin a search, or continue one ---


def begin(
    home: Home, ask: Ask, options: TuneOptions, services: Iterable[Service], *, anew: bool = False
) -> Journal:
    """A new search, of the setting that runs or else of the best recipe. `anew`: drop an interrupted one."""
    chosen, running = _choose_proposal(home, ask, services)
    interrupted = unfinished_journal(home, chosen.name)
    if interrupted and not anew:
        raise UsageError(
            f"search {interrupted.id} for {chosen.name} was interrupted after {len(interrupted.trials)} runs",
            next=f"firesteel tune {shlex.quote(ask.model or '')} --resume, or --anew to begin another",
        )
    if interrupted:
        interrupted.ended = "left"
        write_journal(home, interrupted)
    return _make_journal(chosen, running, ask, options, interrupted)


def resume(home: Home, ask: Ask, options: TuneOptions, services: Iterable[Service]) -> Journal:
    """The interrupted search, with its own goal but the time and runs of these options."""
    chosen, _ = _choose_proposal(home, ask, services)
    interrupted = unfinished_journal(home, chosen.name)
    if interrupted is None:
        raise UsageError(
            f"there is no interrupted search for {chosen.name}", next=f"firesteel tune {chosen.name}"
        )
    if options.only and options.only != interrupted.options.only:
        raise UsageError(
            f"search {interrupted.id} goes on with its own settings; --only is for a new one",
            next=f"firesteel tune {ask.model} --resume without --only, or --anew with it",
        )
    interrupted.options = replace(interrupted.options, budget_s=options.budget_s, max_runs=options.max_runs)
    return interrupted


def space_of(
    home: Home, ask: Ask, options: TuneOptions, services: Iterable[Service]
) -> tuple[str, SearchSpace]:
    """The name of the service, and what would be tried; nothing is written."""
    chosen, running = _choose_proposal(home, ask, services)
    interrupted = unfinished_journal(home, chosen.name)
    here, journal = Workspace(home), _make_journal(chosen, running, ask, options, interrupted)
    base = here.propose(journal.ask, here.host())[0]
    users = options.users or served_users(base)
    space = make_search_space(base, options.goal, users, _make_planning_context(here))
    return chosen.name, space.only(options.only)


def _make_planning_context(here: Workspace) -> PlanningContext:
    catalog = here.catalog
    return PlanningContext(catalog.images, here.measured_memory, tuple(catalog.recipes.values()))


def _choose_proposal(home: Home, ask: Ask, services: Iterable[Service]) -> tuple[Proposal, Service | None]:
    """The recipe of the model that runs, or else the best one."""
    here = Workspace(home)
    proposals = here.propose(ask, here.host())
    running = {service.name: service for service in services if service.phase not in ("dead", "stopping")}
    chosen = next((proposal for proposal in proposals if proposal.name in running), proposals[0])
    if chosen.recipe is None:
        raise UsageError(
            f"{ask.model} is not in the catalog, and tune writes its result as a recipe there",
            next="firesteel models, to list the catalog",
        )
    return chosen, running.get(chosen.name)


def _make_journal(
    chosen: Proposal, running: Service | None, ask: Ask, options: TuneOptions, interrupted: Journal | None
) -> Journal:
    ask = replace(ask, model=chosen.recipe.name if chosen.recipe else ask.model)
    if interrupted and not interrupted.is_restored:  # what runs now is a candidate that a killed tune left
        ask = replace(interrupted.ask, context=ask.context or interrupted.ask.context)
        before = interrupted.before
    else:
        ask, before = _read_running(ask, running)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return Journal(new_run_id(), began, chosen.name, ask, options, before)


def _read_running(ask: Ask, running: Service | None) -> tuple[Ask, RunningBefore | None]:
    """The current setting: what the running service was asked to be."""
    if running is None:
        return ask, None
    spec = running.spec
    was = replace(spec.ask, model=spec.ask.model or ask.model, port=urlsplit(spec.url).port)
    before = RunningBefore(was, spec.listen, spec.trusts_code, spec.at_boot, spec.service_file)
    sizes = (ask.context or was.context, ask.users or was.users, ask.port or was.port)
    return replace(was, model=ask.model, context=sizes[0], users=sizes[1], port=sizes[2]), before


# --- the search ---


class _Tune:
    """One search, from its journal to its result; the journal is stored after every run."""

    space: SearchSpace
    search: Search
    """Both are set by `_plan`."""

    def __init__(self, journal: Journal, environment: TuneEnvironment) -> None:
        self.journal = journal
        self.environment = environment
        self.began = uptime()
        self.spent_before_s = journal.spent_s
        self.is_planned = False
        """`space` and `search` are set: an early end may come before."""
        self.notes: list[str] = []
        self.settled: dict[str, str] = {}
        """What each knob that is left to the engine comes to."""
        self.why_unmeasured = ""
        """Why the last run had no time for a single figure."""

    @property
    def spent_s(self) -> float:
        return self.spent_before_s + uptime() - self.began

    async def run(self) -> AsyncIterator[Event]:
        self.journal.is_restored = False
        self._write_journal()
        async for step in self.environment.runner.clear(self.journal.name):
            yield step
        self._plan()
        yield SpacePlanned(self.space, self.space.refused())
        for stage in (self._search_best, self._confirm, self._try_starts, self._finish):
            async for event in stage():
                yield event

    def _write_journal(self) -> None:
        write_journal(self.environment.home, self.journal)

    # --- what to try ---

    def _plan(self) -> None:
        base = self._on_free_port(self.environment.propose(self.journal.ask)[0])
        require_runnable(base)
        options, context = self.journal.options, self.environment.planning_context()
        all_knobs = make_search_space(base, options.goal, options.users or served_users(base), context)
        self.space = space = all_knobs.only(options.only)
        users = goal_users(options, base)
        self.search = Search(
            [SearchAxis(len(knob.choices), knob.is_ladder) for knob in space.knobs],
            space.start,
            lambda setting: space.expected_speed(setting, options.goal, goal_texts(options), users),
            self._is_excluded,
            max_runs=max(1, options.max_runs - self._final_runs),
            seed=options.seed,
        )
        self.is_planned = True
        self._replay_trials()
        for trial in self.journal.of("search"):
            self.search.tell(space.setting(trial.labels), trial.values)

    def _replay_trials(self) -> None:
        """Take over the trials of a resumed search. A current setting that could not be measured is tried
        again; if it is another one by now, or a trial has choices that are gone, the search begins anew."""
        trials, space = self.journal.trials, self.space
        is_of_now = all(space.knows(trial.labels) for trial in trials)
        if trials and (trials[0].failed or not is_of_now or trials[0].labels != space.labels(space.start)):
            trials.clear()
        for trial in trials:
            self.settled |= trial.settled

    def _on_free_port(self, base: Proposal) -> Proposal:
        """No client needs to know the port during a search; a port that the user chose is kept."""
        ask, port = self.journal.ask, base.plan.launch.port
        free = self.environment.runner.free_port(port)
        if free in (port, None):  # without a free one, the start reports what uses it
            return base
        if ask.port is not None:
            raise HostNotReady(
                f"port {port} is in use",
                next=f"firesteel tune {shlex.quote(ask.model or '')} --port {free}, or without --port",
            )
        return self.environment.propose(replace(ask, port=free))[0]

    def _is_excluded(self, setting: Setting) -> bool:
        """Whether the search leaves a setting out. Knobs that only affect the start are tried separately, at
        the end; and a setting with two names is tried once."""
        rows = zip(self.space.knobs, setting, self.space.start, strict=True)
        if any(choice != current and knob.moves == "start" for knob, choice, current in rows):
            return True
        return self._tried_as(setting) is not None or self.space.refusal(setting) is not None

    def _tried_as(self, setting: Setting) -> int | None:
        """The number of the run that measured the same setting, perhaps under another name."""
        wanted = self.space.effective(setting, self.settled)
        for number, trial in enumerate(self.journal.trials, 1):
            measured = self.space.effective(self.space.setting(trial.labels), self.settled)
            if trial.role == "search" and trial.values and measured == wanted:
                return number
        return None

    @property
    def _final_runs(self) -> int:
        """Runs that are reserved for the end, and are still to be made."""
        roles: tuple[Role, ...] = ("confirm", "twin")
        wanted = roles if self.space.knob_index(SPECULATION) is not None else roles[:1]
        return sum(not self.journal.of(role) for role in wanted)

    def _points(self) -> tuple[Point, ...]:
        return goal_points(self.journal.options, self.space.base)

    # --- searching for the best ---

    async def _search_best(self) -> AsyncIterator[Event]:
        while (setting := self.search.ask()) is not None:
            if self.search.observations and not self._has_time():
                if len(self.search.observations) == 1:
                    raise self._no_time_error()
                self.notes.append(self._time_over_note())
                return
            async for event in self._try(setting, "search", self._points()):
                yield event
            if self.why_unmeasured:
                if not self.search.observations:
                    raise self._no_time_error()
                self.notes.append(self._time_over_note())
                return
            trial = self.journal.trials[-1]
            if len(self.journal.trials) == 1 and trial.failed:
                if self.spent_s >= self.journal.options.budget_s:  # little was left for the first requests
                    self.why_unmeasured = (
                        f"the first run took {show_seconds(self.spent_s)} and ended so: {trial.failed}"
                    )
                    raise self._no_time_error()
                raise FiresteelError(
                    f"the current setting cannot be measured: {trial.failed}",
                    next=f"firesteel up {self.journal.ask.model}",
                )
            self.search.tell(setting, trial.values)

    def _has_time(self, more: int = 1) -> bool:
        """Whether the budget allows this many runs and the final ones, if each takes as long as those so
        far."""
        needed_s = (more + self._final_runs) * self._usual_s + self._restart_s
        return self.spent_s + needed_s <= self.journal.options.budget_s

    @property
    def _usual_s(self) -> float:
        """The longest run that was measured; failures do not count, since they are quick."""
        return max([trial.took_s for trial in self.journal.trials if trial.values] or [0.0])

    @property
    def _restart_s(self) -> float:
        """The time to start again, at the end, what ran before."""
        starts = [trial.start_s or 0.0 for trial in self.journal.trials]
        return max(starts, default=0.0) if self.journal.before else 0.0

    def _wanted_budget(self) -> str:
        runs = _LEAST_RUNS + self._final_runs
        return budget_text(runs * (self._usual_s or self.spent_s) + self._restart_s)

    def _no_time_error(self) -> FiresteelError:
        """The budget does not allow to compare two settings."""
        budget = show_seconds(self.journal.options.budget_s)
        took = self.why_unmeasured or f"a run takes about {show_seconds(self._usual_s)} here"
        return FiresteelError(
            f"a budget of {budget} does not allow to compare two settings: {took}",
            next=f"firesteel tune {self.journal.ask.model} --resume --budget {self._wanted_budget()}",
        )

    def _time_over_note(self) -> str:
        tried = len(self.journal.of("search"))
        more = f", so give --budget {self._wanted_budget()} or more" if tried < _LEAST_RUNS else ""
        took = f"a run takes about {show_seconds(self._usual_s)} here"
        return f"the time was over after {tried} of {self.space.size} settings; {took}{more}"

    # --- the best setting again, and its twin ---

    async def _confirm(self) -> AsyncIterator[Event]:
        options = self.journal.options
        if options.max_runs < 2:
            return
        best, twin = self._best, self._twin()
        if best == self.space.start and twin is None:
            return
        points = sweep_points(options, self.space.base) if twin is not None else self._points()
        stages: tuple[tuple[Role, Setting | None], ...] = (("confirm", best), ("twin", twin))
        for role, setting in stages:
            if setting is not None and not self.journal.of(role) and self._has_time(0):
                async for event in self._try(setting, role, points):
                    yield event

    @property
    def _best(self) -> Setting:
        return self.search.best.setting if self.search.best else self.space.start

    def _twin(self) -> Setting | None:
        """The best setting without its drafter; or, if it does not draft, with the best drafter that was
        tried."""
        knob = self.space.knob_index(SPECULATION)
        if knob is None or self.journal.options.max_runs < 3:
            return None
        labels, best = self.space.knobs[knob].labels, self._best
        if labels[best[knob]] != OFF:
            twin = self.space.with_choice(best, knob, labels.index(OFF))
        else:
            drafting = [o for o in self.search.observations if o.values and labels[o.setting[knob]] != OFF]
            if not drafting:
                return None
            drafter = max(drafting, key=lambda observation: observation.level).setting[knob]
            twin = self.space.with_choice(best, knob, drafter)
        return None if self.space.refusal(twin) else twin

    async def _try_starts(self) -> AsyncIterator[Event]:
        """Try other ways to load with the best setting, to see how long each takes to start."""
        done = [trial.labels for trial in self.journal.of("start")]
        for index, knob in enumerate(self.space.knobs):
            if knob.moves != "start":
                continue
            for choice in range(len(knob.choices)):
                setting = self.space.with_choice(self._best, index, choice)
                is_done = choice == self._best[index] or self.space.labels(setting) in done
                if is_done or self.space.refusal(setting):
                    continue
                if not self._has_time() or len(self.journal.trials) >= self.journal.options.max_runs:
                    return
                async for event in self._try(setting, "start", ()):
                    yield event

    # --- one run ---

    async def _try(self, setting: Setting, role: Role, points: tuple[Point, ...]) -> AsyncIterator[Event]:
        number, changes, began = len(self.journal.trials) + 1, self.space.changes(setting), uptime()
        self.why_unmeasured = ""
        yield TrialStarted(number, role, changes)
        trial, runner = Trial(self.space.labels(setting), role), self.environment.runner
        before = self.journal.before
        # On loopback, wherever the service listened: no other client should use it now.
        run_options = RunOptions(trusts_code=before.trusts_code if before else False)
        try:
            proposal = self.space.proposal(setting)
            async for step in runner.up(proposal, run_options):
                if isinstance(step, ServiceReady):
                    trial = replace(trial, start_s=step.report.start_s)
                yield step
            trial = self._with_settled(trial, setting)
            if points and trial.same_as is None:
                async for event in runner.measure(proposal, self._order(role, points, uptime() - began)):
                    if isinstance(event, CandidateScore):
                        self.why_unmeasured = event.too_short
                        trial = self._with_score(trial, event, points)
                    else:
                        yield event
        except FiresteelError as error:
            if isinstance(error, HostNotReady) and not isinstance(error, ServerNotReady):
                raise  # not the fault of the candidate
            trial = replace(trial, failed=error.what, values=())
        async for step in runner.clear(self.journal.name):
            yield step
        trial = replace(trial, took_s=uptime() - began)
        self.journal.spent_s = self.spent_s
        if self.why_unmeasured:  # the time was over, which says nothing about the setting
            self._write_journal()
            return
        self.journal.trials.append(trial)
        self._write_journal()
        yield TrialFinished(number, trial, changes)

    def _with_settled(self, trial: Trial, setting: Setting) -> Trial:
        """Add what the engine chose by itself; if that makes it a setting that was measured already, with
        its values."""
        settled = self.space.settled(setting, self.environment.runner.log(self.journal.name))
        self.settled |= settled
        trial = replace(trial, settled=settled)
        number = self._tried_as(setting) if trial.role == "search" else None
        if number is None:
            return trial
        earlier = self.journal.trials[number - 1]
        return replace(trial, values=earlier.values, run=earlier.run, same_as=number)

    def _order(self, role: Role, points: tuple[Point, ...], start_s: float) -> CandidateOrder:
        """A run gets an equal share of the budget, from which its start is taken; the last one gets the
        rest."""
        options = self.journal.options
        share_s = options.budget_s / min(_LEAST_RUNS, options.max_runs)
        later = self._final_runs if role == "search" else max(0, self._final_runs - 1)
        reserved_s = later * self._usual_s + self._restart_s
        left_s = options.budget_s - self.spent_s - reserved_s
        rest_s = left_s if self._usual_s and left_s < share_s + self._usual_s else 0.0
        most_s = max(1.0, min(max(share_s / 2, share_s - start_s, rest_s), left_s))
        return CandidateOrder(
            self.journal.id,
            points,
            len(self._points()),
            options.goal,
            options.seed,
            options.thinking,
            Effort.within(most_s),
            self.search.is_beaten if role == "search" else lambda values: False,
        )

    def _with_score(self, trial: Trial, score: CandidateScore, points: tuple[Point, ...]) -> Trial:
        trial = replace(trial, run=score.run.id, values=score.values, was_beaten=score.was_beaten)
        if not score.values:
            notes = [note for figures in score.run.figures for note in figures.notes]
            return replace(trial, failed=f"could not be measured: {notes[0] if notes else 'no valid round'}")
        if len(points) == len(self._points()):
            return trial
        rows = tuple(
            (point.text, point.users, tuple(repetition_rates(score.samples, index, "throughput").values()))
            for index, point in enumerate(points)
        )
        return replace(trial, rows=rows)

    # --- the result ---

    async def _finish(self) -> AsyncIterator[Event]:
        journal, best = self.journal, self._best
        difference = final_difference(journal, self.search)
        is_sure = bool(journal.of("confirm")) or journal.options.max_runs < 2
        is_better = is_sure and difference.verdict == "faster" and best != self.space.start
        text = self._verdict(difference)
        if not is_sure and best != self.space.start:
            text = "the time was over before the best could be measured again; nothing was changed"
        changes, name, path = self.space.changes(best), None, None
        if is_better:
            if start := fastest_start(journal, self.space):
                best, note = start
                self.notes.append(note)
            changes = self.space.changes(best)
            name, path = write_recipe(self.environment.home, journal, self.space, best, difference)
        if journal.before:
            async for event in self._run_again(best if is_better else None, name):
                yield event
        journal.ended, journal.recipe = "done", str(path) if path else None
        self._write_journal()
        rows = drafting_rows(journal)
        yield TuneResult(
            journal, self.space, changes, is_better, difference, text, rows, drafting_text(rows), name,
            path, journal.name if journal.before else None, tuple(self.notes),
        )  # fmt: skip

    def _verdict(self, difference: FigureDifference) -> str:
        base, *others = [found for found in self.search.observations if found.values]
        same = self.space.effective(base.setting, self.settled)
        others = [each for each in others if self.space.effective(each.setting, self.settled) != same]
        compared = [
            (self.space.changes(found.setting), compare_values(found.values, base.values)) for found in others
        ]
        if self._best != self.space.start:  # it was measured again
            compared = [pair for pair in compared if pair[0] != self.space.changes(self._best)]
            compared.insert(0, (self.space.changes(self._best), difference))
        return verdict_text(compared)

    def _run_again(self, setting: Setting | None, recipe: str | None) -> AsyncIterator[Event]:
        """Start the service with this setting; None: as it was."""
        before = self.journal.before
        assert before is not None
        proposal = self.space.proposal(setting) if setting else self.environment.propose(before.ask)[0]
        service_file = before.service_file
        if recipe and proposal.recipe:  # the recipe just written is what to start next time
            proposal = replace(proposal, recipe=replace(proposal.recipe, name=recipe))
            service_file = ""
        options = RunOptions(before.listen, before.trusts_code, before.at_boot, service_file)
        return self.environment.runner.up(proposal, options)

    async def restore(self) -> None:
        """After an early end: run again what ran before, with the best setting if it really is better."""
        self.journal.spent_s = self.spent_s
        self._write_journal()
        async for _ in self.environment.runner.clear(self.journal.name):
            pass
        before = self.journal.before
        if before is not None:
            is_better = self.is_planned and final_difference(self.journal, self.search).verdict == "faster"
            try:
                async for _ in self._run_again(self._best if is_better else None, None):
                    pass
            except FiresteelError as error:
                raise FiresteelError(
                    f"{self.journal.name} ran before and did not start again: {error.what}",
                    next=before.again,
                ) from error
        self.journal.is_restored = True
        self._write_journal()
