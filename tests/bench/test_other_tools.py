"""Files that the tools themselves wrote, against the embedded engine: see `foreign/README.md`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from firesteel.bench.results import other_tools, serialize
from firesteel.errors import UsageError
from tests.bench.stored_runs import rates, stored_run

FILES = Path(__file__).parent / "other_tools"


def text(name: str) -> str:
    return (FILES / name).read_text()


def said(name: str) -> Any:
    return json.loads(text(name))


def test_llama_benchy() -> None:
    found = other_tools.read(text("llama-benchy-0.4.0.json"), "a.json")
    assert (found.origin, found.source, found.run.subject.model) == ("reported", "a.json", "smollm2")
    assert found.run.began == "2026-11-15T12:01:45+00:00"
    assert found.run.settings.temperature is None
    raw = said("llama-benchy-0.4.0.json")["benchmarks"]
    assert len(found.run.figures) == len(raw) == 4
    for figures, entry in zip(found.run.figures, raw, strict=True):
        assert figures.point.users == entry["concurrency"]
        assert figures.point.depth == entry["prompt_size"] + entry["context_size"]
        assert figures.decode_tokens_per_s is not None and figures.decode_tokens_per_s.n == 3, (
            "runs, not streams"
        )
        assert figures.decode_tokens_per_s.value == pytest.approx(entry["tg_req_throughput"]["mean"])
        assert figures.ttft_ms["p90"] == pytest.approx(numpy.percentile(entry["e2e_ttft"]["values"], 90))
        assert figures.total_tokens_per_s is None, "theirs leaves the first token out"
    assert (
        found.run.figures[0].prefill_tokens_per_s is not None
        and found.run.figures[1].prefill_tokens_per_s is None
    )


def test_llama_benchy_with_a_cached_context() -> None:
    first, second = other_tools.read(text("llama-benchy-0.4.0-prefix.json"), "a").run.points
    assert (first.prompt_tokens, first.shared_tokens) == (128, 0), "the context itself"
    assert (second.prompt_tokens, second.shared_tokens) == (64, 128)


def test_no_figure_of_several_users_if_a_stream_failed() -> None:
    raw = said("llama-benchy-0.4.0.json")
    raw["benchmarks"][1]["tg_req_throughput"]["values"].pop()
    assert other_tools.read(json.dumps(raw), "a").run.figures[1].decode_tokens_per_s is None


def test_llama_benchy_csv() -> None:
    found = other_tools.read(text("llama-benchy-0.4.0.csv"), "a.csv").run
    assert [(point.users, point.depth, point.answer_tokens) for point in found.points] == [
        (1, 64, 16),
        (2, 64, 16),
        (1, 192, 16),
        (2, 192, 16),
    ]
    decode = found.figures[0].decode_tokens_per_s
    assert decode is not None and (decode.value, decode.n) == (35.015292474648895, 1)


def test_vllm_bench_serve() -> None:
    raw = said("vllm-serve-0.32.0.json")
    (figures,) = other_tools.read(text("vllm-serve-0.32.0.json"), "a").run.figures
    assert (figures.point.users, figures.point.prompt_tokens, figures.point.answer_tokens) == (2, 64, 16)
    assert figures.decode_tokens_per_s is not None and figures.total_tokens_per_s is not None
    assert figures.decode_tokens_per_s.value == pytest.approx(1000 / raw["mean_tpot_ms"])
    assert figures.total_tokens_per_s.value == raw["output_throughput"]
    assert figures.ttft_ms == {
        "p50": raw["median_ttft_ms"],
        "p99": raw["p99_ttft_ms"],
        "mean": raw["mean_ttft_ms"],
    }
    assert figures.inter_token_ms == {}, "theirs is of chunks"


def test_vllm_bench_serve_in_detail_agrees_with_its_own_mean() -> None:
    """Each request's rate is what its `tpot` is of: the tokens after the first, by their time."""
    raw = said("vllm-serve-0.32.0-detailed.json")
    (figures,) = other_tools.read(text("vllm-serve-0.32.0-detailed.json"), "a").run.figures
    assert figures.decode_tokens_per_s is not None and figures.decode_tokens_per_s.n == raw["completed"] == 6
    tpots = [
        1000 * sum(gaps) / (made - 1) for gaps, made in zip(raw["itls"], raw["output_lens"], strict=True)
    ]
    assert numpy.mean(tpots) == pytest.approx(raw["mean_tpot_ms"], rel=1e-3)
    assert figures.decode_tokens_per_s.value == pytest.approx(numpy.mean([1000 / tpot for tpot in tpots]))


