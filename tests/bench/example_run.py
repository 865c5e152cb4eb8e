"""A synthetic run for the report, marked as made up, with something for every chart."""

from __future__ import annotations

from firesteel.bench.measurements import (
    BenchRun,
    Point,
    PointContext,
    RequestSample,
    RequestSettings,
    StoredRun,
    Subject,
)
from firesteel.bench.results.figures import figures
from firesteel.launch import Text
from firesteel.values import replace

PLAN = {
    "decode_tokens_per_s": {"low": 44.0, "expected": 52.0, "high": 60.0},
    "bytes_per_token": 3_600_000_000,
    "bandwidth_bytes_per_s": 273e9,
    "bound_tokens_per_s": 75.8,
    "why": "pretend figures for a test",
    "rung": "fitted",
    "at_depth": [
        [1024, {"low": 44.0, "expected": 52.0, "high": 60.0}],
        [8192, {"low": 40.0, "expected": 48.0, "high": 56.0}],
        [32768, {"low": 30.0, "expected": 38.0, "high": 46.0}],
        [131072, {"low": 15.0, "expected": 20.0, "high": 26.0}],
    ],
    "drafts": False,
    "prefill_tokens_per_s": {"low": 2000.0, "expected": 2400.0, "high": 2800.0},
    "ttft_ms": {"low": 400.0, "expected": 480.0, "high": 560.0},
    "prompt_tokens": 1024,
}
SUBJECT = Subject(
    url="http://127.0.0.1:8000/v1",
    model="nvidia/Qwen3.6-35B-A3B-NVFP4",
    engine="vllm",
    version="0.28.0",
    launch_key="0123456789abcdef",
    launch={
        "model": "nvidia/Qwen3.6-35B-A3B-NVFP4",
        "image": "vllm/vllm-openai:v0.28.0",
        "flags": {"max-model-len": 65536, "kv-cache-dtype": "fp8", "enable-prefix-caching": True},
        "env": {"VLLM_LOGGING_LEVEL": "INFO"},
        "sparks": 1,
    },
    image_digest="sha256:" + "0" * 64,
    host={
        "title": "a pretend DGX Spark",
        "cores": 20,
        "memory_total_bytes": 128 * 2**30,
        "bandwidth_bytes_per_s": 273e9,
        "gpus": ["NVIDIA GB10, driver 580.95.05"],
    },
    plan=PLAN,
)
POINTS = (
    *(Point("sweep", users=users, prompt_tokens=1024, answer_tokens=128) for users in (1, 2, 4, 8, 16)),
    *(Point("depth", prompt_tokens=tokens, answer_tokens=128) for tokens in (8192, 32768)),
    *(Point("sweep", "code", users=users, prompt_tokens=1024, answer_tokens=128) for users in (1, 4)),
    Point("agent", "code", 2, 512, 256, 6144, 4),
    Point("open", users=64, prompt_tokens=512, answer_tokens=128, rate_per_s=0.5),
)
"""Decode halves by eight users, and falls a little with depth: see `_rate`."""


def _rate(point: Point, repetition: int) -> float:
    alone = {"prose": 51.0, "code": 55.0}.get(point.text, 50.0)
    share = 1 / (1 + 0.14 * (point.users - 1)) if point.rate_per_s is None else 0.8
    wave = (0.0, 0.011, -0.008, 0.005, -0.012)[repetition % 5]
    return alone * share * (1 - point.depth / 120_000) * (1 + wave)


def _samples(at: int, point: Point) -> list[RequestSample]:
    found = []
    for repetition in range(6):
        for stream in range(min(point.users, 16)):
            rate = _rate(point, repetition)
            first = (point.depth / 2400 + 0.05) * (1 + 0.3 * (point.users - 1 if point.users < 64 else 0))
            gaps = tuple((0.6 + 0.05 * (n * 7 % 17)) / rate for n in range(point.answer_tokens - 1))
            last = first + (point.answer_tokens - 1) / rate
            found.append(
                RequestSample(
                    at, repetition, 20.0 * repetition + at + 0.001 * stream, first, last, last, gaps,
                    point.depth, point.answer_tokens, is_cold=repetition == 0,
                )
            )  # fmt: skip
    return found


def _with_wrong(samples: list[RequestSample]) -> list[RequestSample]:
    """Some of the open loop stall and drop, and the markup of one must not become the page's."""
    told = {3: ("stalled", "nothing came for 12.0 s"), 9: ("dropped", "it ended after <b>7</b> chunks"),
            11: ("http", "HTTP 500: <script>alert(1)</script>")}  # fmt: skip
    return [
        replace(each, wrong=told[n][0], why=told[n][1]) if n in told else each
        for n, each in enumerate(samples)
    ]


def example_run(name: str = "made-up-1", model: str = SUBJECT.model) -> StoredRun:
    every = [_samples(at, point) for at, point in enumerate(POINTS)]
    every[-1] = _with_wrong(every[-1])
    around = PointContext(PLAN, {"ttft_ms": 1000.0, "inter_token_ms": 50.0}, watts=62.0, kv_usage=0.31)
    found = tuple(figures(point, samples, around) for point, samples in zip(POINTS, every, strict=True))
    run = BenchRun(
        name,
        "2026-11-15T10:00:00+00:00",
        replace(SUBJECT, model=model),
        RequestSettings(max_num_seqs=16, target={"ttft_ms": 1000.0, "inter_token_ms": 50.0}),
        POINTS,
        found,
        is_whole=True,
        client={"p99_lag_ms": 0.21, "cpu_share": 0.043},
        beside=_beside(),
        notes=("every figure here is made up, for a test",),
    )
    return StoredRun(run, tuple(sample for samples in every for sample in samples))


def _beside() -> dict[str, object]:
    times = [float(at) for at in range(0, 120, 2)]
    clock = [2400.0 - 10 * (at % 7) if at > 4 else 208.0 for at in range(60)]
    power = [None if at == 0 else 58.0 + at % 5 for at in range(60)]
    heat = [48.0 + min(20.0, at / 2) for at in range(60)]
    return {
        "clock_mhz": {"least": 208.0, "mean": 2211.0, "most": 2400.0},
        "power_w": {"least": 58.0, "mean": 60.0, "most": 62.0},
        "temperature_c": {"least": 48.0, "mean": 63.0, "most": 68.0},
        "memory_available_bytes": {"least": 30 * 2**30, "mean": 31 * 2**30, "most": 34 * 2**30},
        "looks": 60,
        "over_time": {"at_s": times, "clock_mhz": clock, "power_w": power, "temperature_c": heat},
    }


def of_texts(*texts: Text) -> StoredRun:
    """One point for each, one user, without a plan, without samples."""
    kept = example_run()
    points = tuple(Point("single", text) for text in texts)
    found = tuple(replace(kept.run.figures[0], point=point, bandwidth_share=None) for point in points)
    subject = replace(kept.run.subject, plan={}, launch={}, host={}, engine=None, version=None)
    return StoredRun(replace(kept.run, subject=subject, points=points, figures=found, beside={}))
