"""The Prometheus text format 0.0.4: a `/metrics` page -> its samples.

    for sample in parse(text):
        sample.name, sample.value, sample.labels

`parse_raw_sample` leaves values and escapes as they were written, for a program that writes the line again.

Strict: a line that Prometheus itself would refuse is left out, never guessed at. Bounded: the page belongs to
another program, so its length, the number of samples and the length of names and labels have limits.
https://prometheus.io/docs/instrumenting/exposition_formats/, seen 2026-11-15; tested against the parser of
prometheus-client. That parser (0.26) is not used here: one bad line ends the whole page with a ValueError,
it reads every sample where a few names are wanted (25 times slower on a page of 2,000), and loading it takes
15 MB in a gateway and in each load job.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple

MAX_CHARS = 4 * 2**20
"""Of one page. A page of vLLM with all its histograms has about 100,000."""
MAX_SAMPLES = 20_000

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}", re.ASCII)
_SAMPLE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]{0,199})"
    r"(?:[ \t]*\{((?:[^\"}\n]|\"(?:[^\"\\\n]|\\.)*+\")*+)\}[ \t]*|[ \t]+)"
    r"([^ \t{}\"]{1,40})(?:[ \t]+(-?[0-9]{1,15}))?[ \t]*",
    re.ASCII,
)
_LABEL = re.compile(
    r"([a-zA-Z_][a-zA-Z0-9_]{0,99})[ \t]*=[ \t]*\"((?:[^\"\\\n]|\\[\\\"n]){0,4096})\"[ \t]*(?:,[ \t]*|$)",
    re.ASCII,
)
_NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?|[iI][nN][fF])|[nN][aA][nN]", re.ASCII
)
_ESCAPE = re.compile(r"\\([\\\"n])")
_UNESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


class PrometheusSample(NamedTuple):
    """One line of `/metrics`."""

    name: str
    value: float
    labels: Mapping[str, str] = {}
    timestamp_ms: int | None = None


class RawSample(NamedTuple):
    """One line of `/metrics` that is valid, in its own spelling."""

    name: str
    value: str
    labels: Mapping[str, str]
    """The values are still escaped."""
    timestamp_ms: str | None


def parse(text: str, names: Collection[str] | None = None) -> Iterator[PrometheusSample]:
    """The samples of a page, in its order; with `names`, only samples of these names (much faster)."""
    lines = text[:MAX_CHARS].split("\n")  # not splitlines(): it sees line ends where Prometheus sees none
    if len(text) > MAX_CHARS:
        lines.pop()  # cut in the middle
    count = 0
    for line in lines:
        if names is not None and ((name := _NAME.match(line)) is None or name[0] not in names):
            continue
        sample = parse_sample(line.removesuffix("\r"))
        if sample:
            yield sample
            count += 1
            if count == MAX_SAMPLES:
                return


def parse_sample(line: str) -> PrometheusSample | None:
    """One line, without its end; None for a comment, an empty line, and a line that is not valid."""
    raw = parse_raw_sample(line)
    if raw is None:
        return None
    name, value, labels, timestamp_ms = raw
    if labels and "\\" in line:
        unescape = partial(_ESCAPE.sub, lambda escape: _UNESCAPED[escape[1]])
        labels = {label: unescape(text) for label, text in labels.items()}
    return PrometheusSample(name, float(value), labels, int(timestamp_ms) if timestamp_ms else None)


def parse_raw_sample(line: str) -> RawSample | None:
    """The same line in its own spelling: `1` stays `1`, and labels keep their escapes."""
    match = _SAMPLE.fullmatch(line)
    if match is None or not _NUMBER.fullmatch(match[3]):
        return None
    labels = _parse_labels(match[2]) if match[2] else {}
    return None if labels is None else RawSample(match[1], match[3], labels, match[4])


def is_metric_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _parse_labels(text: str) -> dict[str, str] | None:
    """None when the labels are not valid, or one is there twice."""
    labels: dict[str, str] = {}
    position, text = 0, text.strip(" \t")
    while position < len(text):
        match = _LABEL.match(text, position)
        if match is None or match[1] in labels or match[1].startswith("__"):
            return None
        labels[match[1]] = match[2]
        position = match.end()
    return labels
