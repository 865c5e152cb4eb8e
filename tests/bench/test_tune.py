"""A whole tune, on the simulated Spark's truth: what it finds, what it leaves, and what survives a kill."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from firesteel import shipped_data
from firesteel.bench.compare.stats import compare_values
from firesteel.bench.measurements import Point, RequestSample
from firesteel.bench.results.history import open_history
from firesteel.bench.tune.candidate import rounds
from firesteel.bench.tune.journal import (
    Journal,
    RunningBefore,
    Trial,
    TuneOptions,
    read_journal,
    unfinished_journal,
    write_journal,
)
from firesteel.bench.tune.knobs import AS_IT_IS, Knob, KnobChoice, KnobSchema
from firesteel.bench.tune.outcome import (
    TrialFinished,
    TuneResult,
    compare_drafting,
    drafting_text,
    verdict_text,
)
from firesteel.bench.tune.search import PlanningContext
from firesteel.bench.tune.tune import TuneEnvironment, tune
from firesteel.catalog.catalog import overlay, shipped
from firesteel.catalog.launches import from_recipe
from firesteel.edge.home import Home
from firesteel.edge.sim.spark import SimSpark, TrueSpeed
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import LOOPBACK, Ask, Launch
from firesteel.library import plans
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.propose import Proposal
from firesteel.run.spec import RunOptions
from firesteel.values import replace
from tests.bench.simulated_tune import SimulatedRunner, true_score

GB10 = idle_host(hardware("gb10"))
MODEL = "qwen3.6-35b-a3b-nvfp4"
ASK = Ask(MODEL, 8192, 4, 8123)
KNOBS = ("speculation", "attention-backend", "max-num-batched-tokens")
WISH = TuneOptions(texts=("code",), users=1, answer_tokens=64, prompt_tokens=128, only=KNOBS)
RAN = RunningBefore(ASK, "0.0.0.0", False, True, "/etc/service.yaml")

KERNELS = (
    TrueSpeed(when={"attention-backend": "TRITON_ATTN"}, decode_times=1.25),
    TrueSpeed(when={"max-num-batched-tokens": "4096"}, decode_times=1.04),
)
BETTER = SimSpark(truths=KERNELS)
AS_GOOD = SimSpark(
    truths=(TrueSpeed(when={"attention-backend": "flashinfer"}, decode_times=1.6),), draft_cost=0.05
)
"""The setting as it is has the best kernel, and three drafted tokens are best."""


@cache
def planning_context() -> PlanningContext:
    known = plans.catalog()
    return PlanningContext(known.images, recipes=tuple(known.recipes.values()))


@cache
def proposed(ask: Ask) -> tuple[Proposal, ...]:
    return plans.propose(ask, GB10)


class Bench:
    """A home, runner and a journal."""

    def __init__(
        self,
        root: Path,
        world: SimSpark = BETTER,
        wish: TuneOptions = WISH,
        before: RunningBefore | None = None,
    ) -> None:
        self.home = Home(root)
        self.history = open_history(self.home)
        self.runner = SimulatedRunner(self.home, self.history, lambda: GB10, world)
        self.default_port = 8123
        self.journal = Journal("t1", "2026-11-15", MODEL, ASK, wish, before)

    @property
    def environment(self) -> TuneEnvironment:
        return TuneEnvironment(
            self.home,
            lambda ask: proposed(ask if ask.port else replace(ask, port=self.default_port)),
            planning_context,
            self.runner,
        )

    async def run(self, until: int = 10_000) -> TuneResult | None:
        """None: dropped after so many runs, as a caller that goes away does."""
        events, done, seen = tune(self.journal, self.environment), None, 0
        async for event in events:
            done = event if isinstance(event, TuneResult) else done
            seen += isinstance(event, TrialFinished)
            if seen >= until:
                await events.aclose()  # type: ignore[attr-defined]  # it is a generator
                return None
        return done


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Any]:
    made: list[Bench] = []

    def make(**more: Any) -> Bench:
        made.append(Bench(tmp_path / "home", **more))
        return made[-1]

    yield make
    for each in made:
        each.history.close()


async def test_the_best_is_found_and_written(bench: Any) -> None:
    one: Bench = bench()
    done = await one.run()
    assert done is not None and done.is_better and done.difference.low > 1.1
    space, points = done.space, (Point("single", "code", 1, 128, 64),)
    settings = product(*(range(len(knob.choices)) for knob in space.knobs))
    grid = [setting for setting in settings if not space.refusal(setting)]
    best = max(true_score(space.proposal(each), BETTER, points, "latency") for each in grid)
    found = next(each for each in grid if space.changes(each) == done.changes)
    assert true_score(space.proposal(found), BETTER, points, "latency") >= 0.98 * best
    assert len(one.journal.of("search")) <= len(grid) / 3
    # the recipe: read by the catalog, and the same launch
    known = overlay(shipped(), one.home.catalog_files())
    recipe = known.recipes[f"{MODEL}-tuned"]
    assert recipe.status == "measured" and all(
        str(each.run) in str(recipe.note) for each in one.journal.trials
    )
    again = from_recipe(known, recipe, Ask(port=8123, name=MODEL))
    assert launch_key(again) == launch_key(space.proposal(found).plan.launch)
    # nothing ran before, so nothing runs now
    assert not one.runner.running and done.running is None
    assert read_journal(one.home, "t1").ended == "done"


async def test_nothing_changes_if_nothing_is_better(bench: Any) -> None:
    one: Bench = bench(world=AS_GOOD, before=RAN)
    done = await one.run()
    assert done is not None and not done.is_better and "nothing was changed" in done.text
    assert not one.home.catalog.exists() and done.recipe is None
    (running,) = one.runner.running
    assert launch_key(running) == launch_key(proposed(ASK)[0].plan.launch)
    assert one.runner.run_options[-1] == RunOptions("0.0.0.0", False, True, "/etc/service.yaml")
    assert one.runner.recipes[-1] == MODEL


async def test_the_service_runs_again_with_the_best_setting(bench: Any) -> None:
    one: Bench = bench(before=RAN)
    done = await one.run()
    assert done is not None and done.running == MODEL
    (running,) = one.runner.running
    assert running.flags["attention-backend"] == "TRITON_ATTN" and running.name == MODEL
    last = one.runner.run_options[-1]
    assert (last.listen, last.at_boot, last.service_file) == ("0.0.0.0", True, "")
    assert one.runner.recipes[-1] == f"{MODEL}-tuned"
    assert all(each.listen == LOOPBACK and not each.at_boot for each in one.runner.run_options[:-1])


async def test_a_candidate_that_fails_verification_is_out(bench: Any) -> None:
    one: Bench = bench()
    one.runner.broken["TRITON_ATTN"] = FiresteelError("it came up, but its answers are wrong (facts)")
    done = await one.run()
    assert done is not None
    failed = [each for each in one.journal.trials if each.failed]
    assert failed and all("answers are wrong" in str(each.failed) and not each.values for each in failed)
    assert done.changes.get("attention-backend") != "TRITON_ATTN"
    assert len(failed) <= 2  # a choice that never comes up is left alone


async def test_it_ends_if_the_current_setting_cannot_be_measured(bench: Any) -> None:
    one: Bench = bench(before=RAN)
    one.runner.broken["flashinfer"] = FiresteelError("CUDA out of memory")
    with pytest.raises(FiresteelError, match=r"did not start again: .*CUDA out of memory") as failed:
        await one.run()
    assert failed.value.next == RAN.again


async def test_a_failed_plan_restores_the_service(bench: Any) -> None:
    """It was stopped to see the memory free; a wish that does not fit must not cost the service."""
    one: Bench = bench(before=RAN)
    one.journal.ask = replace(ASK, context=131072, users=64)
    one.runner.running.append(proposed(ASK)[0].plan.launch)
    with pytest.raises(FiresteelError, match="does not fit"):
        await one.run()
    (running,) = one.runner.running
    assert launch_key(running) == launch_key(proposed(ASK)[0].plan.launch)


async def test_a_host_that_is_not_ready_ends_the_tune(bench: Any) -> None:
    one: Bench = bench()
    one.runner.broken["TRITON_ATTN"] = HostNotReady("the docker daemon does not answer")
    with pytest.raises(HostNotReady, match="docker"):
        await one.run()
    assert not one.runner.running and not any(each.failed for each in one.journal.trials)
    one.runner.broken.clear()
    one.journal = read_journal(one.home, "t1")
    done = await one.run()
    assert done is not None and done.is_better


async def test_an_early_end_restores_the_service(bench: Any) -> None:
    one: Bench = bench(world=AS_GOOD, before=RAN)
    assert await one.run(until=2) is None
    (running,) = one.runner.running
    assert launch_key(running) == launch_key(proposed(ASK)[0].plan.launch)
    kept = read_journal(one.home, "t1")
    assert kept.ended is None and kept.is_restored and len(kept.trials) == 2
    assert unfinished_journal(one.home, MODEL) is not None and unfinished_journal(one.home, "other") is None


async def test_cancelled_during_a_start(bench: Any) -> None:
    one: Bench = bench(before=RAN)
    events = tune(one.journal, one.environment)

    async def go() -> None:
        async for _ in events:
            if len(one.runner.ups) == 3:
                await asyncio.sleep(3600)

    task = asyncio.create_task(go())
    async with asyncio.timeout(60):
        while len(one.runner.ups) < 3:
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await events.aclose()  # type: ignore[attr-defined]  # it is a generator
    assert len(one.runner.running) == 1 and len(read_journal(one.home, "t1").trials) == 2


async def test_a_killed_tune_continues_and_repeats_nothing(bench: Any) -> None:
    whole: Bench = bench()
    first = await whole.run()
    assert first is not None
    settings = [dict(each.labels) for each in whole.journal.trials]
    assert len(settings) > 5
    for cut in (1, len(settings) - 1):
        again: Bench = bench()
        again.journal = read_journal(whole.home, "t1")
        again.journal.ended = None
        again.journal.trials = again.journal.trials[:cut]
        again.runner.running.append(
            again.environment.propose(ASK)[0].plan.launch
        )  # a candidate that nobody stopped
        done = await again.run()
        assert done is not None and done.changes == first.changes
        assert [dict(each.labels) for each in again.journal.trials] == settings
        assert len(again.runner.ups) == len(settings) - cut and not again.runner.running


async def test_no_more_starts_than_allowed(bench: Any) -> None:
    one: Bench = bench(wish=replace(WISH, max_runs=5))
    done = await one.run()
    assert done is not None and len(one.runner.ups) <= 5
    assert {each.role for each in one.journal.trials} == {"search", "confirm", "twin"}


async def test_a_budget_that_is_too_short_is_refused_and_continues_with_a_longer_one(bench: Any) -> None:
    one: Bench = bench(wish=replace(WISH, budget_s=1e-6), before=RAN)
    with pytest.raises(FiresteelError, match="does not allow to compare two settings") as failed:
        await one.run()
    assert str(failed.value.next).startswith(f"firesteel tune {MODEL} --resume --budget ")
    (running,) = one.runner.running  # as it was
    assert launch_key(running) == launch_key(proposed(ASK)[0].plan.launch)
    one.journal = read_journal(one.home, "t1")
    assert len(one.journal.trials) == 1
    one.journal.options = WISH
    done = await one.run()
    assert done is not None and done.is_better
    assert one.journal.trials[0].labels not in [each.labels for each in one.journal.trials[1:]]


async def test_a_budget_that_ends_with_the_first_start_is_called_too_short(bench: Any) -> None:
    """1.1 s were left for the first requests, and `up` was advised."""
    one: Bench = bench(wish=replace(WISH, budget_s=1e-6))
    one.runner.broken["flashinfer"] = FiresteelError("it did not answer a few tiny requests in 1.1 s")
    with pytest.raises(FiresteelError, match=r"not allow to compare two settings: .* in 1\.1 s") as failed:
        await one.run()
    assert str(failed.value.next).startswith(f"firesteel tune {MODEL} --resume --budget ")


async def test_a_current_setting_that_could_not_be_measured_is_tried_again(bench: Any) -> None:
    one: Bench = bench()
    one.runner.broken["flashinfer"] = FiresteelError("could not be measured: no valid round")
    with pytest.raises(FiresteelError, match="the current setting cannot be measured"):
        await one.run()
    one.runner.broken.clear()
    one.journal = read_journal(one.home, "t1")
    done = await one.run()
    assert done is not None and done.is_better and not one.journal.trials[0].failed


async def test_a_search_over_other_settings_begins_anew(bench: Any) -> None:
    """Another release of the engine has other choices: what was measured with those that are gone is void."""
    one: Bench = bench()
    await one.run(until=3)
    one.journal = read_journal(one.home, "t1")
    one.journal.trials[1] = replace(one.journal.trials[1], labels={"attention-backend": "GONE"})
    done = await one.run()
    assert done is not None and done.is_better
    assert all(done.space.knows(each.labels) for each in one.journal.trials)


async def test_one_setting_is_not_measured_under_two_names(bench: Any) -> None:
    """What is left to the engine is one of the other choices, as its log says."""

    def logged(launch: Launch) -> str:
        tokens = launch.flags.get("max-num-batched-tokens", "2048")
        backend = launch.flags.get("attention-backend", "TRITON_ATTN")
        return f"Chunked prefill is enabled with max_num_batched_tokens={tokens}.\nUsing {backend} backend."

    one: Bench = bench()
    one.runner.logs.append(logged)
    done = await one.run()
    assert done is not None and done.is_better
    measured = [
        (each.labels["speculation"], *map(settled(each), KNOBS[1:]))
        for each in one.journal.of("search")
        if each.same_as is None
    ]
    assert len(measured) == len(set(measured)), measured
    assert AS_IT_IS in str([each.labels for each in one.journal.of("search")])


def settled(trial: Trial) -> Callable[[str], str]:
    return lambda knob: {**trial.labels, **trial.settled}[knob]


@pytest.mark.parametrize(
    ("engine", "name", "line", "label"),
    [
        ("llamacpp", "threads", "system_info: n_threads = 1 (n_threads_batch = 1) / 2 | CPU : SSE3 = 1", "1"),
        ("llamacpp", "flash-attn", "resolve_fused_ops: Flash Attention enabled", "on"),
        (
            "vllm",
            "max-num-batched-tokens",
            "enabled with max_num_batched_tokens=8192.",
            "8192",
        ),
        ("vllm", "attention-backend", "Using FLASH_ATTN attention backend out of potential", "FLASH_ATTN"),
        ("vllm", "attention-backend", "Using FLASH_ATTN backend.\nUsing FLASHINFER attention backend", None),
        (
            "sglang",
            "attention-backend",
            "Attention backend not specified. Use triton backend by",
            "triton",
        ),
        ("sglang", "chunked-prefill-size", "context_len=4096, chunked_prefill_size=8192, max", "8192"),
    ],
)
def test_what_the_engine_chose_is_read_from_its_log(
    engine: str, name: str, line: str, label: str | None
) -> None:
    schemas = shipped_data.load("bench/space.yaml", dict[str, list[KnobSchema]])[engine]
    schema = next(each for each in schemas if each.knob == name)
    values = [{"half": "1", "all": "2"}.get(value, value) for value in schema.values]
    knob = Knob(name, tuple(map(KnobChoice, (AS_IT_IS, *values))), seen=schema.seen or "")
    assert knob.settled(line) == label and knob.settled("nothing of it") is None


async def test_a_budget_is_shared_among_the_runs(bench: Any) -> None:
    """The first run must leave time for others; a long start takes from its own share."""
    one: Bench = bench(wish=replace(WISH, budget_s=120.0, max_runs=4))
    await one.run()
    assert len(one.runner.efforts) == 4
    for effort in one.runner.efforts:
        assert effort.quick.budget_s <= effort.thorough.budget_s <= 120 / 4


async def test_a_port_in_use_is_not_needed(bench: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        one: Bench = bench(wish=replace(WISH, max_runs=2))
        one.journal.ask = replace(ASK, port=port)
        with pytest.raises(HostNotReady, match=f"port {port} is in use") as failed:
            await one.run()
        assert str(failed.value.next).startswith(f"firesteel tune {MODEL} --port ")
        assert not one.runner.ups
        one.default_port, one.journal.ask = port, replace(ASK, port=None)
        done = await one.run()
        assert done is not None and {launch.port for launch in one.runner.ups}.isdisjoint({port})


async def test_it_says_so_if_it_cannot_tell(bench: Any) -> None:
    """The intervals are wider than the differences: neither better nor not."""
    one: Bench = bench(wish=replace(WISH, max_runs=4))
    one.runner = replace(one.runner, noise=0.6)
    done = await one.run()
    assert done is not None and not done.is_better
    assert "cannot tell whether" in done.text and "nothing was changed" in done.text
    assert "no setting that was tried is better" not in done.text


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((50.0, 50.1, 49.9), "no setting that was tried is better"),
        ((40.0, 40.1, 39.9), "no setting that was tried is better"),
        ((60.0, 60.1, 59.9), "kernel b: 1.20 x (1.19 to 1.21) as fast as before"),
        ((50.0, 90.0, 20.0), "cannot tell whether kernel b is better: 0.90 x ("),
        ((60.0,), "cannot tell whether kernel b is better: 1.20 x (measured once)"),
    ],
)
def test_the_verdict(values: tuple[float, ...], says: str) -> None:
    base = (50.0, 50.1, 49.9)
    assert says in verdict_text([({"kernel": "b"}, compare_values(values, base))])
    assert "nothing is known" in verdict_text([])


def test_the_verdict_counts_the_other_settings() -> None:
    open_one = compare_values((50.0, 90.0, 20.0), (50.0, 50.1, 49.9))
    one, two, three = (({"kernel": name}, open_one) for name in "bcd")
    assert "as fast as before, nor about 1 other; " in verdict_text([one, two])
    assert "as fast as before, nor about 2 others; " in verdict_text([one, two, three])


async def test_every_finished_run_is_in_the_journal(bench: Any) -> None:
    """Whoever kills it after this event finds it there."""
    one: Bench = bench(wish=replace(WISH, max_runs=4))
    async for event in tune(one.journal, one.environment):
        if isinstance(event, TrialFinished):
            assert read_journal(one.home, "t1").trials[-1] == event.trial
            assert len(read_journal(one.home, "t1").trials) == event.number
    assert len(one.journal.trials) == 4


async def test_only_one_at_a_time(bench: Any) -> None:
    one: Bench = bench()
    events = tune(one.journal, one.environment)
    await anext(events)
    with pytest.raises(FiresteelError, match="another tune"):
        await one.run()
    await events.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_where_drafting_loses(bench: Any) -> None:
    """By text and by how many: the truth is known, so each row can be held against it."""
    world = replace(BETTER, acceptance={**SimSpark().acceptance, "prose": 0.15, "code": 0.9}, draft_cost=0.2)
    one: Bench = bench(world=world, wish=replace(WISH, texts=("code", "prose"), users=8))
    one.journal.ask = replace(ASK, users=8)
    done = await one.run()
    assert done is not None and done.drafts
    assert {(row.text, row.users) for row in done.drafts} >= {
        ("code", 1),
        ("prose", 1),
        ("code", 8),
        ("prose", 4),
    }
    prose, code = done.advice[1], done.advice[0]
    assert prose.startswith("prose: drafting loses from one user on"), done.advice
    assert code.startswith("code: drafting") and "loses from one user" not in code
    alone = next(row for row in done.drafts if (row.text, row.users) == ("code", 1))
    assert alone.difference.ratio > 1.2


async def test_load_format_is_chosen_by_start_time(bench: Any) -> None:
    one: Bench = bench(wish=replace(WISH, only=(*KNOBS, "load-format")))
    one.runner.start_s.update({"fastsafetensors": 60.0, "auto": 40.0})
    done = await one.run()
    assert (
        done is not None
        and done.changes["load-format"] == "auto"
        and "each was started once" in done.notes[0]
    )
    assert all(each.labels["load-format"] == "fastsafetensors" for each in one.journal.of("search"))


async def test_an_unknown_knob_is_named(bench: Any) -> None:
    one: Bench = bench(wish=replace(WISH, only=("nonsense",)))
    with pytest.raises(UsageError, match="no knob `nonsense`"):
        await one.run()


async def test_a_best_that_fails_to_start_again_does_not_count(bench: Any) -> None:
    """It was the best of the search; when measured afresh it failed, so nothing changes."""
    one: Bench = bench()
    searched = await one.run()
    assert searched is not None and searched.is_better
    again: Bench = bench()
    again.journal = read_journal(one.home, "t1")
    again.journal.ended, again.journal.trials = None, again.journal.of("search")
    again.runner.broken["TRITON_ATTN"] = FiresteelError("illegal memory access")
    done = await again.run()
    assert done is not None and not done.is_better and "nothing was changed" in done.text
    (confirm,) = again.journal.of("confirm")
    assert confirm.failed == "illegal memory access"


# --- what a round comes to ---


def sample(point: int, visit: int, total_s: float, **more: Any) -> RequestSample:
    return RequestSample(point, visit, 10.0 * visit, 0.1, total_s, total_s, completion_tokens=100, **more)


def test_a_round_covers_all_texts() -> None:
    points = (Point("single", "code"), Point("single", "prose"))
    samples = [sample(0, 1, 1.0), sample(1, 1, 4.0), sample(0, 2, 2.0), sample(1, 2, 2.0)]
    assert rounds(samples, points, "latency") == pytest.approx((50.0, 50.0))


def test_wrong_and_cold_samples_make_no_round() -> None:
    points = (Point("single", "code"), Point("single", "prose"))
    cold = [sample(0, 0, 9.0, is_cold=True), sample(1, 0, 9.0, is_cold=True)]
    wrong = [sample(0, 1, 1.0), sample(1, 1, 1.0, wrong="stalled"), sample(0, 2, 1.0), sample(1, 2, 1.0)]
    assert rounds([*cold, *wrong], points, "latency") == pytest.approx((100.0,))
    silent = [sample(0, 1, 1.0), replace(sample(1, 1, 1.0), completion_tokens=None)]
    assert rounds(silent, points, "latency") == ()


def test_throughput_is_that_of_all_users() -> None:
    visit = [sample(0, 1, 2.0), sample(0, 1, 4.0)]
    assert rounds(visit, (Point("sweep", "code", 2),), "throughput") == pytest.approx((50.0,))
    assert rounds(visit, (Point("sweep", "code", 2),), "latency") == pytest.approx(((50 * 25) ** 0.5,))


# --- the journal and the words ---


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"form": 3}',
        '{"form": 2}',
        '{"form": 1}',
        '{"form": 1, "id": 3}',
        "[" * 100_000,
        "\x00",
    ],
)
def test_an_invalid_journal_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tune" / "x" / "journal.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UsageError, match="cannot be read"):
        read_journal(Home(tmp_path), "x")


def test_a_journal_round_trip(tmp_path: Path) -> None:
    trial = Trial({"a": "b"}, "twin", (1.0, 2.0), "r", None, 3.0, True, 4.0, (("code", 2, (1.0, 1.5)),))
    kept = Journal("x", "2026-11-15", "m", ASK, WISH, RAN, [trial], 7.0)
    write_journal(Home(tmp_path), kept)
    assert read_journal(Home(tmp_path), "x") == kept


def _swept(**rows: tuple[float, ...]) -> Trial:
    said = [(name.split("_")[0], int(name.split("_")[1]), values) for name, values in rows.items()]
    return Trial({}, "twin", rows=tuple(said))


@pytest.mark.parametrize(
    ("drafting_at", "says"),
    [
        ({1: 200.0, 4: 150.0, 8: 80.0}, "loses from 8 users on (0.80 x there), and gains up to 4"),
        ({1: 90.0, 4: 80.0, 8: 70.0}, "loses from one user on"),
        ({1: 200.0, 4: 150.0, 8: 120.0}, "gains up to 8 users, the most that were tried (1.20 to 2.00 x)"),
        ({1: 100.0, 4: 100.0, 8: 100.0}, "no difference seen"),
    ],
)
def test_advice_about_drafting(drafting_at: dict[int, float], says: str) -> None:
    def planning_context(value: float) -> tuple[float, ...]:
        return tuple(value * each for each in (0.999, 1.0, 1.001, 1.0))

    with_it = _swept(**{f"code_{users}": planning_context(rate) for users, rate in drafting_at.items()})
    without = _swept(**{f"code_{users}": planning_context(100.0) for users in drafting_at})
    (words,) = drafting_text(compare_drafting(with_it, without))
    assert says in words
    assert compare_values(planning_context(100.0), planning_context(100.0)).verdict == "no difference seen"
