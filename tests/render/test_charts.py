"""Pictures: well-formed, with every figure in words."""

from __future__ import annotations

from xml.etree import ElementTree

from firesteel.render import Bar, Panel, draw_chart

SVG = "{http://www.w3.org/2000/svg}"


def test_every_bar_has_its_words_and_its_width() -> None:
    bars = (Bar("weights", 60, 60, 60, "60 GiB"), Bar("<engine>", 2, 3, 5, "3 GiB & more"))
    text = draw_chart('a "title"', [Panel("memory", bars, 105, "room 105 GiB", is_stack=True)], "foot")
    root = ElementTree.fromstring(text)
    words = [each.text for each in root.iter(f"{SVG}text")]
    assert {"weights", "<engine>", "60 GiB", "3 GiB & more", "room 105 GiB", 'a "title"', "foot"} <= set(
        words
    )
    drawn = [
        (float(each.attrib["x"]), float(each.attrib["width"]))
        for each in root.iter(f"{SVG}rect")
        if "x" in each.attrib
    ]
    assert drawn[0][1] == 20 * drawn[1][1]
    assert drawn[1][0] == drawn[0][0] + drawn[0][1]


def test_a_figure_without_a_band_has_no_whiskers() -> None:
    exact = draw_chart("t", [Panel("p", (Bar("a", 1, 1, 1, "1"),), 2, "limit")], "")
    banded = draw_chart("t", [Panel("p", (Bar("a", 1, 2, 3, "2"),), 2, "limit")], "")
    assert banded.count("<path") == exact.count("<path") + 1
