"""The page of a run: what it says, that it holds whatever a run holds, and that it is one file."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from math import inf, nan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.compare.verdict import verdict
from firesteel.bench.report import format
from firesteel.bench.report.plot import Dot, thinned
from firesteel.bench.report.report import published_rows, report_page
from firesteel.bench.report.row_chart import binned
from firesteel.bench.results.history import open_history
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, MeasuredFigure, Point, PointFigures
from firesteel.cli import compare
from firesteel.cli.output import bench
from firesteel.cli.output.bench_page import before, write_page
from firesteel.edge.files.home import Home
from firesteel.planner.speed.published import PublishedRun as Published
from tests.bench.example_run import POINTS, example_run, of_texts

GOLDEN = Path(__file__).parent / "golden" / "report.html"
SVG, XHTML = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xhtml}"
HOSTILE = (
    '</title></svg></script><script>alert("x")</script><img src=x onerror=alert(1)>'
    "\x00\x1b[31m\ud800\u202e&amp;'\""
)
CHARTS = (
    "Throughput of all against the speed of each",
    "Time to the first word against the length of the prompt",
    "Decode against depth",
    "Plan against measured",
    "Share of what the memory's bandwidth allows",
    "Time between pieces of an answer",
    "Clock of the GPU",
    "Power of the GPU",
    "Heat of the GPU",
    "Requests that went wrong",
)


def published(decode_tokens_per_s: float, depth: int = 1024) -> Published:
    """Made up too; of a source that is not one of ours."""
    return Published(
        "pretend", "", "", "", "", "", "fp8", "vllm", "0.27.0", 1, depth, 128, 1, "", "", decode_tokens_per_s,
        None, None, None, "", "nobody", "",
    )  # fmt: skip


def parsed(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page)


def words(root: ElementTree.Element) -> str:
    return " ".join(" ".join(root.itertext()).split())


def drawn(root: ElementTree.Element) -> list[str]:
    return [each.findtext(f"{SVG}title", "") for each in root.iter(f"{SVG}svg")]


def test_golden() -> None:
    old = replace(example_run("made-up-0").run, began="2026-11-14T10:00:00+00:00")
    page = report_page(example_run(), [published(44.0), published(39.0, 8192)], old)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(page, "utf-8")
    assert page == GOLDEN.read_text("utf-8"), (
        "if this is meant: UPDATE_GOLDEN=1 pytest tests/bench/test_report.py"
    )


def test_a_run_with_everything_has_every_chart_and_each_says_what_it_shows() -> None:
    root = parsed(report_page(example_run()))
    assert tuple(drawn(root)) == CHARTS
    for each in root.iter(f"{SVG}svg"):
        ids = each.attrib["aria-labelledby"].split()
        assert [each.find(f"{SVG}{tag}").attrib["id"] for tag in ("title", "desc")] == ids  # type: ignore[union-attr]
        assert len(each.findtext(f"{SVG}desc", "")) > 15
    every = [each.attrib["id"] for each in root.iter() if "id" in each.attrib]
    assert len(every) == len(set(every))
    assert "These figures are made up" in words(root)


def test_what_is_not_known_is_left_out_and_said() -> None:
    root = parsed(report_page(of_texts("prose")))
    text = words(root)
    assert drawn(root) == ["Time between pieces of an answer"]  # from the figures, without samples
    for title in CHARTS[:5]:
        assert re.search(re.escape(title) + " Left out: [^.]{10,}", text), title
    assert "What the machine did meanwhile Left out" in text
    assert "Requests that went wrong None did; 5 good ones are in the figures." in text
    assert "no plan was kept with it" in text
    assert "engine not known" in text and "host not known" in text


def test_a_run_of_nothing_says_so() -> None:
    kept = example_run()
    text = words(parsed(report_page(StoredRun(replace(kept.run, figures=(), beside={}, client={})))))
    assert "Nothing could be measured" in text
    assert "Every figure There are none" in text


# --- hostile words and numbers ---


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, tuple(name for name, _ in attrs)))


def tags(page: str) -> list[tuple[str, tuple[str, ...]]]:
    parser = _Tags()
    parser.feed(page)
    return parser.seen


def hostile(word: str) -> StoredRun:
    kept = example_run("made-up-1", word)
    subject = replace(
        kept.run.subject, engine=word, version=word, launch_key=word, image_digest=word, url=word,
        launch={"flags": {word: word}, "env": {word: [word]}, "start": [word], "image": word},
        host={"title": word, "gpus": [word]}, plan={**kept.run.subject.plan, "why": word},
    )  # fmt: skip
    found = tuple(
        replace(each, notes=(word,), wrong={word: 2}, cold={word: 1.0}) for each in kept.run.figures
    )
    run = replace(kept.run, id=word, subject=subject, figures=found, notes=(word,), began=word)
    samples = tuple(replace(each, why=word) for each in kept.samples)
    return StoredRun(run, samples, word, word)


def test_no_word_of_others_becomes_markup() -> None:
    wild, tame = (hostile(word) for word in (HOSTILE, "tame" * 28))
    page = report_page(wild, [published(44.0)], wild.run)
    assert tags(page) == tags(report_page(tame, [published(44.0)], tame.run))
    parsed(page)
    page.encode()
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", page)
    assert "&lt;script&gt;alert(&quot;x&quot;)" in page


def test_it_is_one_file_without_scripts() -> None:
    page = report_page(example_run())
    assert not {"script", "link", "img", "iframe", "object", "foreignobject"} & {tag for tag, _ in tags(page)}
    assert not any(name.startswith("on") for _, names in tags(page) for name in names)
    assert not re.search(r"\bsrc=|url\(|@import", page)
    assert "default-src &#x27;none&#x27;" in page


def test_sources_of_published_figures_are_led_to() -> None:
    kept = example_run()
    name = "nvidia/Gemma-4-26B-A4B-NVFP4"
    subject = replace(kept.run.subject, model=name, launch={**kept.run.subject.launch, "model": name})
    run = replace(kept.run, subject=subject)
    rows = published_rows(run)
    root = parsed(report_page(replace(kept, run=run), rows))
    links = {each.attrib["href"] for each in root.iter(f"{XHTML}a")}
    assert rows and links and all(link.startswith("https://") for link in links)
    assert "reported by others" in words(root)


NUMBERS = st.one_of(
    st.floats(), st.sampled_from([0.0, -1.0, nan, inf, 1e-320, 1e300, 50.0]), st.integers(-(10**30), 10**30)
)
COUNTS = st.one_of(st.integers(-2, 20), st.sampled_from([0, 10**9, 10**40]))


@st.composite
def wild_runs(draw: st.DrawFn) -> StoredRun:
    kept = example_run()

    def figure() -> MeasuredFigure | None:
        return draw(st.none() | st.builds(MeasuredFigure, NUMBERS, NUMBERS, NUMBERS, COUNTS))

    def some(*names: str) -> dict[str, Any]:
        return {name: draw(NUMBERS) for name in names}

    def one() -> PointFigures:
        users, prompt, answer, shared, turns = (draw(COUNTS) for _ in range(5))
        point = Point("x", "prose", users, prompt, answer, shared, turns, draw(st.none() | st.floats()))
        return PointFigures(
            point, draw(COUNTS), {"late": draw(COUNTS)}, figure(), figure(), figure(),
            some("p50", "p90", "p99"), some("p50", "p90", "p99"), some("p50"), draw(st.none() | st.floats()),
            draw(st.none() | st.floats()), draw(st.none() | st.floats()), ttft_mean_ms=figure(),
            cold=some("ttft_ms"), kv_usage=draw(st.none() | st.floats()),
            preemptions=draw(st.none() | COUNTS),
        )  # fmt: skip

    band = st.fixed_dictionaries({"low": NUMBERS, "expected": NUMBERS, "high": NUMBERS})
    plan = {
        "decode_tokens_per_s": draw(band), "ttft_ms": draw(band), "prefill_tokens_per_s": draw(band),
        "prompt_tokens": draw(COUNTS),
        "at_depth": [[draw(COUNTS), draw(band)] for _ in range(2)], "bound_tokens_per_s": draw(NUMBERS),
        "bytes_per_token": draw(NUMBERS), "bandwidth_bytes_per_s": draw(NUMBERS),
    }  # fmt: skip
    beside = {
        "power_w": some("least", "mean", "most"),
        "over_time": {
            "at_s": [draw(NUMBERS) for _ in range(3)],
            "power_w": [draw(NUMBERS), None, draw(NUMBERS)],
        },
    }
    usual = replace(
        kept.run.figures[0], decode_tokens_per_s=figure() or kept.run.figures[0].decode_tokens_per_s
    )
    found = (one(), one(), usual)
    run = replace(
        kept.run, figures=found, points=tuple(each.point for each in found), beside=beside,
        subject=replace(kept.run.subject, plan=plan), client=some("p99_lag_ms", "cpu_share"),
    )  # fmt: skip
    samples = tuple(
        replace(each, point=2, gaps_s=tuple(float(draw(st.floats())) for _ in range(3)))
        for each in kept.samples[:4]
    )
    return StoredRun(run, samples, "reported", "a file")


@settings(max_examples=40, phases=(Phase.explicit, Phase.generate))
@given(wild_runs())
def test_whatever_numbers_a_file_holds_the_page_is_whole(kept: StoredRun) -> None:
    page = report_page(kept, [published(44.0)], kept.run)
    root = parsed(page)
    places = [
        value
        for each in root.iter()
        if each.tag.startswith(SVG)
        for name in ("x", "y", "width", "height", "d", "points", "cx", "cy")
        for value in re.findall(r"[a-z]{2,}", each.attrib.get(name, ""))
    ]
    assert not places, "nan or inf in a drawing"
    for each in root.iter(f"{SVG}rect"):
        assert float(each.attrib["width"]) >= 0 and float(each.attrib["height"]) >= 0
    assert "Not measured here: reported" in words(root)


# --- size ---


def test_thousands_of_samples_and_points_make_a_page_of_bounded_size() -> None:
    kept = example_run()
    many = [replace(POINTS[0], prompt_tokens=1000 + at) for at in range(1000)]
    found = tuple(replace(kept.run.figures[0], point=point, notes=("n" * 5000,)) for point in many)
    looks = [float(at) for at in range(20_000)]
    run = replace(
        kept.run, points=tuple(many), figures=found, notes=("long " * 2000,) * 500,
        beside={**kept.run.beside, "over_time": {"at_s": looks, "power_w": looks}},
    )  # fmt: skip
    samples = tuple(replace(kept.samples[1], gaps_s=(0.02,) * 500, repetition=at) for at in range(2000))
    page = report_page(
        StoredRun(run, samples), [published(40.0 + at / 100, 1024 + at) for at in range(500)], run
    )
    parsed(page)
    assert len(page) < 700_000
    assert "more rows are left out" in page


def test_thinning_keeps_spikes() -> None:
    dots = [Dot(float(at), 1000.0 if at == 777 else 5.0) for at in range(5000)]
    kept = thinned(dots, 200)
    assert len(kept) <= 202
    assert max(dot.y for dot in kept) == 1000.0
    assert [dot.x for dot in kept] == sorted(dot.x for dot in kept)


def test_bins_hold_every_value_once() -> None:
    found = binned([1.0, 1.0, 1.0, 50.0, 0.0001, 1e9], 0.5, 100.0, 10)
    assert max(share for _, _, share in found) == 1.0
    assert sum(round(3 * share) for _, _, share in found) == 6


# --- words ---


@pytest.mark.parametrize(
    "values", [[53.8, 53.2, 54.4], [53.8], [123.4, 124.0, 120.1], [1478.2, 1480.0], [0.51, 0.5]]
)
def test_figures_are_worded_as_in_the_table(values: list[float]) -> None:
    found = mean_interval(values)
    assert format.figure(found) == bench.figure(found)


@pytest.mark.parametrize("point", POINTS[:-1])
def test_loads_are_worded_as_compare_words_them(point: Point) -> None:
    assert format.load(point) == compare.said(point)


def told(run: BenchRun) -> str:
    return "\n".join(f"{line.kind}: {line.text}" for line in verdict(run))


def test_the_verdict_in_plain_words() -> None:
    text = told(example_run().run)
    assert "A single user gets 54.5 ±1.2% tok/s of code and 50.5 ±1.2% tok/s of prose" in text
    assert (
        "With a prompt of 32,768 tokens a user gets 37.0 ±1.2% tok/s, and waits 14 s for the first token"
        in text
    )
    assert "of prose: 4 at 20 tok/s or more. Measured: 1, 2, 4, 8 and 16." in text
    assert "good: All 8 figures that the plan covers are inside its band." in text
    assert "good: Decode of one user reaches 0.67 to 0.72 of the memory bandwidth bound" in text
    assert "warning: 3 requests failed and are in no figure; 280 succeeded." in text


def test_without_a_target_it_says_how_many_keep_each_pace() -> None:
    run = example_run().run
    text = told(replace(run, settings=replace(run.settings, target={})))
    assert "1 at 50 tok/s or more; 4 at 20 tok/s or more; all 16 at 10 tok/s or more" in text


def test_slower_than_planned_is_a_warning() -> None:
    run = example_run().run
    plan = {
        **run.subject.plan,
        "decode_tokens_per_s": {"low": 70.0, "expected": 75.0, "high": 80.0},
        "at_depth": [],
    }
    text = told(replace(run, subject=replace(run.subject, plan=plan)))
    assert (
        "warning: 2 of 6 figures are slower than planned: decode 50.5 ±1.2%, planned 75.0 (70.0 to 80.0)"
        in text
    )


@pytest.mark.parametrize("share", [0.3, 1.2])
def test_a_share_outside_the_corridor_is_a_warning(share: float) -> None:
    run = example_run().run
    odd = replace(run.figures[0], bandwidth_share=share)
    assert "warning: Decode of one user reaches" in told(replace(run, figures=(odd, *run.figures[1:])))


def test_without_a_gpu_a_small_share_is_no_fault() -> None:
    run = example_run().run
    odd = replace(run.figures[0], bandwidth_share=0.3)
    here = replace(run, figures=(odd,), subject=replace(run.subject, host={"title": "a CPU", "gpus": []}))
    assert "fact: Decode of one user reaches 0.30" in told(here)
    assert "0.30, not unusual without a GPU" in words(parsed(report_page(StoredRun(here))))
    high = replace(here, figures=(replace(odd, bandwidth_share=1.2),))
    assert "warning: Decode of one user reaches 1.20" in told(high)


def test_a_run_cut_off_and_a_late_client_are_warnings() -> None:
    run = example_run().run
    few = replace(run.figures[0], repetitions=1)
    text = told(replace(run, is_whole=False, client={"p99_lag_ms": 3.0}, figures=(few,)))
    assert "stopped early" in text
    assert "client itself was late" in text
    assert "1 of 1 loads have fewer than 3 repetitions" in text


# --- marks ---


def chart(root: ElementTree.Element, title: str) -> ElementTree.Element:
    return next(each for each in root.iter(f"{SVG}svg") if each.findtext(f"{SVG}title") == title)


def test_measured_is_filled_planned_a_band_and_reported_hollow() -> None:
    root = parsed(report_page(example_run(), [published(44.0), published(39.0, 8192)]))
    found = chart(root, "Decode against depth")
    circles = list(found.iter(f"{SVG}circle"))
    hollow = [each for each in circles if each.attrib["fill"] == "none"]
    assert len(hollow) == 2 + 1  # and the one that says what they mean
    assert len(circles) - len(hollow) == 3 + 1
    assert len(list(found.iter(f"{SVG}polygon"))) == 1
    none = chart(parsed(report_page(example_run())), "Decode against depth")
    assert not [each for each in none.iter(f"{SVG}circle") if each.attrib["fill"] == "none"]


def test_a_dot_lies_where_its_figure_is() -> None:
    """Of two points, the one twice as fast is twice as far from the floor."""
    kept = of_texts("prose")
    slow, fast = (
        replace(kept.run.figures[0], point=Point("depth", prompt_tokens=tokens)) for tokens in (1000, 3000)
    )
    slow, fast = (
        replace(each, decode_tokens_per_s=MeasuredFigure(v, v, v, 3))
        for each, v in ((slow, 20.0), (fast, 40.0))
    )
    run = replace(kept.run, points=(slow.point, fast.point), figures=(slow, fast))
    found = chart(parsed(report_page(StoredRun(run))), "Decode against depth")
    heights = [294 - float(each.attrib["cy"]) for each in found.iter(f"{SVG}circle")][:2]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)


def test_words_in_drawings_do_not_lie_on_each_other() -> None:
    root = parsed(report_page(example_run(), [published(44.0), published(39.0, 8192)]))
    for each in root.iter(f"{SVG}svg"):
        boxes = [_box(text) for text in each.iter(f"{SVG}text") if "transform" not in text.attrib]
        for at, one in enumerate(boxes):
            assert one[0] >= 0 and one[2] <= 722, (each.findtext(f"{SVG}title"), one)
            for other in boxes[at + 1 :]:
                apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
                assert apart, (each.findtext(f"{SVG}title"), one, other)


def _box(text: ElementTree.Element) -> tuple[float, float, float, float, str]:
    shown = text.text or ""
    wide, x, y = 6.0 * len(shown), float(text.attrib["x"]), float(text.attrib["y"])
    left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[text.attrib["text-anchor"]]
    return left, y - 9, left + wide, y + 2, shown


# --- the command ---


def test_the_page_is_held_against_the_last_run_of_the_same_model(tmp_path: Path) -> None:
    now = example_run("run-now")
    old = replace(example_run("run-old").run, began="2026-11-13T10:00:00+00:00")
    other = replace(example_run("run-other", "another").run, began="2026-11-14T10:00:00+00:00")
    with open_history(Home(tmp_path)) as history:
        for run in (old, other, now.run):
            history.begin(run)
        found = before(history, now.run)
        assert found is not None and found.id == "run-old"
        assert before(history, old) is None
        write_page(tmp_path / "page.html", now, history)
    text = words(parsed((tmp_path / "page.html").read_text("utf-8")))
    assert "Against run run-old" in text and "no difference seen" in text
