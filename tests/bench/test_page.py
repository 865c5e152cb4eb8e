"""The report of a run: its content, its robustness against any data, and that it is a single file.

The plot of the history: measured lines, reported markers, and nothing that breaks the page.
"""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from math import inf, nan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from firesteel.bench.measurements import BenchRun, MeasuredFigure, Point, PointFigures, StoredRun
from firesteel.bench.report.page import history_page, published_rows, report_page
from firesteel.bench.report.verdict import verdict
from firesteel.bench.results.history import open_history
from firesteel.edge.home import Home
from firesteel.library.history import earlier_run, write_report
from firesteel.planner.speed.published import PublishedRun as Published
from firesteel.values import replace
from tests.bench.example_run import POINTS, example_run, of_texts

GOLDEN = Path(__file__).parent / "golden" / "report.html"
SVG, XHTML = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xhtml}"
HOSTILE = (
    '</title></svg></script><script>alert("x")</script><img src=x onerror=alert(1)>'
    "\x00\x1b[31m\ud800\u202e&amp;'\""
)
CHARTS = (
    "Total throughput against speed per user",
    "Time to first token against prompt length",
    "Decode speed against depth",
    "Plan against measured",
    "Share of the memory bandwidth limit",
    "Time between chunks of an answer",
    "GPU clock",
    "GPU power",
    "GPU temperature",
    "Failed requests",
)


def published(decode_tokens_per_s: float, depth: int = 1024) -> Published:
    """Made up too; of a source that is not one of ours."""
    return Published(
        "simulated", "", "", "", "", "", "fp8", "vllm", "0.27.0", 1, depth, 128, 1, "", "",
        decode_tokens_per_s,
        None, None, None, "", "nobody", "",
    )  # fmt: skip


def parsed(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page)


def words(root: ElementTree.Element) -> str:
    return " ".join(" ".join(root.itertext()).split())


def drawn(root: ElementTree.Element) -> list[str]:
    return [svg.findtext(f"{SVG}title", "") for svg in root.iter(f"{SVG}svg")]


def test_golden() -> None:
    old = replace(example_run("made-up-0").run, began="2026-11-14T10:00:00+00:00")
    page = report_page(example_run(), [published(44.0), published(39.0, 8192)], old)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(page, "utf-8")
    assert page == GOLDEN.read_text("utf-8"), (
        "if this is meant: UPDATE_GOLDEN=1 pytest tests/bench/test_page.py"
    )


def test_a_complete_run_has_every_chart_with_a_description() -> None:
    root = parsed(report_page(example_run()))
    assert tuple(drawn(root)) == CHARTS
    for svg in root.iter(f"{SVG}svg"):
        ids = svg.attrib["aria-labelledby"].split()
        assert [svg.find(f"{SVG}{tag}").attrib["id"] for tag in ("title", "desc")] == ids  # type: ignore[union-attr]
        assert len(svg.findtext(f"{SVG}desc", "")) > 15
    every = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(every) == len(set(every))
    assert "These figures are made up" in words(root)


def test_missing_charts_are_explained() -> None:
    root = parsed(report_page(of_texts("prose")))
    text = words(root)
    assert drawn(root) == ["Time between chunks of an answer"]  # from the figures, without samples
    for title in CHARTS[:5]:
        assert re.search(re.escape(title) + " Left out: [^.]{10,}", text), title
    assert "The host during the run Left out" in text
    assert "Failed requests None; the figures include 5 good ones." in text
    assert "the run has no plan" in text
    assert "engine unknown" in text and "host unknown" in text


def test_a_run_without_figures() -> None:
    stored = example_run()
    text = words(parsed(report_page(StoredRun(replace(stored.run, figures=(), beside={}, client={})))))
    assert "Nothing could be measured" in text
    assert "All figures There are none" in text


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
    stored = example_run("made-up-1", word)
    subject = replace(
        stored.run.subject, engine=word, version=word, launch_key=word, image_digest=word, url=word,
        launch={"flags": {word: word}, "env": {word: [word]}, "start": [word], "image": word},
        host={"title": word, "gpus": [word]}, plan={**stored.run.subject.plan, "why": word},
    )  # fmt: skip
    found = tuple(
        replace(figures, notes=(word,), wrong={word: 2}, cold={word: 1.0}) for figures in stored.run.figures
    )
    run = replace(stored.run, id=word, subject=subject, figures=found, notes=(word,), began=word)
    samples = tuple(replace(sample, why=word) for sample in stored.samples)
    return StoredRun(run, samples, word, word)


