"""Write metrics in Prometheus' text format, and merge the engines' own pages with ours.

    await render(families) -> bytes
    await merge(own_page, {"coder": page_of_its_engine}) -> bytes

Format 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/, 2026-11-15). OpenMetrics is not
offered: engines write 0.0.4, which cannot be converted without guessing what a name means.

An engine's page is untrusted. One line that Prometheus cannot parse makes it drop the whole page, so each
line is parsed and written again, or left out and counted in a comment. Every sample gets the label `model`;
if the engine has set one, it is renamed to `exported_model`, as Prometheus does itself.

prometheus-client writes a registry of its own in one piece and cannot merge pages; loading it takes 15 MB.
A large page takes tens of milliseconds, on the loop that also carries all streams. So both functions let the
loop run after every few lines.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Literal, NamedTuple

from msgspec import Struct

from firesteel.engines.metrics import is_metric_name, is_number, parse_raw_sample
from firesteel.values import Value

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge", "histogram", "summary", "untyped"]
Labels = tuple[tuple[str, str], ...]
MAX_ENGINE_CHARS = 2 * 2**20
"""vLLM's page with all its histograms has about 100,000."""
MAX_ENGINE_SAMPLES = 20_000
MAX_SAMPLES = 100_000
STEP = 64
"""Lines between two turns of the loop; about half a millisecond."""
OWN_PREFIX = "firesteel_"

_SPECIAL_VALUES = {"nan": "NaN", "inf": "+Inf", "+inf": "+Inf", "-inf": "-Inf"}
_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("", "_sum", "_count"),
}
_REQUIRED_LABELS = {"_bucket": "le", "": "quantile"}
"""The label that a part of a histogram or a summary must have."""


class MetricSample(NamedTuple):
    suffix: str
    labels: Labels
    value: float


class MetricFamily(Value):
    name: str
    kind: Kind
    help: str
    samples: Iterable[MetricSample]


async def render(families: Iterable[MetricFamily]) -> bytes:
    lines: list[str] = []
    for family in families:
        lines += _header(family.name, family.kind, family.help)
        samples = iter(family.samples)
        while batch := list(islice(samples, STEP)):
            lines += (f"{family.name}{s.suffix}{_braced(s.labels)} {_number(s.value)}" for s in batch)
            await asyncio.sleep(0)
    return _joined(lines)


