"""Families of numbers -> the text that Prometheus reads, and the engines' own pages put beside ours.

    page(families) -> bytes
    merge(own_page, {"coder": text_of_its_engine}) -> bytes

Format 0.0.4 (https://prometheus.io/docs/instrumenting/exposition_formats/, 2026-11-15). OpenMetrics is not
offered: engines speak 0.0.4, and their pages do not become the other without guessing what a name means.

An engine's page is what another program says. One line that Prometheus cannot read loses it the whole page,
so each line is taken apart and written anew, or left out and counted in a comment. Every sample gets the
label `model`; one of that name which it has already is called `exported_model`, as Prometheus itself does.

A large page takes tens of milliseconds, and the loop that would write it carries everybody's streams. So both
can be done in small steps (`paging`, `merging`), with a turn of the loop after each.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge", "histogram", "summary", "untyped"]
Labels = tuple[tuple[str, str], ...]
MAX_ENGINE_CHARS = 2 * 2**20
"""A page of vLLM with all its histograms has about 100,000."""
MAX_ENGINE_SAMPLES = 20_000
MAX_SAMPLES = 100_000
STEP = 64
"""Lines; about half a millisecond."""
T = TypeVar("T")
Steps = Generator[None, None, T]
OURS = "firesteel_"

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}", re.ASCII)
_SAMPLE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]{0,199})[ \t]*"
    r"(?:\{((?:[^\"}\n]|\"(?:[^\"\\\n]|\\.)*+\")*+)\})?[ \t]*"
    r"([^ \t{}\"]{1,40})(?:[ \t]+(-?[0-9]{1,15}))?[ \t]*",
    re.ASCII,
)
_LABEL = re.compile(
    r"[ \t]*([a-zA-Z_][a-zA-Z0-9_]{0,99})[ \t]*=[ \t]*\"((?:[^\"\\\n]|\\[\\\"n]){0,4096})\"[ \t]*(?:,|$)",
    re.ASCII,
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_NO_NUMBERS = {"nan": "NaN", "inf": "+Inf", "+inf": "+Inf", "-inf": "-Inf"}
_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("", "_sum", "_count"),
}
_RANKED = {"_bucket": "le", "": "quantile"}
"""The label without which a part of a histogram or a summary says nothing."""


class MetricSample(NamedTuple):
    suffix: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class MetricFamily:
    name: str
    kind: Kind
    help: str
    samples: Iterable[MetricSample]


def drained(steps: Steps[T]) -> T:
    """All steps at once."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: T = done.value
        return result


def page(families: Iterable[MetricFamily]) -> bytes:
    return drained(paging(families))


def paging(families: Iterable[MetricFamily]) -> Steps[bytes]:
    lines: list[str] = []
    for family in families:
        lines += _head(family.name, family.kind, family.help)
        samples = iter(family.samples)
        while some := list(islice(samples, STEP)):
            lines += (
                f"{family.name}{each.suffix}{_braced(each.labels)} {_number(each.value)}" for each in some
            )
            yield
    return _joined(lines)


