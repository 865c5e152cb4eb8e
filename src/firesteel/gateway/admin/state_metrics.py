"""The state as metrics: health, KV cache, acceptance, the GPU, the memory's limits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from firesteel.gateway.admin.prometheus import Kind, MetricFamily, MetricSample
from firesteel.gateway.state import GatewayState, ModelStatus


def state_families(state: GatewayState) -> Iterator[MetricFamily]:
    by_model: dict[str, tuple[str, Callable[[ModelStatus], float | None]]] = {
        "healthy": (
            "0 for a model that is not healthy; /api/state says why.",
            lambda m: int(m.health.ok) if m.health else None,
        ),
        "tokens_per_second": (
            "Tokens that the model wrote in the last five seconds.",
            lambda m: m.tokens_per_s,
        ),
        "kv_used_ratio": ("Share of the KV cache in use.", lambda m: m.kv_used),
        "draft_acceptance_ratio": (
            "Share of the drafted tokens that were accepted.",
            lambda m: m.acceptance,
        ),
    }
    for name, (help, read) in by_model.items():
        yield gauge(f"model_{name}", help, {model.name: read(model) for model in state.models}, "model")
    memory, gpu = state.memory, state.gpu
    single: dict[str, tuple[str, float | None]] = {
        "memory_total_bytes": ("Memory of the host.", memory.total_bytes),
        "memory_floor_bytes": ("The guard stops an engine when less is available.", memory.floor_bytes),
        "gpu_temperature_celsius": ("Of the GPU.", gpu.temperature_c if gpu else None),
        "gpu_power_watts": ("Of the GPU.", gpu.power_w if gpu else None),
        "gpu_clock_hertz": ("Of its processors.", (gpu.clock_mhz or 0) * 1e6 if gpu else None),
        "gpu_throttled": ("1 while heat or power slow it down.", int(bool(gpu.throttle)) if gpu else None),
    }
    for name, (help, value) in single.items():
        yield gauge(name, help, {"": value}, None)


def gauge(
    name: str, help: str, values: Mapping[str, float | None], label: str | None, *, kind: Kind = "gauge"
) -> MetricFamily:
    """One value for each of `label`; those that are not known are left out."""
    samples = (
        MetricSample("", ((label, key),) if label else (), value)
        for key, value in values.items()
        if value is not None
    )
    return MetricFamily(f"firesteel_{name}", kind, help, samples)
