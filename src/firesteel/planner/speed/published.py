"""Published measurements on a GB10, from `data/measured`.

`runs.csv` has one published figure per row; `sources.yaml` says where each comes from and under which
licence. A plan looks up the runs of its own model. `scripts/calibrate` fits the cost model to all runs
whose model it knows.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping
from datetime import date
from functools import cache

from firesteel import shipped_data
from firesteel.values import FileValue, Value

CALIBRATED = {"vllm": {"djangodevreng"}, "llamacpp": {"ggml", "ggml-nemotron", "llmfit"}}
"""By engine, the sources that its costs are fitted to; runs of other sources are only compared."""


class PublishedRun(Value):
    """One published figure."""

    model: str
    checkpoint: str
    """Hub id where the source names it, with `:TAG` for one file of a GGUF repository; else empty."""
    quant: str
    path: str
    """The kernels that the run asked for: `marlin`, or empty."""
    shape: str
    layout: str
    """Shape and layout name an entry of `models.yaml`; empty where they are not known."""
    kv_dtype: str
    engine: str
    version: str
    sparks: int
    depth: int | None
    """Tokens in the prompt. On average half of the answer is added while it is generated."""
    generated: int
    users: int
    speculation: str
    """Empty: none. `?`: the source does not say."""
    accepted: str
    decode_tps: float | None
    """Of one user."""
    total_tps: float | None
    prefill_tps: float | None
    ttft_ms: float | None
    kind: str
    """Empty: measured. Otherwise `approx`, `range_mid` or `served_rate`, as the source gives it."""
    source: str
    note: str

    @property
    def middle_depth(self) -> int:
        return (self.depth or 0) + self.generated // 2

    @property
    def is_plain(self) -> bool:
        """One user, one Spark, no speculation, and a decode rate that is not a served rate."""
        return self.sparks == 1 and self.is_plain_on_several

    @property
    def is_plain_on_several(self) -> bool:
        is_decode_rate = self.kind != "served_rate" and self.decode_tps is not None
        return self.users == 1 and not self.speculation and is_decode_rate

    def is_of(self, names: Collection[str]) -> bool:
        """Whether it measured one of these Hub ids.

        Sources of runs on several Sparks name a model and a format, not a repository.
        """
        if self.checkpoint or self.sparks == 1:
            return self.checkpoint in names
        own_names = {_plain_name(self.model, self.quant)}
        if self.model.startswith("gpt-oss") and self.quant == "MXFP4":  # its native format, not in its name
            own_names.add(_plain_name(self.model))
        return not own_names.isdisjoint(_plain_name(name.rpartition("/")[2]) for name in names)


def _plain_name(*parts: str) -> str:
    return "-".join(parts).lower().removeprefix("nvidia-")


class RunSourceSchema(FileValue, kw_only=True):
    url: str
    seen: date
    licence: str
    credit: str | None = None


class RunSourcesSchema(FileValue, kw_only=True):
    sources: dict[str, RunSourceSchema]


@cache
def runs() -> tuple[PublishedRun, ...]:
    return tuple(_run(row) for row in csv.DictReader(_lines()))


@cache
def _lines() -> tuple[str, ...]:
    return tuple(shipped_data.read_text("measured/runs.csv").splitlines())


def _run(row: Mapping[str, str]) -> PublishedRun:
    def number(key: str) -> float | None:
        return float(row[key]) if row[key] else None

    return PublishedRun(
        row["model"], row["checkpoint"], row["quant"], row["path"], row["shape"], row["layout"],
        row["kv_dtype"], row["engine"], row["version"], int(row["sparks"]),
        int(row["depth"]) if row["depth"] else None, int(row["generated"] or 0), int(row["users"]),
        row["speculation"], row["accepted"],
        number("decode_tps"), number("total_tps"), number("prefill_tps"), number("ttft_ms"),
        row["kind"], row["source"], row["note"],
    )  # fmt: skip


@cache
def runs_of(checkpoint: str, engine: str, sparks: int = 1) -> tuple[PublishedRun, ...]:
    """Plain runs of a model in an engine. `org/repo:TAG` also finds runs that name no tag."""
    repository = checkpoint.partition(":")[0]
    names = {checkpoint, repository} - {""}
    head, *rest = _lines()
    # Parse only the lines that contain the name: a plan should not wait for a thousand others.
    lines = rest if sparks > 1 else [line for line in rest if repository in line]
    return tuple(
        run
        for run in map(_run, csv.DictReader((head, *lines)))
        if run.engine == engine and run.sparks == sparks and run.is_plain_on_several and run.is_of(names)
    )


@cache
def run_sources() -> Mapping[str, RunSourceSchema]:
    return shipped_data.load("measured/sources.yaml", RunSourcesSchema).sources


def runs_with_layout(engine: str | None = None) -> Iterator[PublishedRun]:
    """Runs whose shape and layout are known, so that their bytes can be counted."""
    return (run for run in runs() if run.layout and run.decode_tps and engine in (None, run.engine))
