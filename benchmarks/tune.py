"""How many runs `tune` needs, on the pretend Spark, against the full grid, random search and Optuna's TPE.

    python benchmarks/tune.py [--worlds 20] [--model qwen3.6-35b-a3b-nvfp4] [--users 4] [--noise 0.01]

The truth is the pretend Spark's own: its `Pace` for each setting of the real space of the model, and its
`Batch` driven without a clock, so a run takes milliseconds and no server. A world draws what nobody can
know beforehand: how often drafts are taken, what drafting costs, how good each kernel and each size is here,
and what two of them do together. All searches see the same noisy values and begin at the setting as it is.

Bar: within 2 % of the true best in at most a third of the runs of the full grid. Optuna is optional
(`pip install optuna`): it is not a dependency, for what the table says.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log

from firesteel import library
from firesteel.bench.tune.knobs import Goal
from firesteel.bench.tune.proposals import PlanningContext
from firesteel.bench.tune.search import Search, SearchAxis
from firesteel.bench.tune.space import SearchSpace, Setting, make_search_space
from firesteel.launch import Launch
from firesteel.sim import SimSpark, TrueSpeed
from firesteel.sim.docker.run_command import _applies, _pace, _product
from firesteel.sim.engine.batch import ActiveAnswer, Batch, EngineSpeed

NEAR = 0.02
PROMPT, ANSWER = 512, 64
TEXTS = ("code", "prose")
Score = Callable[[Setting], float]


@dataclass(slots=True)
class Truths:
    """The true figure of each setting of a space in one world."""

    space: SearchSpace
    goal: Goal
    users: int
    world: SimSpark
    plain: dict[tuple[object, ...], dict[str, object]]
    """Paces without the world's factors, shared by all worlds: planning is what takes the time."""
    known: dict[Setting, float]

    def score(self, setting: Setting) -> float:
        if setting not in self.known:
            pace = self._pace(setting)
            rates = [self._rate(pace, text) for text in TEXTS]
            self.known[setting] = exp(sum(map(log, rates)) / len(rates))
        return self.known[setting]

    def _rate(self, pace: EngineSpeed, text: str) -> float:
        users = self.users if self.goal == "throughput" else 1
        return users * ANSWER / asyncio.run(_took(pace, users, text))

    def _pace(self, setting: Setting) -> EngineSpeed:
        launch = self.space.proposal(setting).plan.launch
        truths = [each for each in self.world.truths if _applies(each, launch)]
        slower = 1 / _product(each.decode_times for each in truths)
        told = dict(self._plain(setting, launch))
        told["step_ms"] = [(many, ms * slower) for many, ms in told["step_ms"]]  # type: ignore[union-attr, attr-defined]  # a JSON document
        told["prefill_tokens_per_s"] *= _product(each.prefill_times for each in truths)  # type: ignore[operator]  # a JSON document
        more = {"acceptance": dict(self.world.acceptance), "draft_cost": self.world.draft_cost}
        return EngineSpeed.read({**told, **more})

    def _plain(self, setting: Setting, launch: Launch) -> dict[str, object]:
        """Backends and sizes of a prompt's steps do not change what the planner says."""
        same = ("max-num-batched-tokens", "attention-backend")
        key = (*(f"{name}={value}" for name, value in launch.flags.items() if name not in same),)
        if key not in self.plain:
            self.plain[key] = _pace(self.space.proposal(setting).plan, SimSpark())
        batched = launch.flags.get("max-num-batched-tokens", "2048")
        return {**self.plain[key], "batched_tokens": int(str(batched))}


async def _took(pace: EngineSpeed, users: int, text: str) -> float:
    """Seconds until all have their answer: the pretend Spark's own steps, added up instead of waited for."""
    batch, took = Batch(replace(pace, caches_prefixes=False)), 0.0
    asked = [ActiveAnswer(PROMPT, [("content", "x")] * ANSWER, text) for _ in range(users)]
    for each in asked:
        batch.add(each)
    for _ in range(100_000):
        batch._admit()
        if not batch.running:
            return took
        reading = next((each for each in batch.running if each.unread), None)
        step = batch._step_s(reading)
        took += step
        batch._advance(reading, step)
    raise AssertionError("it does not end")


