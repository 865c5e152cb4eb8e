"""The report: what came up, what was proved, and what was planned beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter

from firesteel.edge.http.answer import Answer
from firesteel.engines import ReportedMemory
from firesteel.planner import Band, Plan
from firesteel.run.verify.checks import CheckResult


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure, planned and measured."""

    what: str
    unit: str
    planned: Band
    measured: float

    @property
    def is_within(self) -> bool:
        """A counted figure may be off by what the engine's log rounds away."""
        slack = 0.005 * self.planned.expected if self.planned.is_exact else 0
        return self.planned.low - slack <= self.measured <= self.planned.high + slack


@dataclass(frozen=True, slots=True)
class Report:
    name: str
    url: str
    model: str
    engine: str
    version: str | None
    checks: tuple[CheckResult, ...]
    compared: tuple[Compared, ...]
    start_s: float
    """From launching the engine to its first healthy answer."""
    first_token_ms: float
    log: str

    @property
    def is_verified(self) -> bool:
        """Notes tell, and fail nothing."""
        return not any(check.fails_launch for check in self.checks)


def read_report(plain: Mapping[str, object]) -> Report:
    """The inverse of `dataclasses.asdict`, for a report that was kept as JSON."""
    return TypeAdapter(Report).validate_python(plain)


def compare(
    plan: Plan, taken: ReportedMemory, memory_bytes: int | None, texts: Iterable[Answer]
) -> tuple[Compared, ...]:
    """Every planned figure that something measured."""
    parts = {part.name: part.bytes for part in plan.memory.parts}
    measured = {
        "weights": taken.weights_bytes,
        "KV cache": taken.kv_bytes,
        "compute buffers": taken.compute_bytes,
    }
    rows = [
        Compared(name, "bytes", parts[name], seen)
        for name, seen in measured.items()
        if seen is not None and name in parts
    ]
    if memory_bytes is not None:
        rows.append(Compared("memory in all", "bytes", plan.memory.needed, memory_bytes))
    speeds = [text.decode_tokens_per_s for text in texts if text.decode_tokens_per_s]
    if plan.speed and speeds:
        # The faster of the runs: whatever else the host does only slows them.
        rows.append(Compared("decode", "tok/s", plan.speed.decode_tokens_per_s, max(speeds)))
    return tuple(rows)
