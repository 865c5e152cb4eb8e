import pytest
from msgspec.structs import astuple

from firesteel.errors import InvalidFile, UsageError
from firesteel.facts.host.hardware import hardware, read_hardware
from firesteel.units import GB, GIB
from firesteel.values import YamlFile

GOOD = """\
title: A box
unified: false
compute_capability: "9.0"
arch: amd64
cores: 8
sources: [{url: https://example.org/box, seen: 2026-11-15}]
figures:
  installed: {value: 80GB, confidence: claimed, sources: [{url: https://example.org/a, seen: 2026-11-15}]}
  memory: {value: 79GiB, low: 78GiB, confidence: measured, sources: [{url: https://b.org, seen: 2026-11-15}]}
  ceiling: {value: 70GiB, confidence: reported, sources: [{url: https://example.org/c, seen: 2026-11-15}]}
  bandwidth: {value: 3350GB, confidence: claimed, sources: [{url: https://example.org/d, seen: 2026-11-15}]}
"""


def test_a_spark_is_known_by_its_numbers() -> None:
    spark = hardware("GB10")
    assert (spark.compute_capability, spark.arch, spark.cores, spark.unified) == ("12.1", "arm64", 20, True)
    assert spark.bandwidth_bytes_per_s == 273 * GB
    assert spark.figures.installed.value == 128 * GB
    assert spark.memory_bytes == int(121.69 * GIB)


def test_the_ceiling_is_under_every_use_that_wedged_a_host() -> None:
    wedged = [114 * GB, 112 * GIB, int(113.9 * GIB), int(117.8 * GIB)]
    spark = hardware("gb10")
    assert spark.ceiling_bytes < min(wedged)
    assert spark.ceiling_bytes < (spark.figures.memory.low or 0)


def test_every_figure_has_a_source_and_a_day() -> None:
    for figure in astuple(hardware("gb10").figures):
        assert (figure.low or 0) <= figure.value <= (figure.high or figure.value)
        assert all(source.url.startswith("https://") for source in figure.sources)
        assert min(source.seen.year for source in figure.sources) >= 2025


def test_an_unknown_machine_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="`h100` is not a known machine; firesteel knows gb10") as error:
        hardware("h100")
    assert error.value.next == "--host gb10"


def test_a_figure_may_have_a_spread() -> None:
    figures = read_hardware("box", YamlFile.parse("box.yaml", GOOD)).figures
    assert (figures.memory.low, figures.memory.value, figures.memory.high) == (78 * GIB, 79 * GIB, None)
    assert (figures.ceiling.low, figures.ceiling.value, figures.ceiling.high) == (None, 70 * GIB, None)


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("79GiB, low", "79 bananas, low", "hw.yaml:9: `figures.memory.value`: `79 bananas` is not a size"),
        ("confidence: measured", "confidence: guessed", "hw.yaml:9: `figures.memory.confidence`"),
        ("sources: [{url: https://b.org, seen: 2026-11-15}]", "sources: []", "hw.yaml:9: `figures.memory"),
        ("https://example.org/c", "my notes", "hw.yaml:10: `figures.ceiling.sources.0.url`"),
        ("seen: 2026-11-15}]\nfigures", "seen: lately}]\nfigures", "hw.yaml:6: `sources.0.seen`"),
        ("arch: amd64", "archs: amd64", "hw.yaml:4: `archs`: no such key"),
    ],
)  # fmt: skip
def test_mistakes_have_a_line(was: str, now: str, says: str) -> None:
    assert was in GOOD
    with pytest.raises(InvalidFile) as error:
        read_hardware("box", YamlFile.parse("hw.yaml", GOOD.replace(was, now)))
    assert says in str(error.value)