def _joined(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _header(name: str, kind: str, help: str) -> list[str]:
    return [f"# HELP {name} {_escaped(help)}", f"# TYPE {name} {kind}"]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    quoted = (f'{name}="{_quoted(value)}"' for name, value in labels)
    return "{" + ",".join(quoted) + "}"


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    text = repr(value)
    return _SPECIAL_VALUES.get(text, text)


class _Merged(Struct):
    """One family with the samples of several engines."""

    kind: str
    help: str
    lines: list[str] = []


class _Pages(Struct):
    families: dict[str, _Merged] = {}
    claimed: dict[str, str] = {}
    """Sample name -> its family: `x_count` may be a family of its own, or a part of `x`."""
    samples: int = 0


async def merge(own: bytes, engines: Mapping[str, str]) -> bytes:
    """Our page first, then each family of the engines once, with the samples of all engines."""
    pages = _Pages()
    lines: list[str] = []
    for model, text in engines.items():
        comment = await _read_page(pages, model, text)
        lines += [f"# {comment}"] if comment else []
    for name, family in pages.families.items():
        if family.lines:
            lines += [*_header(name, family.kind, family.help), *family.lines]
    return own + _joined(lines)


async def _read_page(pages: _Pages, model: str, text: str) -> str | None:
    """Read one engine's page. Return a comment on what was left out; None: nothing."""
    reader = _PageReader(pages, model)
    cut = text[:MAX_ENGINE_CHARS]
    lines = cut.split("\n")  # not splitlines(): it splits where Prometheus does not
    if len(text) > len(cut):
        lines.pop()  # incomplete
    for line_number, line in enumerate(lines, 1):
        reader.read(line.removesuffix("\r"))
        if line_number % STEP == 0:
            await asyncio.sleep(0)
    left_out = [f"{reader.invalid} invalid lines"] if reader.invalid else []
    if len(text) > len(cut) or reader.is_full:
        left_out.append("everything beyond its limit")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", model)[:63]
    return f"firesteel left out of the page of {name}: {', '.join(left_out)}" if left_out else None


class _PageReader:
    """Reads the page of one engine line by line into the merged families."""

    def __init__(self, pages: _Pages, model: str) -> None:
        self._pages = pages
        self._label = f'model="{_quoted(model)}"'
        self._types: dict[str, str] = {}
        self._helps: dict[str, str] = {}
        self._series: set[str] = set()
        self.invalid = 0

    @property
    def is_full(self) -> bool:
        return len(self._series) >= MAX_ENGINE_SAMPLES or self._pages.samples >= MAX_SAMPLES

    def read(self, line: str) -> None:
        if not line.strip(" \t"):
            return
        is_valid = self._comment(line) if line.startswith("#") else self.is_full or self._sample(line)
        self.invalid += not is_valid

    def _comment(self, line: str) -> bool:
        """`# TYPE name kind` or `# HELP name text`; other comments are skipped."""
        parts = line.split(None, 3)
        if len(parts) < 3 or parts[0] != "#" or parts[1] not in ("TYPE", "HELP"):
            return True
        name, rest = parts[2], parts[3] if len(parts) > 3 else ""
        if not is_metric_name(name):
            return False
        if parts[1] == "HELP":
            self._helps.setdefault(name, _unescaped(rest)[:1000])
            return True
        kind = rest.strip()
        if kind not in ("counter", "gauge", "histogram", "summary", "untyped"):
            return False
        return self._types.setdefault(name, kind) == kind

    def _sample(self, line: str) -> bool:
        sample = parse_raw_sample(line)
        if sample is None:
            return False
        name, value, labels, timestamp_ms = sample
        if "model" in labels and "exported_model" in labels:
            return False
        family, suffix = self._family_of(name)
        if family is None or not _has_required_label(self._kind(family), suffix, labels):
            return False
        # The values keep their escapes: they were parsed strictly.
        rest = [
            f'{"exported_model" if label == "model" else label}="{text}"' for label, text in labels.items()
        ]
        series = f"{name}{{{','.join([self._label, *rest])}}}"
        if series in self._series:  # a duplicate: at most one is correct
            return False
        self._series.add(series)
        self._pages.samples += 1
        # C++ programs write `nan`, which not every parser accepts.
        value = _SPECIAL_VALUES.get(value.lower(), value)
        stamp = f" {timestamp_ms}" if timestamp_ms else ""
        self._pages.families[family].lines.append(f"{series} {value}{stamp}")
        return True

    def _kind(self, family: str) -> str:
        return self._types.get(family, "untyped")

    def _family_of(self, name: str) -> tuple[str | None, str]:
        """The family of a sample and its suffix; None if another family uses the name."""
        stem, underscore, last = name.rpartition("_")
        suffix = underscore + last
        if stem and suffix in _SUFFIXES.get(self._kind(stem), ()):
            return (stem if self._claim(stem) else None), suffix
        return (name if self._claim(name) else None), ""

    def _claim(self, family: str) -> bool:
        kind = self._kind(family)
        known = self._pages.families.get(family)
        if known is not None:
            return known.kind == kind
        names = {family, *(family + suffix for suffix in _SUFFIXES.get(kind, ()))}
        if family.startswith(OWN_PREFIX) or any(name in self._pages.claimed for name in names):
            return False
        self._pages.claimed.update(dict.fromkeys(names, family))
        self._pages.families[family] = _Merged(kind, self._helps.get(family, ""))
        return True


def _has_required_label(kind: str, suffix: str, labels: Mapping[str, str]) -> bool:
    """A bucket needs `le`, a quantile `quantile`; a bare `x` is no part of a histogram."""
    if kind not in _SUFFIXES:
        return True
    if suffix not in _SUFFIXES[kind]:
        return False
    label = _REQUIRED_LABELS.get(suffix)
    return label is None or is_number(labels.get(label, ""))


def _unescaped(text: str) -> str:
    """Only `\\\\` and `\\n` are escapes; any other backslash stands for itself."""
    return re.sub(r"\\([\\n])", lambda match: "\n" if match[1] == "n" else "\\", text)
