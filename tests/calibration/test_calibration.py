"""The shipped speed model against the published runs it was fitted to: accuracy limits, reproducibility."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pytest
from calibration.accuracy import prediction_errors, quantile
from calibration.fitted_file import fitted_text
from calibration.measured_models import models

from calibration import decode, run_pairs
from firesteel.planner.speed import published
from firesteel.planner.speed.decode import FittedSchema, constants
from firesteel.units import GIB


@cache
def fitted(engine: str) -> FittedSchema:
    return decode.calibrate_decode(engine)


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_decode_is_within_5_percent_fitted_and_10_left_out(engine: str) -> None:
    """One user, no speculation, no correction by runs of the same checkpoint."""
    assert fitted(engine).fitted.mean <= 0.05
    assert fitted(engine).left_out.mean <= 0.10


@pytest.mark.parametrize(("engine", "runs", "shapes"), [("vllm", 190, 17), ("llamacpp", 85, 28)])
def test_the_fit_uses_enough_runs_and_shapes(engine: str, runs: int, shapes: int) -> None:
    assert fitted(engine).fitted.runs >= runs
    assert fitted(engine).fitted.models >= shapes


def test_leaving_a_shape_out_leaves_out_all_its_names() -> None:
    """Qwen3.6-27B and Qwen3.8-27B are one shape: with one of them left in, nothing would be left out."""
    names = {run.model for run in decode.single_user_runs("vllm") if run.shape == "qwen3.6-27b"}
    assert names == {"qwen-3.6-27b", "qwen-3.8-27b"}


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_there_are_few_costs_and_none_for_a_single_model(engine: str) -> None:
    names = {variable.name for variable in decode.COSTS[engine]}
    assert len(names) <= 10 < fitted(engine).fitted.models
    assert not names & {run.model for run in published.runs()} and not names & set(models().shapes)
    assert set(constants().engines[engine].decode.costs) == names


def test_the_shipped_file_is_what_the_fit_gives() -> None:
    """`scripts/calibrate --check`."""
    assert (files("firesteel") / "data" / "speed" / "fitted.yaml").read_text("utf-8") == fitted_text()


def test_nineteen_in_twenty_runs_lie_in_the_band_of_unseen_models() -> None:
    for engine in ("vllm", "llamacpp"):
        costs, off = fitted(engine).costs, fitted(engine).left_out
        inside = [
            off.low <= (run.decode_tps or 0) / decode.predicted_tps(engine, run, costs) <= off.high
            for run in decode.single_user_runs(engine)
        ]
        assert sum(inside) / len(inside) >= 0.95


@pytest.mark.parametrize(
    ("shape", "layout", "gib"),
    [
        ("gpt-oss-20b", "MXFP4", 11.27),
        ("gpt-oss-120b", "MXFP4", 59.02),
        ("qwen3-30b-a3b", "Q8_0", 30.25),
        ("qwen2.5-7b", "Q8_0", 7.54),
        ("gemma-3-4b", "Q4_0-Q8_0-head", 2.35),
        ("nemotron-nano-4b", "Q8_0", 3.94),
        ("qwen3.6-35b-a3b", "fp8-all", 33.25),
    ],
)
def test_bytes_of_measured_models_equal_those_of_their_files(shape: str, layout: str, gib: float) -> None:
    """As llama-bench prints them; the last as vLLM logs it, less tower and drafter."""
    assert sum(models().shapes[shape].stored(layout).values()) / GIB == pytest.approx(gib, rel=0.01)


def test_every_run_has_a_source_and_a_licence() -> None:
    for run in published.runs():
        origin = published.run_sources()[run.source]
        assert origin.url.startswith("https://") and origin.licence
    assert published.run_sources()["djangodevreng"].licence == "CC-BY-4.0"
    assert "Django de Vreng" in (published.run_sources()["djangodevreng"].credit or "")
    assert {published.run_sources()[name].licence for name in ("ggml", "ggml-nemotron", "llmfit")} == {"MIT"}


def test_every_run_with_a_layout_can_be_counted() -> None:
    for run in published.runs_with_layout():
        assert decode.reads_of(run).bytes() > 0, run
        assert run.layout in models().layouts


def test_a_step_of_several_users_is_fitted_to_runs_of_several() -> None:
    costs = fitted("llamacpp").costs
    batch = decode.fit_batch_costs("llamacpp", costs, decode.multi_user_runs("llamacpp"))
    assert 0.5 <= batch["independence"] <= 1.0
    # llama.cpp steps the states of each sequence one after the other, and attention nearly at once.
    assert batch["sequence_recurrent_layer"] > 5 * batch["sequence_attention_layer"]


def test_an_all_reduce_over_two_sparks_takes_about_a_tenth_of_a_millisecond() -> None:
    pairs = run_pairs.pairs()
    assert len(pairs) >= 10
    assert all(one.sparks == 1 and two.sparks == 2 and one.users == two.users for one, two in pairs)
    assert 0.05 < run_pairs.all_reduce_ms().expected < 0.2


def test_bands_hold_eight_in_ten_runs_by_other_hands() -> None:
    """Each against the band that all others give: engines with vLLM's costs, llama.cpp, two Sparks."""
    costs = {engine: fits.decode.costs for engine, fits in constants().engines.items()}
    hands = run_pairs.other_hands(costs)
    like_vllm = [one for engine in ("vllm", "sglang", "trtllm") for one in run_pairs.held(hands, engine)]
    all_reduce_ms = constants().all_reduce_ms.expected
    two = run_pairs.planned_two_sparks(all_reduce_ms, costs) + run_pairs.two_sparks(all_reduce_ms)
    groups = (like_vllm, run_pairs.held(hands, "llamacpp"), [run_pairs.is_held(two, each) for each in two])
    assert [len(group) for group in groups] == [12, 7, 19]
    assert all(sum(group) / len(group) >= 0.8 for group in groups)


def test_first_prompts_take_longer() -> None:
    """Of 1,024 tokens, beside longer and shorter ones in the same series."""
    first = constants().engines["vllm"].first_prompts_ms
    assert first and first.runs >= 32 and 100 < first.expected < 400 < first.high


def test_runs_predict_others_better_than_the_fit_does() -> None:
    repeated, carried = constants().repeated, constants().carried
    left_out = constants().engines["vllm"].decode.left_out
    assert repeated.high - repeated.low < carried.high - carried.low < left_out.high - left_out.low


def test_prediction_errors() -> None:
    errors = prediction_errors([("a", 11.0, 10.0), ("a", 9.0, 10.0), ("b", 10.0, 10.0)])
    assert (errors.runs, errors.models) == (3, 2)
    assert errors.mean == pytest.approx(0.2 / 3, abs=1e-4)
    assert errors.worst == pytest.approx(0.1)
    assert errors.low < 1 < errors.high
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.25) == 1.25