def test_foreign_text_never_becomes_markup() -> None:
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


def test_sources_of_published_figures_are_linked() -> None:
    stored = example_run()
    name = "nvidia/Gemma-4-26B-A4B-NVFP4"
    subject = replace(stored.run.subject, model=name, launch={**stored.run.subject.launch, "model": name})
    run = replace(stored.run, subject=subject)
    rows = published_rows(run)
    root = parsed(report_page(replace(stored, run=run), rows))
    links = {link.attrib["href"] for link in root.iter(f"{XHTML}a")}
    assert rows and links and all(link.startswith("https://") for link in links)
    assert "reported by others" in words(root)


NUMBERS = st.one_of(
    st.floats(), st.sampled_from([0.0, -1.0, nan, inf, 1e-320, 1e300, 50.0]), st.integers(-(10**30), 10**30)
)
COUNTS = st.one_of(st.integers(-2, 20), st.sampled_from([0, 10**9, 10**40]))


@st.composite
def wild_runs(draw: st.DrawFn) -> StoredRun:
    stored = example_run()

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
        "decode_tps": draw(band), "ttft_ms": draw(band), "prefill_tps": draw(band),
        "prompt_tokens": draw(COUNTS),
        "at_depth": [[draw(COUNTS), draw(band)] for _ in range(2)], "bound_tps": draw(NUMBERS),
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
        stored.run.figures[0], decode_tokens_per_s=figure() or stored.run.figures[0].decode_tokens_per_s
    )
    found = (one(), one(), usual)
    run = replace(
        stored.run, figures=found, points=tuple(figures.point for figures in found), beside=beside,
        subject=replace(stored.run.subject, plan=plan), client=some("p99_lag_ms", "cpu_share"),
    )  # fmt: skip
    samples = tuple(
        replace(sample, point=2, gaps_s=tuple(float(draw(st.floats())) for _ in range(3)))
        for sample in stored.samples[:4]
    )
    return StoredRun(run, samples, "reported", "a file")


@settings(max_examples=40, phases=(Phase.explicit, Phase.generate))
@given(wild_runs())
def test_any_numbers_give_a_well_formed_page(stored: StoredRun) -> None:
    page = report_page(stored, [published(44.0)], stored.run)
    root = parsed(page)
    places = [
        value
        for element in root.iter()
        if element.tag.startswith(SVG)
        for name in ("x", "y", "width", "height", "d", "points", "cx", "cy")
        for value in re.findall(r"[a-z]{2,}", element.attrib.get(name, ""))
    ]
    assert not places, "nan or inf in a drawing"
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.attrib["width"]) >= 0 and float(rect.attrib["height"]) >= 0
    assert "Not measured here: reported" in words(root)


# --- size ---


def test_thousands_of_samples_and_points_make_a_page_of_bounded_size() -> None:
    stored = example_run()
    many = [replace(POINTS[0], prompt_tokens=1000 + n) for n in range(300)]
    found = tuple(replace(stored.run.figures[0], point=point, notes=("n" * 5000,)) for point in many)
    times = [float(n) for n in range(20_000)]
    run = replace(
        stored.run, points=tuple(many), figures=found, notes=("long " * 2000,) * 1000,
        beside={**stored.run.beside, "over_time": {"at_s": times, "power_w": times}},
    )  # fmt: skip
    samples = tuple(replace(stored.samples[1], gaps_s=(0.02,) * 500, repetition=n) for n in range(300))
    page = report_page(
        StoredRun(run, samples), [published(40.0 + n / 100, 1024 + n) for n in range(150)], run
    )
    parsed(page)
    assert len(page) < 700_000
    assert "more rows are left out" in page


# --- words ---


def verdict_text(run: BenchRun) -> str:
    return "\n".join(f"{line.kind}: {line.text}" for line in verdict(run))


