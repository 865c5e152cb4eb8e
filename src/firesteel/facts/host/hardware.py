"""Known machines: how much memory, how fast, and how much of it may be used before the host wedges.

On a GB10 the CPU and the GPU share one pool, so three sizes must not be confused: the installed memory (128
GB), what Linux and CUDA count (less: firmware and carve-outs), and the ceiling, above which launches have
wedged the whole host. Plans are made against the ceiling.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated

from firesteel import shipped_data
from firesteel.errors import UsageError
from firesteel.facts.evidence import Confidence, Evidence, Sources
from firesteel.facts.host.host import Host, keep_free_bytes
from firesteel.units import parse_size
from firesteel.values import Expand, FileValue, PositiveInt, Value, YamlFile

SIZE = Expand(lambda value: parse_size(value) if isinstance(value, str) else value)
Size = Annotated[int, SIZE]


class HardwareFigure(Value):
    """One number about a machine, with its observed spread and its evidence."""

    value: int
    low: int
    high: int
    confidence: Confidence
    sources: tuple[Evidence, ...]
    note: str | None = None


class Hardware(Value):
    name: str
    title: str
    memory_bytes: int
    """What the operating system and CUDA count."""
    ceiling_bytes: int
    """For everything on the host together; launches above it have wedged hosts."""
    bandwidth_bytes_per_s: int
    unified: bool
    """CPU and GPU share the memory: page cache, other programs and weights compete."""
    compute_capability: str
    arch: str
    cores: int
    figures: Mapping[str, HardwareFigure]
    """The evidence for each number: `installed`, `memory`, `ceiling`, `bandwidth`."""


class FigureSchema(FileValue, kw_only=True):
    value: Size
    low: Size | None = None
    high: Size | None = None
    confidence: Confidence
    sources: Sources
    note: str | None = None


class FiguresSchema(FileValue, kw_only=True):
    installed: FigureSchema
    memory: FigureSchema
    ceiling: FigureSchema
    bandwidth: FigureSchema


class HardwareSchema(FileValue, kw_only=True):
    title: str
    unified: bool
    compute_capability: str
    arch: str
    cores: PositiveInt
    sources: Sources
    figures: FiguresSchema


def hardware(name: str) -> Hardware:
    """The machine with this name."""
    known = _shipped()
    if name.lower() not in known:
        raise UsageError(
            f"`{name}` is not a known machine; firesteel knows {', '.join(sorted(known))}",
            next=f"--host {min(known)}",
        )
    return known[name.lower()]


@cache
def _shipped() -> Mapping[str, Hardware]:
    machines = (_read_shipped(path) for path in shipped_data.names("hardware"))
    return {machine.name: machine for machine in machines}


def _read_shipped(path: str) -> Hardware:
    return read_hardware(path.rpartition("/")[2].removesuffix(".yaml"), shipped_data.yaml_file(path))


def read_hardware(name: str, written: YamlFile) -> Hardware:
    """A hardware file -> a machine, or InvalidFile with the lines of its mistakes."""
    file = written.convert(HardwareSchema)
    figures = {key: _figure(getattr(file.figures, key)) for key in FiguresSchema.__struct_fields__}
    return Hardware(
        name=name,
        title=file.title,
        memory_bytes=figures["memory"].value,
        ceiling_bytes=figures["ceiling"].value,
        bandwidth_bytes_per_s=figures["bandwidth"].value,
        unified=file.unified,
        compute_capability=file.compute_capability,
        arch=file.arch,
        cores=file.cores,
        figures=figures,
    )


def _figure(file: FigureSchema) -> HardwareFigure:
    low = file.value if file.low is None else file.low
    high = file.value if file.high is None else file.high
    return HardwareFigure(file.value, low, high, file.confidence, file.sources, file.note)


def idle_host(machine: Hardware) -> Host:
    """A host of this kind with nothing running on it."""
    return Host(
        name=machine.name,
        title=machine.title,
        hardware=machine.name,
        cores=machine.cores,
        memory_total_bytes=machine.memory_bytes,
        memory_available_bytes=machine.memory_bytes,
        keep_free_bytes=keep_free_bytes(machine.memory_bytes, machine.ceiling_bytes),
        bandwidth_bytes_per_s=float(machine.bandwidth_bytes_per_s),
        bandwidth_kind="reported",
    )
