"""The decode step of one launch: what it reads, what that costs, and how it is spread over several Sparks."""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot, log2

from firesteel.engines.kv_cache import KvCache
from firesteel.facts.model.architecture import Architecture
from firesteel.launch import Launch
from firesteel.planner.speed.constants import FittedEngineSchema, constants
from firesteel.planner.speed.decode import (
    StepReads,
    StoredBytes,
    Terms,
    all_reduces,
    at_depth,
    step_ms,
    step_reads,
    terms,
)
from firesteel.units import Band
from firesteel.values import Value

_FITTED_RELEASES = {"vllm": "0.26", "llamacpp": ""}
"""llama.cpp: builds of two people that differ by 2,400 numbers are off by no more than runs of one."""


class StepModel(Value):
    launch: Launch
    shape: Architecture
    reads_at_start: StepReads
    """At the start of a conversation."""
    kv_dtype: str
    bandwidth: float
    """Of one machine."""
    costs: Mapping[str, float]
    low: float
    high: float
    """Measured over predicted, for models that the costs were not fitted to."""

    @property
    def engine(self) -> str:
        return costs_engine(self.launch)

    def reads(self, depth: int, kv_dtype: str | None = None) -> StepReads:
        return at_depth(
            self.reads_at_start, self.shape, depth, self.kv_dtype if kv_dtype is None else kv_dtype
        )

    def terms(self, depth: int, users: int = 1, independence: float = 1.0) -> Terms:
        return terms(self.reads(depth), self.bandwidth, users, independence)

    def tokens_per_s(self, parts: Terms) -> Band:
        """Of one user; the band covers the possible formats where the format is not known."""
        least, likely, most = step_ms(self.engine, parts, self.costs)
        return Band(*(1000 / self._over_sparks(ms) for ms in (most, likely, least)))

    def _over_sparks(self, step_ms: float) -> float:
        sparks = self.launch.sparks
        if self.launch.engine == "llamacpp":  # hosts take turns: each has some of the layers
            return step_ms
        return step_ms if sparks < 2 else self._with_all_reduces(step_ms, sparks - 1)

    def _with_all_reduces(self, step_ms: float, hops: float) -> float:
        """An all-reduce takes as many hops from Spark to Spark, where two Sparks need one."""
        all_reduce_ms = all_reduces(self.shape) * constants().all_reduce_ms.expected
        return step_ms / self.launch.sparks + hops * all_reduce_ms

    def tree_speedup(self) -> float:
        """How much faster it would be if all-reduces went by pairs of pairs, not around a ring."""
        likely = step_ms(self.engine, self.terms(0), self.costs)[1]
        return self._over_sparks(likely) / self._with_all_reduces(likely, log2(self.launch.sparks))


def costs_engine(launch: Launch) -> str:
    """SGLang runs much the same kernels as vLLM and has too few public runs, so it uses vLLM's costs."""
    return "llamacpp" if launch.engine == "llamacpp" else "vllm"


def fitted_costs(launch: Launch) -> FittedEngineSchema:
    return constants().engines[costs_engine(launch)]


def is_of_the_fit(launch: Launch) -> bool:
    """Whether the fit has runs of this engine and release; runs of others were off by more."""
    releases = _FITTED_RELEASES.get(launch.engine)
    return releases == "" or bool(releases and launch.version and launch.version.startswith(releases))


def step_model(
    launch: Launch,
    shape: Architecture,
    stored: StoredBytes,
    tied_head: bool,
    kv: KvCache,
    bandwidth: float,
) -> StepModel:
    fitted, known = fitted_costs(launch).decode, constants()
    errors = fitted.left_out
    # The runs of the fit have one author; other machines differ as much as authors did.
    low = 1 - hypot(1 - errors.low, 1 - known.carried.low)
    high = 1 + hypot(errors.high - 1, known.carried.high - 1)
    if not is_of_the_fit(launch):
        other = known.elsewhere[launch.engine]
        low, high = min(low, other.low), max(high, other.high)
    reads = step_reads(costs_engine(launch), shape, stored, tied_head, 0, kv.dtype)
    return StepModel(launch, shape, reads, kv.dtype, bandwidth, fitted.costs, low, high)
