"""Synthetic runs to store and compare."""

from __future__ import annotations

import random
from collections.abc import Sequence

from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.measurements import (
    BenchRun,
    Point,
    PointFigures,
    RequestSample,
    RequestSettings,
    StoredRun,
    Subject,
)
from firesteel.values import replace

POINT = Point("single", users=1, prompt_tokens=1000, answer_tokens=100)
SUBJECT = Subject("http://127.0.0.1:1/v1", "test-model", engine="vllm", version="0.28.0")


def sample(
    point: int, repetition: int, tps: float, *, text: str = "same", wrong: bool = False
) -> RequestSample:
    """A hundred tokens at that rate, half a second after they were asked for."""
    last = 0.5 + 99 / tps
    return RequestSample(
        point, repetition, float(repetition), first_s=0.5, last_s=last, total_s=last, prompt_tokens=1000,
        completion_tokens=100, gaps_s=(11 / tps,) * 9, text_hash=text, wrong="dropped" if wrong else None,
    )  # fmt: skip


def stored_run(
    name: str,
    rates: Sequence[float],
    *,
    point: Point = POINT,
    settings: RequestSettings | None = None,
    subject: Subject = SUBJECT,
    answers: Sequence[str] = (),
    has_samples: bool = True,
) -> StoredRun:
    figures = PointFigures(
        point, len(rates), decode_tokens_per_s=mean_interval(rates), ttft_ms={"p50": 500.0}
    )
    began = "2026-11-15T10:00:00+00:00"
    run = BenchRun(name, began, subject, settings or RequestSettings(), (point,), (figures,), is_whole=True)
    samples = tuple(
        sample(0, at, rate, text=answers[at] if answers else "same") for at, rate in enumerate(rates)
    )
    return StoredRun(run, samples if has_samples else ())


def rates(mean: float, n: int = 8, spread: float = 0.01, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [mean * (1 + chance.gauss(0, spread)) for _ in range(n)]


def unfinished(name: str, points: int = 2) -> BenchRun:
    whole = stored_run(name, [50.0, 51.0, 52.0]).run
    several = tuple(replace(POINT, prompt_tokens=1000 + at) for at in range(points))
    return replace(whole, points=several, figures=(), is_whole=False)