def test_vllm_bench_serve_appended() -> None:
    both = f"{text('vllm-serve-0.32.0.json')}\n{text('vllm-serve-0.32.0-detailed.json')}"
    assert len(other_tools.read(both, "a").run.figures) == 2


def test_an_open_loop_and_failures() -> None:
    raw = {**said("vllm-serve-0.32.0.json"), "request_rate": 2.5, "failed": 4}
    (figures,) = other_tools.read(json.dumps(raw), "a").run.figures
    assert figures.point.rate_per_s == 2.5 and figures.wrong == {"http": 4}


@pytest.mark.parametrize(
    ("document", "says"),
    [  # as vllm/benchmarks/latency.py and throughput.py of 0.32.0 write them
        ({"avg_latency": 2.0, "latencies": [1.9, 2.0, 2.1], "percentiles": {"50": 2.0}}, "2.000 s a batch"),
        (
            {
                "elapsed_time": 10.0,
                "num_requests": 5,
                "total_num_tokens": 800,
                "requests_per_second": 0.5,
                "tokens_per_second": 80.0,
            },
            "prompts and answers together",
        ),
    ],
)
def test_files_with_too_little_for_a_figure(document: dict[str, Any], says: str) -> None:
    found = other_tools.read(json.dumps(document), "a").run
    assert found.figures == () and says in found.notes[0]


def test_our_own_files() -> None:
    ours = stored_run("a-run", rates(50), answers="abcdefgh")
    found = other_tools.read(json.dumps(serialize.to_document(ours)), "a.json")
    assert (found.run, found.samples, found.origin) == (ours.run, ours.samples, "reported")


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        "hello",
        "{",
        "[]",
        "{}",
        "null",
        "[" * 100_000,
        '{"a":' * 50_000,
        "model,test_name,x\na,boo,1\n",
        "model,test_name,t_s_req_mean\na,pp64,nan\n",
        "model,test_name,t_s_req_mean\na,pp64,x\n",
        '{"firesteel_run": 2}',
        '{"firesteel_run": 1, "run": {}, "samples": []}',
        '{"firesteel_run": 1, "run": {}, "samples": 7}',
        '{"avg_latency": 1, "latencies": ["a"]}',
        '{"avg_latency": 1, "latencies": [NaN]}',
        '{"avg_latency": 1, "latencies": [-1]}',
        '{"version": 1, "latency_mode": "api", "benchmarks": [], "timestamp": 7, "model": "m"}',
        '{"version": "1", "latency_mode": "api", "benchmarks": {}, "timestamp": "x", "model": "m"}',
    ],
)
def test_unknown_files_are_refused(hostile: str) -> None:
    with pytest.raises(UsageError) as told:
        other_tools.read(hostile, "theirs.json")
    assert "theirs.json" in told.value.what and told.value.next and len(told.value.what) < 300


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("completed",), -1),
        (("completed",), "six"),
        (("completed",), True),
        (("completed",), 1.5),
        (("completed",), 10**400),
        (("output_throughput",), float("inf")),
        (("mean_tpot_ms",), []),
        (("model_id",), 3),
        (("request_rate",), "fast"),
        (("date",), "x" * 10_000),
    ],
)
def test_an_invalid_value_names_its_place(path: tuple[str], value: object) -> None:
    raw = {**said("vllm-serve-0.32.0.json"), path[0]: value}
    with pytest.raises(UsageError, match=path[0]):
        other_tools.read(json.dumps(raw), "theirs.json")
