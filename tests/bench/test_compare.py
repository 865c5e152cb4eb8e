"""Made-up runs whose truth is known: a difference that is there is seen, one that is not is not."""

from __future__ import annotations

import pytest

from firesteel.bench.compare import runs as room
from firesteel.bench.compare.against import against_plan, against_published
from firesteel.bench.compare.runs import compare, compare_figures
from firesteel.bench.compare.stats import RunVariation, compare_values, mean_interval
from firesteel.bench.measurements import MeasuredFigure, Point, PointFigures, RequestSettings, Subject
from firesteel.planner.speed import published
from firesteel.values import replace
from tests.bench.stored_runs import POINT, SUBJECT, rates, stored_run


def decode(found: room.Comparison) -> room.ComparedFigure:
    return next(row for row in found.rows if row.measure == "decode")


def test_a_real_difference_and_none() -> None:
    before, after = stored_run("a", rates(50, seed=1)), stored_run("b", rates(55, seed=2))
    row = decode(compare(before, after))
    assert row.difference.verdict == "faster"
    assert row.difference.low < 1.1 < row.difference.high
    assert (row.first.n, row.unit) == (8, "tok/s")
    again = decode(compare(before, stored_run("c", rates(50, seed=3))))
    assert again.difference.verdict == "no difference seen"


def test_ttft_is_a_time() -> None:
    found = compare(stored_run("a", rates(50)), stored_run("b", rates(50, seed=1)))
    row = next(row for row in found.rows if row.measure == "TTFT")
    assert row.first.value == pytest.approx(500) and row.difference.verdict == "no difference seen"


def test_the_number_of_judged_figures_is_noted() -> None:
    found = compare(stored_run("a", rates(50)), stored_run("b", rates(50, seed=1)))
    judged = [row for row in found.rows if row.difference.verdict != "too few"]
    assert len(judged) > 1
    assert any(note.startswith(f"{len(judged)} figures are judged") for note in found.notes)


def test_two_values_are_too_few() -> None:
    assert (
        decode(compare(stored_run("a", [50, 51]), stored_run("b", [90, 91]))).difference.verdict == "too few"
    )


def _settings(name: str, value: object) -> RequestSettings:
    return RequestSettings(**{name: value})  # type: ignore[arg-type]  # a table of fields


@pytest.mark.parametrize(
    ("setting", "one", "other"),
    [
        ("thinking", True, False),
        ("thinking", None, True),
        ("temperature", 0.0, 0.6),
        ("max_num_seqs", 4, 256),
        ("ignores_eos", True, False),
    ],
)
def test_different_settings_are_not_compared(setting: str, one: object, other: object) -> None:
    a, b = (stored_run("a", rates(50), settings=_settings(setting, value)) for value in (one, other))
    found = compare(a, b)
    assert [name for name, _ in found.why_not] == [setting] and not found.rows
    assert compare(a, b, despite=[setting]).rows


def test_unknown_settings_of_a_file_are_noted() -> None:
    ours = stored_run("a", rates(50), settings=RequestSettings(max_num_seqs=4, thinking=False))
    theirs = replace(
        stored_run("b", rates(50), settings=RequestSettings(temperature=None), has_samples=False),
        origin="reported",
        source="x.json",
    )
    found = compare(ours, theirs)
    assert found.rows and not found.why_not
    assert any("`max_num_seqs` is known for only one" in note for note in found.notes)
    assert any("`temperature` is known for only one" in note for note in found.notes)
    assert any("reported, from x.json" in note for note in found.notes)


def test_points_of_only_one_run_are_listed() -> None:
    deep = replace(POINT, prompt_tokens=8000)
    found = compare(stored_run("a", rates(50)), stored_run("b", rates(50), point=deep))
    assert (found.rows, found.only_first, found.only_second) == ((), (POINT,), (deep,))


def test_the_shape_name_does_not_matter() -> None:
    assert compare(
        stored_run("a", rates(50)), stored_run("b", rates(50), point=replace(POINT, shape="sweep"))
    ).rows


def test_launch_differences_are_listed() -> None:
    other = replace(SUBJECT, version="0.30.0", launch={"flags": {"kv-cache-dtype": "fp8", "x": True}})
    found = compare(stored_run("a", rates(50)), stored_run("b", rates(50), subject=other))
    assert found.apart == ("version: 0.28.0, 0.30.0", "kv-cache-dtype: not set, fp8", "x: not set, True")


def test_interleaving_cancels_drift() -> None:
    """Both lose a third as they warm up, and are four per cent apart all the time."""
    drift = [60.0, 55.0, 50.0, 46.0, 43.0, 40.0]
    noise = (1.04, 1.038, 1.042, 1.041, 1.039, 1.04)
    first = stored_run("a", drift)
    second = stored_run("b", [rate * factor for rate, factor in zip(drift, noise, strict=True)])
    assert decode(compare(first, second)).difference.verdict == "no difference seen"
    found = compare(first, second, is_interleaved=True)
    assert decode(found).difference.verdict == "faster"
    assert not any("at two times" in note for note in found.notes)


