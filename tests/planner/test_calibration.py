"""The shipped speed model against the published runs that ship with it: the bars, and nothing by hand."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pytest

from firesteel.planner import anchors, calibration
from firesteel.planner.fitted_file import calibrated
from firesteel.planner.speed import published
from firesteel.planner.speed.accuracy import Fitted, errors, quantile
from firesteel.planner.speed.constants import FILE, constants
from firesteel.planner.speed.published_models import models
from firesteel.units import GIB


@cache
def found(engine: str) -> Fitted:
    return calibration.calibrate(engine)


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_decode_is_within_5_percent_fitted_and_10_left_out(engine: str) -> None:
    """One user, no speculation, measured rungs off."""
    assert found(engine).fitted.mean <= 0.05
    assert found(engine).left_out.mean <= 0.10


@pytest.mark.parametrize(("engine", "runs", "shapes"), [("vllm", 190, 17), ("llamacpp", 85, 28)])
def test_the_strata_are_not_thinned_out(engine: str, runs: int, shapes: int) -> None:
    assert found(engine).fitted.runs >= runs
    assert found(engine).fitted.models >= shapes


def test_leaving_a_shape_out_leaves_out_all_its_names() -> None:
    """Qwen3.6-27B and Qwen3.8-27B are one shape: with one of them left in, nothing would be left out."""
    names = {run.model for run in calibration.plain("vllm") if run.shape == "qwen3.6-27b"}
    assert names == {"qwen-3.6-27b", "qwen-3.8-27b"}


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_there_are_few_figures_and_none_for_a_model(engine: str) -> None:
    names = {unknown.name for unknown in calibration.COSTS[engine]}
    assert len(names) <= 10 < found(engine).fitted.models
    assert not names & {run.model for run in published.runs()} and not names & set(models().shapes)
    assert set(constants().engines[engine].decode.costs) == names


def test_the_shipped_figures_are_what_the_runs_give() -> None:
    """`scripts/calibrate --check`."""
    assert (files("firesteel") / "data" / "speed" / FILE).read_text("utf-8") == calibrated()


def test_nineteen_in_twenty_runs_lie_in_the_band_of_unseen_models() -> None:
    for engine in ("vllm", "llamacpp"):
        costs, off = found(engine).costs, found(engine).left_out
        inside = [
            off.low <= (run.decode_tps or 0) / calibration.predicted_tps(engine, run, costs) <= off.high
            for run in calibration.plain(engine)
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
def test_bytes_of_measured_models_are_those_of_their_files(shape: str, layout: str, gib: float) -> None:
    """As llama-bench prints them; the last as vLLM logs it, less tower and drafter."""
    assert sum(models().shapes[shape].stored(layout).values()) / GIB == pytest.approx(gib, rel=0.01)


def test_every_run_has_a_source_and_a_licence() -> None:
    for run in published.runs():
        origin = published.origins()[run.source]
        assert origin.url.startswith("https://") and origin.licence
    assert published.origins()["djangodevreng"].licence == "CC-BY-4.0"
    assert "Django de Vreng" in (published.origins()["djangodevreng"].credit or "")
    assert {published.origins()[name].licence for name in ("ggml", "ggml-nemotron", "llmfit")} == {"MIT"}


def test_every_run_with_a_layout_can_be_counted() -> None:
    for run in published.known():
        assert calibration.read(run).bytes() > 0, run
        assert run.layout in models().layouts


def test_a_step_of_several_users_is_fitted_to_runs_of_several() -> None:
    costs = found("llamacpp").costs
    crowd = calibration.crowd_costs("llamacpp", costs, calibration.crowded("llamacpp"))
    assert 0.5 <= crowd["independence"] <= 1.0
    # llama.cpp steps the states of each sequence one after the other, and attention nearly at once.
    assert crowd["sequence_recurrent_layer"] > 5 * crowd["sequence_attention_layer"]


def test_two_sparks_cost_about_a_tenth_of_a_millisecond_a_sum() -> None:
    pairs = anchors.pairs()
    assert len(pairs) >= 10
    assert all(one.sparks == 1 and two.sparks == 2 and one.users == two.users for one, two in pairs)
    assert 0.05 < anchors.all_reduce_ms().expected < 0.2


def test_runs_foretell_others_better_than_the_fit_does() -> None:
    repeated, carried = constants().repeated, constants().carried
    left_out = constants().engines["vllm"].decode.left_out
    assert repeated.high - repeated.low < carried.high - carried.low < left_out.high - left_out.low


def test_errors_say_how_far_off_and_where_most_lie() -> None:
    found = errors([("a", 11.0, 10.0), ("a", 9.0, 10.0), ("b", 10.0, 10.0)])
    assert (found.runs, found.models) == (3, 2)
    assert found.mean == pytest.approx(0.2 / 3, abs=1e-4)
    assert found.worst == pytest.approx(0.1)
    assert found.low < 1 < found.high
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.25) == 1.25
