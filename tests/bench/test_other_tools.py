"""Files that the tools themselves wrote, against the embedded engine: see `foreign/README.md`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from firesteel.bench import measurements
from firesteel.bench.results import other_tools
from firesteel.errors import UsageError
from tests.bench.stored_runs import rates, stored_run

FILES = Path(__file__).parent / "other_tools"


def text(name: str) -> str:
    return (FILES / name).read_text()


def said(name: str) -> Any:
    return json.loads(text(name))


def test_llama_benchy() -> None:
    found = other_tools.read_results(text("llama-benchy-0.4.0.json"), "a.json")
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
    first, second = other_tools.read_results(text("llama-benchy-0.4.0-prefix.json"), "a").run.points
    assert (first.prompt_tokens, first.shared_tokens) == (128, 0), "the context itself"
    assert (second.prompt_tokens, second.shared_tokens) == (64, 128)


def test_no_figure_of_several_users_if_a_stream_failed() -> None:
    raw = said("llama-benchy-0.4.0.json")
    raw["benchmarks"][1]["tg_req_throughput"]["values"].pop()
    assert other_tools.read_results(json.dumps(raw), "a").run.figures[1].decode_tokens_per_s is None


def test_llama_benchy_csv() -> None:
    found = other_tools.read_results(text("llama-benchy-0.4.0.csv"), "a.csv").run
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
    (figures,) = other_tools.read_results(text("vllm-serve-0.32.0.json"), "a").run.figures
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
    (figures,) = other_tools.read_results(text("vllm-serve-0.32.0-detailed.json"), "a").run.figures
    assert figures.decode_tokens_per_s is not None and figures.decode_tokens_per_s.n == raw["completed"] == 6
    tpots = [
        1000 * sum(gaps) / (made - 1) for gaps, made in zip(raw["itls"], raw["output_lens"], strict=True)
    ]
    assert numpy.mean(tpots) == pytest.approx(raw["mean_tpot_ms"], rel=1e-3)
    assert figures.decode_tokens_per_s.value == pytest.approx(numpy.mean([1000 / tpot for tpot in tpots]))


def test_vllm_bench_serve_appended() -> None:
    both = f"{text('vllm-serve-0.32.0.json')}\n{text('vllm-serve-0.32.0-detailed.json')}"
    assert len(other_tools.read_results(both, "a").run.figures) == 2


def test_an_open_loop_and_failures() -> None:
    raw = {**said("vllm-serve-0.32.0.json"), "request_rate": 2.5, "failed": 4}
    (figures,) = other_tools.read_results(json.dumps(raw), "a").run.figures
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
    found = other_tools.read_results(json.dumps(document), "a").run
    assert found.figures == () and says in found.notes[0]


def test_our_own_files() -> None:
    ours = stored_run("a-run", rates(50), answers="abcdefgh")
    found = other_tools.read_results(json.dumps(measurements.to_document(ours)), "a.json")
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
        other_tools.read_results(hostile, "theirs.json")
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
        other_tools.read_results(json.dumps(raw), "theirs.json")


# --- llama-bench and guidellm ---


def test_llama_bench() -> None:
    found = other_tools.read_results(text("llama-bench-b11434.json"), "a.json")
    run, raw = found.run, said("llama-bench-b11434.json")
    assert found.origin == "reported" and run.subject.model == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert run.subject.engine == "llamacpp" and run.subject.version is None, "its build was not known"
    assert run.began == raw[0]["test_time"] and run.id == "llama-bench-20261116005008"
    reading, *generating = run.figures
    assert reading.point.prompt_tokens == 512 and reading.decode_tokens_per_s is None
    assert reading.prefill_tokens_per_s is not None
    assert reading.prefill_tokens_per_s.value == pytest.approx(raw[0]["avg_ts"], rel=1e-4)
    assert [each.point.answer_tokens for each in generating] == [128, 512]
    for figures, entry in zip(generating, raw[1:], strict=True):
        assert figures.decode_tokens_per_s is not None and figures.decode_tokens_per_s.n == 5
        assert figures.decode_tokens_per_s.value == pytest.approx(entry["avg_ts"], rel=1e-4)
    lines = "\n".join(json.dumps(entry) for entry in raw)
    assert other_tools.read_results(lines, "a.jsonl").run.figures == run.figures


def test_llama_bench_at_a_depth_and_mixed_tests() -> None:
    first, second, third = said("llama-bench-b11434.json")
    second |= {"n_depth": 4096, "build_number": 11434}
    first["build_number"] = 11434
    run = other_tools.read_results(json.dumps([first, second, {**third, "n_prompt": 512}]), "a").run
    assert run.figures[1].point.depth == 4096 and len(run.figures) == 2
    assert run.subject.version == "b11434" and any("1 tests of prompts and answers" in n for n in run.notes)


def distribution(mean: float, std: float = 0.0, count: int = 40) -> dict[str, Any]:
    percentiles = {"p50": mean, "p90": mean + std, "p99": mean + 3 * std}
    summary = {"mean": mean, "std_dev": std, "count": count, "percentiles": percentiles}
    return {"successful": summary, "errored": None, "incomplete": None, "total": summary}


def guidellm(*strategies: dict[str, Any]) -> dict[str, Any]:
    loads = [
        {
            "type_": "generative_benchmark",
            "config": {"strategy": strategy, "backend": {"model": "m", "target": "http://10.0.0.1:8000"}},
            "start_time": 1794787200.0,
            "metrics": {
                "request_totals": {"successful": 40, "errored": 2, "incomplete": 0, "total": 42},
                "request_concurrency": distribution(15.6),
                "prompt_token_count": distribution(512),
                "output_token_count": distribution(128),
                "time_to_first_token_ms": distribution(80, 8),
                "inter_token_latency_ms": distribution(20, 2),
                "time_per_output_token_ms": distribution(21),
                "output_tokens_per_second": distribution(700),
            },
        }
        for strategy in strategies
    ]
    return {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "config": {}, "benchmarks": loads}


def test_guidellm() -> None:
    document = guidellm(
        {"type_": "synchronous"}, {"type_": "concurrent", "streams": 8}, {"type_": "throughput"},
        {"type_": "poisson", "rate": 2.5, "max_concurrency": None},
    )  # fmt: skip
    found = other_tools.read_results(json.dumps(document), "a.json")
    run = found.run
    assert found.origin == "reported" and run.subject.model == "m" and run.subject.url == ""
    assert run.began.startswith("2026-11-16T") and "guidellm 0.8.1" in run.notes
    assert [(p.users, p.rate_per_s) for p in run.points] == [(1, None), (8, None), (16, None), (512, 2.5)]
    first, second, *_ = run.figures
    assert first.decode_tokens_per_s is not None and first.decode_tokens_per_s.value == pytest.approx(50)
    assert first.decode_tokens_per_s.low < 50 < first.decode_tokens_per_s.high
    assert first.ttft_ms == {"p50": 80, "p90": 88, "p99": 104, "mean": 80}
    assert first.wrong == {"http": 2} and first.total_tokens_per_s is None
    assert second.total_tokens_per_s is not None and second.total_tokens_per_s.value == 700


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(benchmarks=[]), "benchmarks is empty"),
        (lambda d: d.update(benchmarks=[5]), "is not an object"),
        (lambda d: d["metadata"].update(guidellm_version=None), "guidellm_version is not a short text"),
        (
            lambda d: d["benchmarks"][0]["config"]["strategy"].update(streams="many"),
            "streams is not a number",
        ),
        (lambda d: d["benchmarks"][0].update(start_time=-5), "start_time is not a number"),
        (lambda d: d["benchmarks"][0].update(start_time=1e11), "start_time is not a time"),
        (lambda d: d["benchmarks"][0]["metrics"].pop("request_totals"), "request_totals is not an object"),
    ],
)
def test_a_broken_file_of_guidellm_is_refused(change: Any, says: str) -> None:
    document = guidellm({"type_": "concurrent", "streams": 8})
    change(document)
    with pytest.raises(UsageError) as error:
        other_tools.read_results(json.dumps(document), "a")
    assert says in error.value.what


def test_guidellm_without_an_answer() -> None:
    document = guidellm({"type_": "synchronous"})
    for metric in document["benchmarks"][0]["metrics"].values():
        metric["successful"] = 0 if "total" in metric and isinstance(metric["total"], int) else None
    (figures,) = other_tools.read_results(json.dumps(document), "a").run.figures
    assert figures.samples == 0 and figures.decode_tokens_per_s is figures.ttft_mean_ms is None
