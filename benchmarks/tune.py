"""How many runs `tune` needs on the simulated Spark, against the full grid, random search and Optuna's TPE.

    python benchmarks/tune.py [--worlds 20] [--model qwen3.6-35b-a3b-nvfp4] [--users 4] [--noise 0.01]

The true speeds are those of the simulated Spark: its `EngineSpeed` for each setting of the model's real
search space, and its `Batch` driven without a clock, so a run takes milliseconds and no server. A world draws
what nobody can know beforehand: how often drafts are accepted, what drafting costs, how good each kernel and
size is, and what two of them do together. All searches see the same noisy values and begin with the current
setting.

Bar: within 2 % of the true best in at most a third of the runs of the full grid. Optuna is optional
(`pip install optuna`); the results are the reason why it is not a dependency.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import exp, log, prod

from firesteel.bench.tune.knobs import Goal
from firesteel.bench.tune.search import (
    PlanningContext,
    Search,
    SearchAxis,
    SearchSpace,
    Setting,
    make_search_space,
)
from firesteel.edge.sim.batch import ActiveAnswer, Batch, EngineSpeed
from firesteel.edge.sim.engine_config import applies, engine_speed
from firesteel.edge.sim.spark import SimSpark, TrueSpeed
from firesteel.launch import Launch
from firesteel.library import plans
from firesteel.values import replace

NEAR = 0.02
PROMPT, ANSWER = 512, 64
TEXTS = ("code", "prose")


@dataclass(slots=True)
class Truths:
    """The true speed of every setting in one world."""

    space: SearchSpace
    goal: Goal
    users: int
    world: SimSpark
    plain: dict[tuple[object, ...], dict[str, object]]
    """Speeds without the factors of the world, shared by all worlds: planning takes the time."""
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
        truths = [truth for truth in self.world.truths if applies(truth, launch)]
        slower = 1 / prod(truth.decode_times for truth in truths)
        speed = dict(self._plain(setting, launch))
        speed["step_ms"] = [(batch, ms * slower) for batch, ms in speed["step_ms"]]  # type: ignore[union-attr, attr-defined]  # a JSON document
        speed["prefill_tokens_per_s"] *= prod(truth.prefill_times for truth in truths)  # type: ignore[operator]  # a JSON document
        more = {"acceptance": dict(self.world.acceptance), "draft_cost": self.world.draft_cost}
        return EngineSpeed.read({**speed, **more})

    def _plain(self, setting: Setting, launch: Launch) -> dict[str, object]:
        """Attention backends and batch sizes do not change the plan."""
        same = ("max-num-batched-tokens", "attention-backend")
        key = (*(f"{name}={value}" for name, value in launch.flags.items() if name not in same),)
        if key not in self.plain:
            self.plain[key] = engine_speed(self.space.proposal(setting).plan, SimSpark())
        batched = launch.flags.get("max-num-batched-tokens", "2048")
        return {**self.plain[key], "batched_tokens": int(str(batched))}


async def _took(pace: EngineSpeed, users: int, text: str) -> float:
    """Seconds until all users have their answer: the steps of the simulated Spark, added up instead of
    awaited."""
    batch, took = Batch(replace(pace, caches_prefixes=False)), 0.0
    answers = [ActiveAnswer(PROMPT, [("content", "x")] * ANSWER, text) for _ in range(users)]
    for each in answers:
        batch.add(each)
    for _ in range(100_000):
        batch._admit()
        if not batch.running:
            return took
        reading = next((each for each in batch.running if each.unread), None)
        step = batch._step_s(reading)
        took += step
        batch._advance(reading, step)
    raise AssertionError("the batch never ends")


def draw(space: SearchSpace, seed: int) -> SimSpark:
    """A world in which each choice is a little better or worse, alone and in combination."""
    rng = random.Random(seed)
    truths = []
    for knob in space.knobs:
        if knob.name in ("speculation", "max-num-seqs"):
            continue
        peak = rng.uniform(0, len(knob.choices) - 1)
        for index, choice in enumerate(knob.choices):
            when = {name: str(value) for name, value in choice.flags.items() if value is not None}
            if when:
                fall = -0.04 * abs(index - peak) if knob.is_ladder else 0.0
                decode, prefill = (exp(fall + rng.gauss(0, 0.08)) for _ in range(2))
                truths.append(TrueSpeed(when=when, decode_times=decode, prefill_times=prefill))
    pairs = [(a, b) for a, b in product(truths, truths) if set(a.when).isdisjoint(b.when)]
    for a, b in rng.sample(pairs, min(12, len(pairs))):
        truths.append(TrueSpeed(when={**a.when, **b.when}, decode_times=exp(rng.gauss(0, 0.04))))
    taken = {text: rng.uniform(0.3, 0.9) for text in SimSpark().acceptance}
    return SimSpark(truths=tuple(truths), acceptance=taken, draft_cost=rng.uniform(0.03, 0.4))


# --- searches: each yields the settings that it tries and calls `measured` ---


def axes(space: SearchSpace) -> list[SearchAxis]:
    return [SearchAxis(len(knob.choices), knob.is_ladder) for knob in space.knobs]


def ours(truth: Truths, measured: Callable[[Setting], list[float]], seed: int) -> Iterator[Setting]:
    space = truth.space
    search = Search(
        axes(space), space.start,
        lambda setting: space.expected_speed(setting, truth.goal, TEXTS, truth.users),  # type: ignore[arg-type]  # TEXTS are Text
        lambda setting: _is_excluded(space, setting), max_runs=space.size, seed=seed,
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
        if _is_excluded(space, setting):
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        study.tell(trial, statistics.fmean(measured(setting)))
        if setting not in tried:  # a repeated setting is not charged
            tried.add(setting)
            yield setting
        if len(tried) == len(grid(space)):
            return


def _is_excluded(space: SearchSpace, setting: Setting) -> bool:
    rows = zip(space.knobs, setting, space.start, strict=True)
    moved = any(choice != current and knob.moves == "start" for knob, choice, current in rows)
    return moved or space.refusal(setting) is not None


_GRIDS: dict[int, list[Setting]] = {}


def grid(space: SearchSpace) -> list[Setting]:
    if id(space) not in _GRIDS:
        every = product(*(range(len(knob.choices)) for knob in space.knobs))
        _GRIDS[id(space)] = [setting for setting in every if not _is_excluded(space, setting)]
    return list(_GRIDS[id(space)])


@dataclass(frozen=True, slots=True)
class Outcome:
    runs: int
    """Until it ended, or the whole grid was tried."""
    near_after: int | None
    """Runs until its best setting was within 2 % of the true best, and stayed so."""
    lost: float
    """Share of the best speed that it missed in the end."""


def evaluate(
    method: Callable[..., Iterator[Setting]], truth: Truths, best: float, noise: float, seed: int, most: int
) -> Outcome:
    rng, seen, off = random.Random(f"noise {seed}"), dict[Setting, float](), list[float]()

    def measured(setting: Setting) -> list[float]:
        values = [truth.score(setting) * exp(rng.gauss(0, noise)) for _ in range(4)]
        seen[setting] = statistics.fmean(values)
        return values

    for runs, _ in enumerate(method(truth, measured, seed), 1):
        off.append(1 - truth.score(max(seen, key=lambda setting: seen[setting])) / best)
        if runs >= most:
            break
    misses = [run for run, share in enumerate(off, 1) if share > NEAR]
    near = (misses[-1] if misses else 0) + 1
    return Outcome(len(off), near if near <= len(off) else None, off[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--model", default="qwen3.6-35b-a3b-nvfp4")
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--noise", type=float, default=0.01)
    parser.add_argument("--goal", choices=("latency", "throughput"), default="throughput")
    options = parser.parse_args()
    base = plans.plan(options.model, host_name="gb10", context=8192, users=options.users)[0]
    known = plans.catalog()
    context = PlanningContext(known.images, recipes=tuple(known.recipes.values()))
    space = make_search_space(base, options.goal, options.users, context)
    methods: dict[str, Callable[..., Iterator[Setting]]] = {"tune": ours, "random": at_random}
    try:
        import optuna  # noqa: F401  # only to check whether it is installed

        methods["Optuna TPE"] = tpe
    except ImportError:
        print("optuna is not installed: left out", file=sys.stderr)
    began, plain = time.monotonic(), dict[tuple[object, ...], dict[str, object]]()
    found: dict[str, list[Outcome]] = {name: [] for name in methods}
    whole = len(grid(space))
    for seed in range(options.worlds):
        truth = Truths(space, options.goal, options.users, draw(space, seed), plain, {})
        best = max(truth.score(setting) for setting in grid(space))
        for name, method in methods.items():
            most = whole if name == "tune" else whole // 3
            found[name].append(evaluate(method, truth, best, options.noise, seed, most))
    _print(options, whole, found, time.monotonic() - began)


def _print(options: argparse.Namespace, whole: int, found: dict[str, list[Outcome]], took: float) -> None:
    load = f"{options.model}, {options.goal}, {options.users} users"
    print(f"{load}, {options.worlds} worlds, noise {options.noise:.0%}")
    print(f"full grid: {whole} runs; a third: {whole // 3}; {took:.0f} s in all\n")
    print("| search | runs, median and worst | within 2 % after | of the worlds | lost, mean | worst |")
    print("|---|---|---|---|---|---|")
    ended = [outcome.runs for outcome in found["tune"]]
    for name, outcomes in found.items():
        near = sorted(outcome.near_after or whole for outcome in outcomes)
        runs = sorted(outcome.runs for outcome in outcomes)
        good = sum(outcome.near_after is not None for outcome in outcomes)
        lost = [outcome.lost for outcome in outcomes]
        print(
            f"| {name} | {statistics.median(runs):g}, {runs[-1]} | {statistics.median(near):g}, {near[-1]} "
            f"| {good}/{len(outcomes)} | {statistics.fmean(lost):.1%} | {max(lost):.1%} |"
        )
    worst = max(ended)
    good = all(outcome.near_after is not None for outcome in found["tune"]) and worst <= whole / 3
    print(f"\nbar (all worlds within 2 %, at most {whole // 3} runs): {'met' if good else 'missed'}")


if __name__ == "__main__":
    main()