def _joined(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _head(name: str, kind: str, help: str) -> list[str]:
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
    return _NO_NUMBERS.get(text, text)


@dataclass(slots=True)
class _Merged:
    """A family as several engines tell it."""

    kind: str
    help: str
    lines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Pages:
    families: dict[str, _Merged] = field(default_factory=dict)
    claimed: dict[str, str] = field(default_factory=dict)
    """Name of a sample -> the family whose it is: `x_count` may be one of its own, or a part of `x`."""
    samples: int = 0


def merge(own: bytes, engines: Mapping[str, str]) -> bytes:
    """Our page first; then each family of the engines once, with the samples of all of them."""
    return drained(merging(own, engines))


def merging(own: bytes, engines: Mapping[str, str]) -> Steps[bytes]:
    pages = _Pages()
    lines: list[str] = []
    for model, text in engines.items():
        comment = yield from _taking(pages, model, text)
        lines += [f"# {comment}"] if comment else []
    for name, family in pages.families.items():
        if family.lines:
            lines += [*_head(name, family.kind, family.help), *family.lines]
    return own + _joined(lines)


def _taking(pages: _Pages, model: str, text: str) -> Steps[str | None]:
    """One engine's page. The comment says what was left out of it; None: nothing."""
    reader = _Reader(pages, model)
    cut = text[:MAX_ENGINE_CHARS]
    lines = cut.split("\n")
    if len(text) > len(cut):
        lines.pop()  # half a line
    for at, line in enumerate(lines, 1):  # never splitlines(): it sees ends where Prometheus sees none
        reader.read(line.removesuffix("\r"))
        if at % STEP == 0:
            yield
    said = [f"{reader.refused} lines that are not of the format"] if reader.refused else []
    if len(text) > len(cut) or reader.is_full:
        said.append("what came after its limit")
    return f"firesteel left out of the page of {_plain(model)}: {', '.join(said)}" if said else None


def _plain(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", model)[:63]


class _Reader:
    """Line by line through the page of one engine, into the families of all."""

    def __init__(self, pages: _Pages, model: str) -> None:
        self._pages = pages
        self._label = f'model="{_quoted(model)}"'
        self._types: dict[str, str] = {}
        self._helps: dict[str, str] = {}
        self._series: set[str] = set()
        self.refused = 0

    @property
    def is_full(self) -> bool:
        return len(self._series) >= MAX_ENGINE_SAMPLES or self._pages.samples >= MAX_SAMPLES

    def read(self, line: str) -> None:
        if not line.strip(" \t"):
            return
        good = self._comment(line) if line.startswith("#") else self.is_full or self._sample(line)
        self.refused += not good

    def _comment(self, line: str) -> bool:
        """`# TYPE name kind`, `# HELP name words`; any other is talk between people."""
        words = line.split(None, 3)
        if len(words) < 3 or words[0] != "#" or words[1] not in ("TYPE", "HELP"):
            return True
        name, rest = words[2], words[3] if len(words) > 3 else ""
        if not _NAME.fullmatch(name):
            return False
        if words[1] == "HELP":
            self._helps.setdefault(name, _unescaped(rest)[:1000])
            return True
        kind = rest.strip()
        if kind not in ("counter", "gauge", "histogram", "summary", "untyped"):
            return False
        return self._types.setdefault(name, kind) == kind

    def _sample(self, line: str) -> bool:
        match = _SAMPLE.fullmatch(line)
        labels = _labels(match[2] or "") if match else None
        value = _value(match[3]) if match else None
        if match is None or labels is None or value is None:
            return False
        family, suffix = self._family_of(match[1])
        if family is None or not _is_ranked(self._kind(family), suffix, labels):
            return False
        series = match[1] + self._with_model(labels)
        if series in self._series:  # told twice: only one can be true
            return False
        self._series.add(series)
        self._pages.samples += 1
        stamp = f" {match[4]}" if match[4] else ""
        self._pages.families[family].lines.append(f"{series} {value}{stamp}")
        return True

    def _with_model(self, labels: Mapping[str, str]) -> str:
        """Values are as they came, escapes and all: they were read strictly."""
        rest = (f'{"exported_model" if name == "model" else name}="{text}"' for name, text in labels.items())
        return "{" + ",".join((self._label, *rest)) + "}"

    def _kind(self, family: str) -> str:
        return self._types.get(family, "untyped")

    def _family_of(self, name: str) -> tuple[str | None, str]:
        """Whose sample it is, and as which part; None when another family has the name already."""
        for suffix in ("_bucket", "_sum", "_count"):
            stem = name.removesuffix(suffix)
            if stem != name and suffix in _SUFFIXES.get(self._kind(stem), ()):
                return (stem if self._claim(stem) else None), suffix
        return (name if self._claim(name) else None), ""

    def _claim(self, family: str) -> bool:
        kind = self._kind(family)
        known = self._pages.families.get(family)
        if known is not None:
            return known.kind == kind
        names = {family, *(family + suffix for suffix in _SUFFIXES.get(kind, ()))}
        if family.startswith(OURS) or any(name in self._pages.claimed for name in names):
            return False
        self._pages.claimed.update(dict.fromkeys(names, family))
        self._pages.families[family] = _Merged(kind, self._helps.get(family, ""))
        return True


def _is_ranked(kind: str, suffix: str, labels: Mapping[str, str]) -> bool:
    """A bucket has its bound, a quantile its share; `x` alone is no part of a histogram."""
    if kind not in _SUFFIXES:
        return True
    if suffix not in _SUFFIXES[kind]:
        return False
    rank = _RANKED.get(suffix)
    return rank is None or _value(labels.get(rank, "")) is not None


def _labels(text: str) -> dict[str, str] | None:
    """None when they are not as the format has them, or one is there twice."""
    found: dict[str, str] = {}
    at, text = 0, text.rstrip(" \t")
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None or match[1] in found or match[1].startswith("__"):
            return None
        found[match[1]] = match[2]
        at = match.end()
    return None if "model" in found and "exported_model" in found else found


def _value(text: str) -> str | None:
    """As Prometheus writes it; C++ says `nan`, which its own reader takes and others do not."""
    if _NUMBER.fullmatch(text):
        return text
    return _NO_NUMBERS.get(text.lower())


def _unescaped(text: str) -> str:
    """Help as it was meant; a backslash before anything else stands for itself."""
    return re.sub(r"\\([\\n])", lambda found: "\n" if found[1] == "n" else "\\", text)