def test_the_verdict_in_plain_words() -> None:
    text = verdict_text(example_run().run)
    assert "A single user gets 54.5 ±1.2% tok/s of code and 50.5 ±1.2% tok/s of prose" in text
    assert (
        "With a prompt of 32,768 tokens a user gets 37.0 ±1.2% tok/s, and waits 14 s for the first token"
        in text
    )
    assert "it can serve with prose: 4 at 20 tok/s or more. Measured: 1, 2, 4, 8 and 16." in text
    assert "good: All 8 figures that the plan covers are inside its band." in text
    assert "good: Decode of one user reaches 0.67 to 0.72 of the memory bandwidth bound" in text
    assert "warning: 3 requests failed and are in no figure; 280 succeeded." in text


def test_without_a_target_it_says_how_many_keep_each_pace() -> None:
    run = example_run().run
    text = verdict_text(replace(run, settings=replace(run.settings, target={})))
    assert "1 at 50 tok/s or more; 4 at 20 tok/s or more; all 16 at 10 tok/s or more" in text


def test_slower_than_planned_is_a_warning() -> None:
    run = example_run().run
    plan = {
        **run.subject.plan,
        "decode_tokens_per_s": {"low": 70.0, "expected": 75.0, "high": 80.0},
        "at_depth": [],
    }
    text = verdict_text(replace(run, subject=replace(run.subject, plan=plan)))
    assert (
        "warning: 2 of 6 figures are slower than planned: decode 50.5 ±1.2%, planned 75.0 (70.0 to 80.0)"
        in text
    )


@pytest.mark.parametrize("share", [0.3, 1.2])
def test_a_share_outside_the_corridor_is_a_warning(share: float) -> None:
    run = example_run().run
    odd = replace(run.figures[0], bandwidth_share=share)
    assert "warning: Decode of one user reaches" in verdict_text(
        replace(run, figures=(odd, *run.figures[1:]))
    )


def test_without_a_gpu_a_small_share_is_no_fault() -> None:
    run = example_run().run
    odd = replace(run.figures[0], bandwidth_share=0.3)
    here = replace(run, figures=(odd,), subject=replace(run.subject, host={"title": "a CPU", "gpus": []}))
    assert "fact: Decode of one user reaches 0.30" in verdict_text(here)
    assert "0.30, not unusual without a GPU" in words(parsed(report_page(StoredRun(here))))
    high = replace(here, figures=(replace(odd, bandwidth_share=1.2),))
    assert "warning: Decode of one user reaches 1.20" in verdict_text(high)


def test_a_run_cut_off_and_a_late_client_are_warnings() -> None:
    run = example_run().run
    few = replace(run.figures[0], repetitions=1)
    text = verdict_text(replace(run, is_whole=False, client={"p99_lag_ms": 3.0}, figures=(few,)))
    assert "run was stopped early" in text
    assert "client was up to 3.0 ms late under load (p99); the machine itself was not" in text
    busy = verdict_text(replace(run, client={"p99_lag_ms": 3.0, "machine_p99_lag_ms": 2.5}))
    assert "this machine was busy" in busy and "2.5 ms late" in busy
    assert "1 of 1 loads have fewer than 3 repetitions" in text


# --- marks ---


def chart(root: ElementTree.Element, title: str) -> ElementTree.Element:
    return next(svg for svg in root.iter(f"{SVG}svg") if svg.findtext(f"{SVG}title") == title)


def test_measured_is_filled_planned_a_band_and_reported_hollow() -> None:
    root = parsed(report_page(example_run(), [published(44.0), published(39.0, 8192)]))
    found = chart(root, "Decode speed against depth")
    circles = list(found.iter(f"{SVG}circle"))
    hollow = [circle for circle in circles if circle.attrib["fill"] == "none"]
    assert len(hollow) == 2 + 1  # and the one in the legend
    assert len(circles) - len(hollow) == 3 + 1
    assert len(list(found.iter(f"{SVG}polygon"))) == 1
    none = chart(parsed(report_page(example_run())), "Decode speed against depth")
    assert not [circle for circle in none.iter(f"{SVG}circle") if circle.attrib["fill"] == "none"]