def draw(space: SearchSpace, seed: int) -> SimSpark:
    """A world in which each choice is a little better or worse, alone and beside others."""
    lot = random.Random(seed)
    truths = []
    for knob in space.knobs:
        if knob.name in ("speculation", "max-num-seqs"):
            continue
        peak = lot.uniform(0, len(knob.choices) - 1)
        for at, choice in enumerate(knob.choices):
            when = {name: str(value) for name, value in choice.flags.items() if value is not None}
            if when:
                fall = -0.04 * abs(at - peak) if knob.is_ladder else 0.0
                decode, prefill = (exp(fall + lot.gauss(0, 0.08)) for _ in range(2))
                truths.append(TrueSpeed(when=when, decode_times=decode, prefill_times=prefill))
    pairs = [(a, b) for a, b in product(truths, truths) if set(a.when).isdisjoint(b.when)]
    for a, b in lot.sample(pairs, min(12, len(pairs))):
        truths.append(TrueSpeed(when={**a.when, **b.when}, decode_times=exp(lot.gauss(0, 0.04))))
    taken = {text: lot.uniform(0.3, 0.9) for text in SimSpark().acceptance}
    return SimSpark(truths=tuple(truths), acceptance=taken, draft_cost=lot.uniform(0.03, 0.4))


# --- searches: each yields the settings that it tries, and is sent nothing: it calls `measured` ---


def axes(space: SearchSpace) -> list[SearchAxis]:
    return [SearchAxis(len(knob.choices), knob.is_ladder) for knob in space.knobs]


def ours(truth: Truths, measured: Callable[[Setting], list[float]], seed: int) -> Iterator[Setting]:
    space = truth.space
    search = Search(
        axes(space), space.start,
        lambda setting: space.expected_speed(setting, truth.goal, TEXTS, truth.users),  # type: ignore[arg-type]  # TEXTS are Text
        lambda setting: _barred(space, setting), max_runs=space.size, seed=seed,
    )  # fmt: skip
    while (setting := search.ask()) is not None:
        search.tell(setting, measured(setting))
        yield setting


def at_random(truth: Truths, measured: Callable[[Setting], list[float]], seed: int) -> Iterator[Setting]:
    every = grid(truth.space)
    random.Random(seed).shuffle(every)
    every.sort(key=lambda setting: setting != truth.space.start)
    for setting in every:
        measured(setting)
        yield setting


def tpe(truth: Truths, measured: Callable[[Setting], list[float]], seed: int) -> Iterator[Setting]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space, tried = truth.space, set()
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=8, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    names = [knob.name for knob in space.knobs]
    study.enqueue_trial(dict(zip(names, space.start, strict=True)))
    for _ in range(20 * space.size):
        trial = study.ask()
        setting = tuple(
            trial.suggest_int(knob.name, 0, len(knob.choices) - 1)
            if knob.is_ladder
            else trial.suggest_categorical(knob.name, list(range(len(knob.choices))))
            for knob in space.knobs
        )
        if _barred(space, setting):
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        study.tell(trial, statistics.fmean(measured(setting)))
        if setting not in tried:  # a repeated setting is not charged
            tried.add(setting)
            yield setting
        if len(tried) == len(grid(space)):
            return


def _barred(space: SearchSpace, setting: Setting) -> bool:
    rows = zip(space.knobs, setting, space.start, strict=True)
    moved = any(at != was and knob.moves == "start" for knob, at, was in rows)
    return moved or space.refusal(setting) is not None


_GRIDS: dict[int, list[Setting]] = {}


def grid(space: SearchSpace) -> list[Setting]:
    if id(space) not in _GRIDS:
        every = product(*(range(len(knob.choices)) for knob in space.knobs))
        _GRIDS[id(space)] = [setting for setting in every if not _barred(space, setting)]
    return list(_GRIDS[id(space)])