def test_cold_and_wrong_repetitions_do_not_count() -> None:
    first, second = stored_run("a", rates(50)), stored_run("b", rates(50))
    spoilt = (
        replace(second.samples[0], last_s=100.0, is_cold=True),
        replace(second.samples[1], last_s=100.0, wrong="stalled"),
        *second.samples[2:],
    )
    row = decode(compare(first, replace(second, samples=spoilt)))
    assert row.second.n == 6 and row.second.value == pytest.approx(50, rel=0.02)


def test_streams_side_by_side_are_one_observation() -> None:
    crowd = replace(POINT, users=4)
    made = stored_run("a", rates(50, n=12), point=crowd)
    samples = tuple(replace(each, repetition=at // 4) for at, each in enumerate(made.samples))
    row = decode(compare(replace(made, samples=samples), replace(made, samples=samples)))
    assert row.first.n == 3


def test_a_fuller_cache_is_not_faster_prefill() -> None:
    """Seen for real: the second server had the prompts in its cache, and its TTFT was a fiftieth."""
    first, second = stored_run("a", rates(50)), stored_run("b", rates(50))
    cached = replace(second.run.figures[0], cached_share=0.9)
    new = replace(first.run.figures[0], cached_share=0.0)
    first = replace(first, run=replace(first.run, figures=(new,)))
    second = replace(second, run=replace(second.run, figures=(cached,)))
    found = compare(first, second)
    assert [row.measure for row in found.rows] == ["decode"]
    assert any("in its cache" in note for note in found.notes)


def test_without_samples_figures_are_compared() -> None:
    """The interval of a mean and its n give back what Welch's test needs."""
    one, other = rates(50, n=9, seed=4), rates(51, n=7, seed=5)
    a, b = mean_interval(one), mean_interval(other)
    assert a and b
    found, whole = compare_figures(b, a), compare_values(other, one)
    assert found.verdict == whole.verdict
    assert found.ratio == pytest.approx(whole.ratio, rel=1e-3)
    assert found.p == pytest.approx(whole.p, rel=0.05)
    row = decode(compare(stored_run("a", one, has_samples=False), stored_run("b", other, has_samples=False)))
    assert row.difference == compare_figures(b, a, variation=RunVariation())
    assert row.difference.low < found.low and row.difference.high > found.high


@pytest.mark.parametrize(
    ("theirs", "equal"),
    [("abcdefgh", 8), ("abcdeXYh", 6), ("XXXXXXXX", 0)],
)
def test_answers_at_temperature_0(theirs: str, equal: int) -> None:
    first, second = (
        stored_run(name, rates(50), answers=said) for name, said in (("a", "abcdefgh"), ("b", theirs))
    )
    found = compare(first, second, is_interleaved=True).answers
    assert found is not None and (found.compared, found.equal) == (8, equal)
    assert compare(first, second).answers is None, "other runs have other prompts"


def test_answers_of_streams_have_no_order() -> None:
    first, second = (
        stored_run("a", rates(50, n=3), answers="xyz"),
        stored_run("b", rates(50, n=3), answers="zxQ"),
    )
    sides = (
        replace(each, samples=tuple(replace(s, repetition=0) for s in each.samples))
        for each in (first, second)
    )
    found = compare(*sides, is_interleaved=True).answers
    assert found is not None and (found.compared, found.equal, found.changed) == (3, 2, 1)


@pytest.mark.parametrize("settings", [RequestSettings(temperature=0.7), RequestSettings(seed=9)])
def test_answers_that_may_differ_are_not_compared(settings: RequestSettings) -> None:
    second = stored_run("b", rates(50), settings=settings)
    assert (
        compare(stored_run("a", rates(50)), second, despite=["temperature"], is_interleaved=True).answers
        is None
    )


PLAN = {
    "decode_tokens_per_s": {"low": 45.0, "expected": 50.0, "high": 55.0},
    "prefill_tokens_per_s": {"low": 900.0, "expected": 1000.0, "high": 1100.0},
    "ttft_ms": {"low": 900.0, "expected": 1000.0, "high": 1100.0},
    "prompt_tokens": 1000,
    "batch": {"users": 4, "each_tokens_per_s": {"low": 20.0, "expected": 25.0, "high": 30.0}},
}


@pytest.mark.parametrize(
    ("rate", "verdict", "off"),
    [(52, "inside the band", 1.04), (60, "faster than planned", 1.2), (30, "slower than planned", 0.6)],
)
def test_against_the_plan(rate: float, verdict: str, off: float) -> None:
    run = stored_run("a", [rate] * 3, subject=replace(SUBJECT, plan=PLAN)).run
    held = against_plan(run)
    assert [(each.measure, each.verdict) for each in held] == [("decode", verdict)]
    assert held[0].off == pytest.approx(off)


def test_only_what_the_plan_covers_is_compared() -> None:
    subject = replace(SUBJECT, plan=PLAN)
    for point in (
        replace(POINT, prompt_tokens=64_000),
        replace(POINT, users=8),
        replace(POINT, rate_per_s=2.0),
    ):
        assert not against_plan(stored_run("a", [50.0] * 3, point=point, subject=subject).run)
    deep = replace(SUBJECT, plan={**PLAN, "at_depth": [[1024, {}], [65536, PLAN["prefill_tokens_per_s"]]]})
    held = against_plan(
        stored_run("a", [50.0] * 3, point=replace(POINT, prompt_tokens=64_000), subject=deep).run
    )
    assert [each.planned.expected for each in held] == [1000.0]
    crowd = stored_run("a", [33.0] * 3, point=replace(POINT, users=4), subject=subject).run
    assert [each.verdict for each in against_plan(crowd)] == ["faster than planned"]
    drafts = replace(SUBJECT, plan={**PLAN, "drafts": True, "drafted": {"code": PLAN["decode_tokens_per_s"]}})
    assert not against_plan(stored_run("a", [80.0] * 3, subject=drafts).run)
    code = stored_run("a", [80.0] * 3, point=replace(POINT, text="code"), subject=drafts).run
    assert [each.verdict for each in against_plan(code)] == ["faster than planned"]
    timed = PointFigures(
        POINT,
        3,
        prefill_tokens_per_s=MeasuredFigure(800, 790, 810, 3),
        ttft_mean_ms=MeasuredFigure(1200, 1190, 1210, 3),
    )
    run = replace(stored_run("a", [50.0] * 3, subject=subject).run, figures=(timed,))
    assert [(each.measure, each.verdict) for each in against_plan(run)] == [
        ("prefill", "slower than planned"),
        ("TTFT", "slower than planned"),
    ]


@pytest.mark.parametrize(
    "plan", [{}, {"decode_tokens_per_s": "fast"}, {"decode_tokens_per_s": {"low": 1}}, {"batch": 3}]
)
def test_an_invalid_plan_is_ignored(plan: dict[str, object]) -> None:
    assert against_plan(stored_run("a", [50.0] * 3, subject=replace(SUBJECT, plan=plan)).run) == ()


def test_against_published_figures() -> None:
    rows = published.runs_of("ggml-org/gpt-oss-20b-GGUF", "llamacpp")
    first = next(row for row in rows if row.depth == 512)
    assert first.decode_tps
    subject = Subject("", "gpt-oss-20b", "llamacpp", launch={"model": "ggml-org/gpt-oss-20b-GGUF"})
    point = Point("single", prompt_tokens=512, answer_tokens=32)
    urls = {name: origin.url for name, origin in published.run_sources().items()}

    def verdicts(rate: float) -> set[str]:
        run = stored_run("a", [rate * each for each in (0.99, 1.0, 1.01)], point=point, subject=subject).run
        found = [each for each in against_published(run, rows, urls, (0.9, 1.1)) if each.published == first]
        assert all(each.source.startswith("https://") for each in found)
        return {each.verdict for each in found}

    assert verdicts(first.decode_tps) == {"within the usual difference between setups"}
    assert verdicts(1.5 * first.decode_tps) == {"faster"}
    assert verdicts(0.5 * first.decode_tps) == {"slower"}


@pytest.mark.parametrize(
    ("prompt", "answer", "is_near"),
    [(1000, 100, True), (1016, 97, True), (1049, 105, True), (1100, 100, False), (1000, 90, False)],
)
def test_loads_of_another_tool_may_differ_slightly(prompt: int, answer: int, is_near: bool) -> None:
    """Its prompts have what the chat template adds, and its answers end where they end."""
    point = replace(POINT, prompt_tokens=prompt, answer_tokens=answer)
    made = stored_run("b", rates(50), point=point, has_samples=False)
    theirs = replace(made, origin="reported", source="x.json")
    found = compare(stored_run("a", rates(50)), theirs)
    assert bool(found.rows) == is_near and bool(found.only_second) != is_near
    noted = [note for note in found.notes if "are compared with" in note]
    assert bool(noted) == (is_near and point != POINT)
    if point != POINT:
        assert not compare(stored_run("a", rates(50)), made).rows, "two of ours have exact lengths"


def test_an_exact_load_is_preferred() -> None:
    near = replace(POINT, prompt_tokens=1010)
    ours, theirs = stored_run("a", rates(50)), stored_run("b", rates(50), has_samples=False)
    figures = (replace(theirs.run.figures[0], point=near), *theirs.run.figures)
    both = replace(theirs.run, points=(near, POINT), figures=figures)
    found = compare(ours, replace(theirs, run=both, origin="reported"))
    assert found.only_second == (near,) and not any("are compared with" in note for note in found.notes)