def test_a_point_is_drawn_at_its_value() -> None:
    """Of two points, the one twice as fast is twice as far from the floor."""
    stored = of_texts("prose")
    slow, fast = (
        replace(stored.run.figures[0], point=Point("depth", prompt_tokens=tokens)) for tokens in (1000, 3000)
    )
    slow, fast = (
        replace(figures, decode_tokens_per_s=MeasuredFigure(v, v, v, 3))
        for figures, v in ((slow, 20.0), (fast, 40.0))
    )
    run = replace(stored.run, points=(slow.point, fast.point), figures=(slow, fast))
    found = chart(parsed(report_page(StoredRun(run))), "Decode speed against depth")
    heights = [294 - float(circle.attrib["cy"]) for circle in found.iter(f"{SVG}circle")][:2]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)


def test_text_in_drawings_does_not_overlap() -> None:
    root = parsed(report_page(example_run(), [published(44.0), published(39.0, 8192)]))
    for svg in root.iter(f"{SVG}svg"):
        boxes = [_box(text) for text in svg.iter(f"{SVG}text") if "transform" not in text.attrib]
        for index, one in enumerate(boxes):
            assert one[0] >= 0 and one[2] <= 722, (svg.findtext(f"{SVG}title"), one)
            for other in boxes[index + 1 :]:
                apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
                assert apart, (svg.findtext(f"{SVG}title"), one, other)


def _box(text: ElementTree.Element) -> tuple[float, float, float, float, str]:
    shown = text.text or ""
    wide, x, y = 6.0 * len(shown), float(text.attrib["x"]), float(text.attrib["y"])
    left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[text.attrib["text-anchor"]]
    return left, y - 9, left + wide, y + 2, shown


# --- the command ---


def test_the_page_compares_with_the_last_run_of_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path))
    now = example_run("run-now")
    old = replace(example_run("run-old").run, began="2026-11-13T10:00:00+00:00")
    other = replace(example_run("run-other", "another").run, began="2026-11-14T10:00:00+00:00")
    with open_history(Home(tmp_path)) as history:
        for run in (old, other, now.run):
            history.begin(run)
        found = earlier_run(history, now.run)
        assert found is not None and found.id == "run-old"
        assert earlier_run(history, old) is None
    write_report(tmp_path / "page.html", now)
    text = words(parsed((tmp_path / "page.html").read_text("utf-8")))
    assert "Compared with run run-old" in text and "no difference seen" in text


def stored(day: int, model: str = "m", origin: str = "measured here", began: str | None = None) -> StoredRun:
    run = example_run().run
    when = began if began is not None else f"2026-11-{day:02}T12:00:00+00:00"
    subject = replace(run.subject, model=model, engine="vllm", version=f"0.{day}")
    return StoredRun(replace(run, id=f"run-{day}", began=when, subject=subject), origin=origin)


def test_runs_of_one_load_are_a_line() -> None:
    page = history_page([stored(3), stored(1), stored(2, origin="reported"), stored(4, model="other")])
    root = ElementTree.fromstring(page.partition("\n")[2])
    text = "".join(root.itertext())
    assert page.count("<svg") == 2 and "days since 2026-11-01 12:00" in text
    assert "0.1, run run-1" in text and "0.3, run run-3" in text
    assert "reported: vllm" in text and text.index("run-1") < text.index("run-3")


def test_runs_without_a_date_or_a_speed_are_left_out() -> None:
    empty = replace(stored(5, "none"), run=replace(stored(5, "none").run, figures=()))
    page = history_page([stored(1), stored(2, began=""), stored(3, began="soon"), empty])
    assert "run-1" in page and "run-2" not in page and "run-3" not in page
    assert "No run of it has a date" in page


def test_a_hostile_name_stays_text() -> None:
    page = history_page([stored(1, "<script>alert(1)</script>")])
    assert "<script>" not in page
    ElementTree.fromstring(page.partition("\n")[2])


def test_many_loads() -> None:
    run = stored(1).run
    points = [replace(run.figures[0].point, users=users) for users in range(1, 30)]
    figures = tuple(replace(run.figures[0], point=point) for point in points)
    page = history_page([StoredRun(replace(run, figures=figures))])
    assert "more loads are only in the table" in page and page.count("29 users") == 1
