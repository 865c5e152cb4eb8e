"""The parser of `/metrics`, held against prometheus-client's own."""

from __future__ import annotations

import math
import string
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from firesteel.engines import prometheus
from firesteel.engines.prometheus import PrometheusSample, parse, parse_sample

HERE = Path(__file__).parent
PAGES = (HERE / "metrics" / "llamacpp-11549.txt", HERE / "logs" / "vllm-0.32.0-cpu-metrics.txt")


def reference(text: str) -> list[PrometheusSample]:
    """What prometheus-client reads. Without types, by which it would rename counters and sort samples."""
    text = "".join(f"{line}\n" for line in text.split("\n") if not line.startswith("#"))
    return [
        PrometheusSample(sample.name, sample.value, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def comparable(samples: Iterable[PrometheusSample]) -> list[tuple[str, str, dict[str, str]]]:
    """NaN equals nothing, so values are compared by their text."""
    return [(sample.name, repr(float(sample.value)), dict(sample.labels)) for sample in samples]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recorded_pages_are_read_as_prometheus_client_reads_them(page: Path) -> None:
    text = page.read_text("utf-8")
    assert comparable(parse(text)) == comparable(reference(text))
    assert list(parse(text))


label_values = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(label_values, label_values, st.floats()), max_size=8))
def test_a_page_of_prometheus_client_is_read_back(rows: list[tuple[str, str, float]]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("vllm:gauge", "Help with \\ and \n", ["model_name", "reason"], registry=registry)
    histogram = Histogram("latency_seconds", "Help", ["model_name"], registry=registry)
    for model, reason, value in rows:
        gauge.labels(model, reason).set(value)
        histogram.labels(model).observe(value if math.isfinite(value) else 1)
    text = generate_latest(registry).decode()
    assert comparable(parse(text)) == comparable(reference(text))


SYNTAX = [
    *'{}",=\\ \t#.:+-e_',
    "n",
    "a",
    "le",
    "x",
    "0",
    "1",
    "Inf",
    "NaN",
    'a="b"',
    "metric",
    "metric{",
    '"} ',
]


@given(st.lists(st.sampled_from(SYNTAX), max_size=14).map("".join))
def test_what_is_accepted_prometheus_client_accepts_too(line: str) -> None:
    sample = parse_sample(line)
    if sample is not None:
        assert comparable([sample]) == comparable(reference(f"{line}\n"))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "# TYPE a gauge",
        "a",
        "a0",
        "a{ 1",
        "a{b} 1",
        'a{b="c} 1',
        'a{b="c"d="e"} 1',
        'a{b="c",b="d"} 1',
        'a{__name__="b"} 1',
        'a{b="\\x"} 1',
        "a one",
        "a 1_000",
        "a 1 2 3",
        "1a 1",
        "a 0x10",
        "á 1",
    ],
)
def test_an_invalid_line_is_left_out(line: str) -> None:
    assert parse_sample(line) is None


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ("a 1", PrometheusSample("a", 1.0)),
        ("a\t1", PrometheusSample("a", 1.0)),
        ("a{} 1", PrometheusSample("a", 1.0)),
        ('a{b="c",} 1', PrometheusSample("a", 1.0, {"b": "c"})),
        ('a { b = "c" , d = "" } 1', PrometheusSample("a", 1.0, {"b": "c", "d": ""})),
        ('a{b="{\\"c\\"},\\n\\\\"} 1', PrometheusSample("a", 1.0, {"b": '{"c"},\n\\'})),
        ("a -1.5e-3 1760000000000", PrometheusSample("a", -0.0015, {}, 1760000000000)),
        ("a +Inf", PrometheusSample("a", math.inf)),
    ],
)
def test_a_valid_line(line: str, sample: PrometheusSample) -> None:
    assert parse_sample(line) == sample
    assert list(parse(f"{line}\r\n")) == [sample]


@given(st.text(string.printable, max_size=200), st.sets(st.sampled_from(["a", "b", "vllm:x"])))
def test_names_only_select(text: str, names: set[str]) -> None:
    text += '\na 1\nb{c="d"} 2\nvllm:x\t3\n'
    assert list(parse(text, names)) == [sample for sample in parse(text) if sample.name in names]


def test_a_page_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    many = "".join(f'a{{b="{number}"}} 1\n' for number in range(prometheus.MAX_SAMPLES + 10))
    assert len(list(parse(many))) == prometheus.MAX_SAMPLES
    assert parse_sample("a{" + "b" * 10_000_000) is None
    monkeypatch.setattr(prometheus, "MAX_CHARS", len("a 1\nb 22"))
    assert [sample.name for sample in parse("a 1\nb 2222\n")] == ["a"], "a line that was cut is not read"
