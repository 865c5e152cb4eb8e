"""Charts: well-formed SVG, with every figure in text, and the same figures in the table."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from firesteel.render.charts import (
    Axis,
    DataPoint,
    LinePlot,
    Row,
    RowChart,
    Series,
    downsample,
    draw_panels,
    fit_scale,
    histogram,
)

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> set[str | None]:
    return {element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")}


def test_stacked_bars_touch_and_have_their_labels() -> None:
    rows = (
        Row("weights", "60 GiB", bar=(0, 60)),
        Row("<engine>", "3 GiB & more", bar=(60, 63), whisker=(62, 65)),
    )
    chart = RowChart("memory", Axis("GiB"), rows, limit=(105, "available: 105 GiB"))
    svg = draw_panels('a "title"', [chart], "footnote")
    labels = {"weights", "<engine>", "60 GiB", "3 GiB & more", "available: 105 GiB", 'a "title"', "footnote"}
    assert labels <= texts(svg)
    weights, engine = (
        (float(rect.attrib["x"]), float(rect.attrib["width"]))
        for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect")
        if "x" in rect.attrib
    )
    assert weights[1] == pytest.approx(20 * engine[1], rel=0.01)
    assert engine[0] == pytest.approx(weights[0] + weights[1], abs=0.1)


def test_a_row_without_an_interval_has_no_whiskers() -> None:
    exact = RowChart("t", Axis("x"), (Row("a", "2", bar=(0, 2)),)).svg("c")
    banded = RowChart("t", Axis("x"), (Row("a", "2", bar=(0, 2), whisker=(1, 2)),)).svg("c")
    assert banded.count("<path") == exact.count("<path") + 1


def test_the_table_has_every_series_and_the_drawing_the_first_six() -> None:
    series = tuple(Series(f"s{n}", (DataPoint(1, n + 1, (n, n + 2)), DataPoint(2, 2))) for n in range(8))
    planned = Series("planned", (DataPoint(1, 3, (2, 4)),), "band")
    plot = LinePlot("t", Axis("users"), Axis("tok/s"), (*series, planned))
    head, rows = plot.table()
    assert head == ("series", "users", "tok/s")
    assert rows[0] == ("s0", "1", "1 (0 to 2)") and rows[-1] == ("planned", "1", "3 (2 to 4)")
    assert len(rows) == 17 and plot.undrawn == 2
    assert {"s5", "planned"} <= texts(plot.svg("c")) and "s6" not in texts(plot.svg("c"))


def test_reported_series_are_always_drawn_and_hollow() -> None:
    own = tuple(Series(f"s{n}", (DataPoint(1, 1), DataPoint(2, 2))) for n in range(7))
    plot = LinePlot("t", Axis("x"), Axis("y"), (*own, Series("others", (DataPoint(1, 3),), "hollow")))
    circles = ElementTree.fromstring(plot.svg("c")).iter(f"{SVG}circle")
    assert plot.undrawn == 1
    assert sum(circle.attrib["fill"] == "none" for circle in circles) == 2  # the point and the legend


@pytest.mark.parametrize(
    ("axis", "values", "ticks"),
    [
        (Axis("x"), [0, 60], [0, 20, 40, 60]),
        (Axis("x", is_count=True), [0, 2], [0, 1, 2]),
        (Axis("x", is_log=True), [1, 100], [1, 2, 5, 10, 20, 50, 100]),
        (Axis("x", is_log=True, base=2), [1024, 8192], [1024, 2048, 4096, 8192]),
        (Axis("x", is_log=True), [1e-6, 1e6], [1e-6, 1e-4, 1e-2, 1, 1e2, 1e4, 1e6]),
    ],
)
def test_ticks_are_round(axis: Axis, values: list[float], ticks: list[float]) -> None:
    assert fit_scale(axis, values, 0, 100).ticks() == pytest.approx(ticks)


def test_downsampling_keeps_spikes() -> None:
    points = [DataPoint(float(x), 1000.0 if x == 777 else 5.0) for x in range(5000)]
    kept = downsample(points, 200)
    assert len(kept) <= 202
    assert max(point.y for point in kept) == 1000.0
    assert [point.x for point in kept] == sorted(point.x for point in kept)


def test_a_histogram_holds_every_value_once() -> None:
    bins = histogram([1.0, 1.0, 1.0, 50.0, 0.0001, 1e9], 0.5, 100.0, 10)
    assert max(share for _, _, share in bins) == 1.0
    assert sum(round(3 * share) for _, _, share in bins) == 6