@dataclass(frozen=True, slots=True)
class Outcome:
    runs: int
    """Until it ended, or the grid was through."""
    near_after: int | None
    """Runs until the setting that it takes for the best was within 2 %, for good."""
    lost: float
    """Of the best, when it ended."""


def play(
    method: Callable[..., Iterator[Setting]], truth: Truths, best: float, noise: float, seed: int, most: int
) -> Outcome:
    lot, seen, off = random.Random(f"noise {seed}"), dict[Setting, float](), list[float]()

    def measured(setting: Setting) -> list[float]:
        values = [truth.score(setting) * exp(lot.gauss(0, noise)) for _ in range(4)]
        seen[setting] = statistics.fmean(values)
        return values

    for runs, _ in enumerate(method(truth, measured, seed), 1):
        off.append(1 - truth.score(max(seen, key=lambda each: seen[each])) / best)
        if runs >= most:
            break
    far = [at for at, share in enumerate(off, 1) if share > NEAR]
    near = (far[-1] if far else 0) + 1
    return Outcome(len(off), near if near <= len(off) else None, off[-1])


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--worlds", type=int, default=20)
    words.add_argument("--model", default="qwen3.6-35b-a3b-nvfp4")
    words.add_argument("--users", type=int, default=4)
    words.add_argument("--noise", type=float, default=0.01)
    words.add_argument("--goal", choices=("latency", "throughput"), default="throughput")
    given = words.parse_args()
    base = library.plan(given.model, host_name="gb10", context=8192, users=given.users)[0]
    known = library.catalog()
    around = PlanningContext(known.images, recipes=tuple(known.recipes.values()))
    space = make_search_space(base, given.goal, given.users, around)
    methods: dict[str, Callable[..., Iterator[Setting]]] = {"tune": ours, "random": at_random}
    try:
        import optuna  # noqa: F401  # only to see whether it is there

        methods["Optuna TPE"] = tpe
    except ImportError:
        print("optuna is not installed: left out", file=sys.stderr)
    began, plain = time.monotonic(), dict[tuple[object, ...], dict[str, object]]()
    found: dict[str, list[Outcome]] = {name: [] for name in methods}
    whole = len(grid(space))
    for seed in range(given.worlds):
        truth = Truths(space, given.goal, given.users, draw(space, seed), plain, {})
        best = max(truth.score(setting) for setting in grid(space))
        for name, method in methods.items():
            most = whole if name == "tune" else whole // 3
            found[name].append(play(method, truth, best, given.noise, seed, most))
    _print(given, whole, found, time.monotonic() - began)


def _print(given: argparse.Namespace, whole: int, found: dict[str, list[Outcome]], took: float) -> None:
    print(f"{given.model}, {given.goal}, {given.users} users, {given.worlds} worlds, noise {given.noise:.0%}")
    print(f"full grid: {whole} runs; a third: {whole // 3}; {took:.0f} s in all\n")
    print("| search | runs, median and worst | within 2 % after | of the worlds | lost, mean | worst |")
    print("|---|---|---|---|---|---|")
    ended = [each.runs for each in found["tune"]]
    for name, outcomes in found.items():
        near = sorted(each.near_after or whole for each in outcomes)
        runs = sorted(each.runs for each in outcomes)
        good = sum(each.near_after is not None for each in outcomes)
        lost = [each.lost for each in outcomes]
        print(
            f"| {name} | {statistics.median(runs):g}, {runs[-1]} | {statistics.median(near):g}, {near[-1]} "
            f"| {good}/{len(outcomes)} | {statistics.fmean(lost):.1%} | {max(lost):.1%} |"
        )
    worst = max(ended)
    good = all(each.near_after is not None for each in found["tune"]) and worst <= whole / 3
    print(f"\nbar (all worlds within 2 %, at most {whole // 3} runs): {'met' if good else 'missed'}")


if __name__ == "__main__":
    main()
