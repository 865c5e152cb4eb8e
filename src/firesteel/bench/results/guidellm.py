"""Results of guidellm (`benchmarks.json`): one benchmark per load, with distributions over requests. Pure.

https://github.com/vllm-project/guidellm, 0.8.1, src/guidellm/benchmark/schemas, read 2026-11-16. Its
`time_per_output_token_ms` includes the first token and `inter_token_latency_ms` does not: decode is from the
second.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.results.foreign_file import (
    MAX_ENTRIES,
    FileNode,
    foreign_point,
    foreign_run,
    mean_with_std,
    rate_of,
)
from firesteel.bench.values import BenchRun, MeasuredFigure, Point, PointFigures, Subject

KEYS = frozenset({"metadata", "benchmarks"})
_NOTES = (
    "by guidellm: thinking, temperature and max_num_seqs are not read from its file; listed here as prose",
    "tokens are from `usage` where the server sends it; its prompts may share a beginning",
    "intervals are over requests, which are not independent: with several users they are too narrow",
)
_MAX_TIME_S = 4e9
_RATES = ("constant", "poisson")


def read(documents: Sequence[FileNode]) -> BenchRun:
    document = documents[0]
    version = document["metadata"]["guidellm_version"].text()[:20]
    loads = document["benchmarks"].items(MAX_ENTRIES)
    if not loads:
        raise document["benchmarks"].error("is empty")
    started = loads[0]["start_time"]
    if (seconds := started.optional_number() or 0.0) > _MAX_TIME_S:
        raise started.error("is no time")
    began = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else ""
    name = loads[0]["config"]["backend"]["model"].value
    model = name[:500] if isinstance(name, str) and name else "not known"
    rows = [_row(load) for load in loads]
    notes = (*_NOTES, f"guidellm {version}")
    id = f"guidellm-{began[:19].replace(':', '').replace('T', '-') or 'unknown'}"
    return foreign_run(id, began, Subject("", model), rows, notes)


def _row(load: FileNode) -> PointFigures:
    metrics = load["metrics"]
    done, failed = (metrics["request_totals"][name].count() for name in ("successful", "errored"))
    ttft, gap = (_Successful(metrics[name]) for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    prompt, answer = (_Successful(metrics[name]) for name in ("prompt_token_count", "output_token_count"))
    point = _point(load["config"]["strategy"], metrics, round(prompt.mean), round(answer.mean))
    total = _Successful(metrics["output_tokens_per_second"]).mean
    is_single = point.users == 1 and point.rate_per_s is None
    return PointFigures(
        point=point,
        samples=done,
        wrong={"http": failed} if failed else {},
        decode_tokens_per_s=rate_of(gap.figure()),
        total_tokens_per_s=None if is_single or not total else mean_interval([total]),
        ttft_ms=ttft.percentiles(),
        ttft_mean_ms=ttft.figure(),
    )


def _point(strategy: FileNode, metrics: FileNode, prompt: int, answer: int) -> Point:
    kind = strategy["type_"].value
    if kind in _RATES:
        users = strategy["max_concurrency"].optional_number() or 512
        rate = strategy["rate"].number()
        return Point("open", "prose", int(users), max(1, prompt), max(1, answer), rate_per_s=rate or None)
    if kind == "synchronous":
        return foreign_point(1, prompt, answer)
    if kind == "concurrent":
        return foreign_point(strategy["streams"].count(1), prompt, answer)
    # As many as it could: the mean that were open tells how many these were.
    return foreign_point(max(1, round(_Successful(metrics["request_concurrency"]).mean)), prompt, answer)


class _Successful:
    """A distribution over the requests that succeeded; all zero without any."""

    def __init__(self, metric: FileNode) -> None:
        self._node = metric["successful"]

    @property
    def mean(self) -> float:
        return 0.0 if self._node.value is None else self._node["mean"].number()

    def figure(self) -> MeasuredFigure | None:
        if self._node.value is None or not self.mean:
            return None
        return mean_with_std(self.mean, self._node["std_dev"].number(), self._node["count"].count())

    def percentiles(self) -> dict[str, Any]:
        if self._node.value is None or not self.mean:
            return {}
        found = {p: self._node["percentiles"][p].optional_number() for p in ("p50", "p90", "p99")}
        return {p: value for p, value in found.items() if value is not None} | {"mean": self.mean}
