"""States that a real gateway reaches seldom, as a server plays them to the real page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from queue import Queue
from typing import Any

import msgspec
import pytest
from msgspec import to_builtins
from playwright.sync_api import Browser, Locator, Page, expect

from firesteel.gateway.page import read_files
from firesteel.units import GIB
from tests.gateway.page.conftest import IS_FIREFOX, WAIT_MS, OpenPage
from tests.gateway.page.scripted_gateway import model, played, state

expect.set_options(timeout=WAIT_MS)


def ready(name: str, **more: Any) -> Any:
    return model(name, phase="ready", measured_bytes=2 * GIB, needed_bytes=2 * GIB, **more)


def cell(row: Locator, title: str) -> Locator:
    """The cell of a row under the column of this title."""
    return row.locator(f'td[data-title="{title}"]')


def test_the_files_are_small() -> None:
    assert sum(map(len, read_files().values())) < 150_000


def test_an_empty_gateway(open_page: OpenPage) -> None:
    with played(state()) as url:
        page = open_page(url)
        expect(page.get_by_text("No model is in the service file yet")).to_be_visible()
        expect(page.get_by_text("No requests are waiting.")).to_be_visible()


@pytest.mark.parametrize("width", [360, 1440])
def test_forty_models(open_page: OpenPage, width: int) -> None:
    models = [ready(f"a-model-with-a-long-name-{number:02}-fp8-mtp") for number in range(40)]
    with played(state(*models)) as url:
        page = open_page(url, width=width)
        expect(page.locator("table.models tbody tr")).to_have_count(40)
        expect(page.locator(".legend li")).to_have_count(42)  # other programs and free
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # The pieces of the bar never take more than the bar.
        assert page.evaluate(
            "(() => { const b = document.querySelector('.bar'); return b.scrollWidth <= b.clientWidth; })()"
        )


def test_an_engine_that_died(open_page: OpenPage) -> None:
    dead = model(
        "coder", why="it crashed: out of memory", health={"ok": False, "text": "its last load failed"}
    )
    with played(state(dead)) as url:
        page = open_page(url)
        expect(page.locator(".phase.failed")).to_be_visible()
        expect(page.locator(".health.bad")).to_contain_text("its last load failed")


def test_two_hundred_waiting(open_page: OpenPage) -> None:
    queue = [
        {"model": "coder", "key": f"key{number}", "since": time.time() - number, "doing": "loading coder"}
        for number in range(50)
    ]
    with played(state(model("coder", waiting=200), waiting=200, queue=queue)) as url:
        page = open_page(url)
        expect(page.locator("table.models").get_by_text("200 waiting")).to_be_visible()
        expect(page.get_by_text("and 150 more requests")).to_be_visible()
        expect(page.get_by_role("region", name="Waiting requests").locator("tbody tr")).to_have_count(50)


def test_a_load_that_waits_says_for_what_and_can_be_cancelled(open_page: OpenPage) -> None:
    waits = model("big", requested=True, evicts=["coder"])
    with played(state(ready("coder", busy=2), waits)) as url:
        page = open_page(url)
        expect(page.get_by_role("button", name="Cancel the load of big")).to_be_enabled()
        expect(page.get_by_text("waits to load")).to_be_visible()
        expect(
            page.get_by_text("waits until coder may be unloaded: in use, or loaded a moment ago")
        ).to_be_visible()


def test_hostile_texts_stay_texts(open_page: OpenPage) -> None:
    bad = "<img src=x onerror=alert(1)>"
    hostile = model(bad, aliases=[bad], why=bad, doing=bad, note=bad, evicts=[bad], engine=bad)
    curves = {
        "start": 0,
        "step_s": 5,
        "series": [{"name": "queue", "model": bad, "values": [1, 2], "band": None}],
    }
    with played(state(hostile), answers={"/api/curves": curves}) as url:
        page = open_page(url)
        expect(page.get_by_text(bad).first).to_be_visible()
        page.goto(f"{url}/#curves")
        expect(page.locator("td.name").filter(has_text=bad).first).to_be_visible()
        assert page.locator("main img").count() == 0


def test_the_policy_forbids_what_the_page_does_not_need(browser: Browser) -> None:
    html = "try { document.body.innerHTML = '<p>x</p>'; 'done' } catch (error) { error.name }"
    with played(state()) as url, browser.new_page() as page:
        page.goto(url)
        expect(page.locator("h1")).to_be_visible()
        assert page.evaluate(html) == "TypeError"
        assert page.evaluate("fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'refused')") == "refused"


def test_a_request_that_waited_for_a_load_is_a_waterfall(open_page: OpenPage) -> None:
    row = {
        "id": 7, "at": time.time() - 86400, "key": "laptop", "model": "coder", "route": "chat", "status": 200,
        "how": "whole", "why": "", "is_stream": True, "waited_s": 90.0, "first_s": 92.0, "total_s": 100.0,
        "bytes_in": 10, "bytes_out": 20, "prompt_tokens": 1000, "completion_tokens": 81,
        "cached_tokens": 400, "replica": 0, "loaded_s": 60.0,
    }  # fmt: skip
    with played(state(requests=1), answers={"/api/requests": {"requests": [row]}}) as url:
        page = open_page(f"{url}/#requests")
        page.locator("table.requests tbody button").click()
        steps = page.locator(".steps li")
        expect(steps).to_have_count(4)
        for at, (name, seconds) in enumerate(
            [
                ("Queued", "30.000"),
                ("Model loaded", "60.000"),
                ("Prefill, 1,000", "2.000"),
                ("Answer, 81", "8.000"),
            ]
        ):
            expect(steps.nth(at)).to_contain_text(name)
            expect(steps.nth(at)).to_contain_text(f"{seconds} s")
        expect(page.locator("table.requests tbody tr")).to_contain_text("10.0")  # tokens a second


def test_a_request_that_was_not_streamed_is_not_all_prefill(open_page: OpenPage) -> None:
    row = {
        "id": 7, "at": time.time(), "key": "", "model": "coder", "route": "chat", "status": 200,
        "how": "whole", "why": "", "is_stream": False, "waited_s": 1.0, "first_s": 9.9, "total_s": 10.0,
        "bytes_in": 10, "bytes_out": 20, "prompt_tokens": 1000, "completion_tokens": 81,
        "cached_tokens": None, "replica": 0, "loaded_s": 0.0,
    }  # fmt: skip
    with played(state(requests=1), answers={"/api/requests": {"requests": [row]}}) as url:
        page = open_page(f"{url}/#requests")
        page.locator("table.requests tbody button").click()
        steps = page.locator(".steps li")
        expect(steps).to_have_count(2)
        expect(steps.nth(1)).to_contain_text("Prefill and answer in one piece, 1,000 tokens in, 81 out")
        expect(steps.nth(1)).to_contain_text("9.000 s")
        shown = page.locator("table.requests tbody tr")
        expect(cell(shown, "First token")).to_have_text("\u2013")  # it is not known when that came
        expect(cell(shown, "Tokens/s")).to_have_text("9.0")


def test_a_broken_service_file_is_shown_and_notes_have_their_model(open_page: OpenPage) -> None:
    def notes() -> Iterator[Mapping[str, Any]]:
        yield {"event": "note", "model": "coder", "words": "above its plan", "at": time.time()}
        yield {"event": "gateway", **changed}

    first = state(model("coder"), problem="x.yaml:3: there is no key `mdoels`")
    changed = {name: value for name, value in msgspec.to_builtins(state()).items() if name != "models"}
    with played(first) as url:
        banner = open_page(url).locator("#problem")
        expect(banner).to_contain_text("its last good version stays in use. x.yaml:3: there is no key")
    with played(first, notes) as url:  # and it was repaired
        page = open_page(url)
        expect(page.get_by_text("coder: above its plan")).to_be_visible()
        expect(page.locator("#problem")).to_be_hidden()


def test_two_runs_are_compared(open_page: OpenPage) -> None:
    figure = {"value": 50.0, "low": 49.0, "high": 51.0, "n": 5}
    point: dict[str, Any] = {
        "shape": "single",
        "text": "prose",
        "users": 1,
        "prompt_tokens": 512,
        "answer_tokens": 128,
    }
    point |= {"shared_tokens": 0, "turns": 1, "rate_per_s": None}
    run: dict[str, Any] = {
        "began": "2026-11-16T01:00:00",
        "model": "coder",
        "engine": "vllm",
        "version": "0.28.0",
    }
    run |= {"origin": "measured here", "is_whole": True, "points": 1, "samples": 5}
    run |= {"decode_tokens_per_s": 52.3}
    difference = {"ratio": 1.1, "low": 1.05, "high": 1.15, "p": 0.001, "verdict": "faster", "n": 5}
    row = {"point": point, "measure": "decode", "unit": "tok/s", "first": figure, "second": figure}
    answers = {
        "/api/runs": {"document": "firesteel.history/1", "runs": [run | {"id": "new"}, run | {"id": "old"}]},
        "/api/compare": {
            "document": "firesteel.compare/1", "is_comparable": True, "notes": [],
            "rows": [row | {"difference": difference}],
        },
        "/api/runs/new": {
            "document": "firesteel.bench/1", "notes": [],
            "figures": [{"point": point, "decode_tokens_per_s": figure, "ttft_ms": {"p50": 60.0},
                         "inter_token_ms": {"p50": 20.0}, "wrong": {}}],
        },
        "/api/runs/new/plan": {"document": "firesteel.error/1", "kind": "usage", "message": "it has no plan"},
    }  # fmt: skip
    with played(state(), answers=answers) as url:
        page = open_page(f"{url}/#runs")
        expect(page.locator("table tbody tr").first).to_contain_text("52.3")
        page.get_by_label("Compare old").check()
        page.get_by_label("Compare new").check()
        page.get_by_role("button", name="Compare the two marked").click()
        expect(page.get_by_role("heading", name="old and new")).to_be_visible()  # the older one is the first
        expect(page.get_by_text("1.050 to 1.150")).to_be_visible()
        page.get_by_role("button", name="Show new").click()
        expect(page.get_by_text("49.0 to 51.0")).to_be_visible()
        expect(page.get_by_text("it has no plan")).to_be_visible()


def test_curves_are_lines_bands_and_figures(open_page: OpenPage) -> None:
    band = {"low": 20.0, "expected": 30.0, "high": 40.0}
    series = [
        {"name": "tokens_per_s", "model": "coder", "values": [None, 10.0, 25.5, None, 12.0], "band": band},
        {"name": "power_w", "model": None, "values": [60.0] * 5, "band": None},
    ]
    curves = {"start": int(time.time()) - 25, "step_s": 5, "series": series}
    with played(state(model("coder")), answers={"/api/curves": curves}) as url:
        page = open_page(f"{url}/#curves")
        figures = page.get_by_role("region", name="Tokens a second: figures").locator("tbody tr")
        expect(figures).to_have_text(re.compile(r"coder\s*12\.0\s*10\.0\s*25\.5\s*20\.0 to 40\.0"))
        assert page.locator("svg.chart rect.band").count() == 1
        path = page.locator("svg.chart path").first.get_attribute("d") or ""
        assert path.count("M") == 2, "a gap where nothing is known"
        expect(page.get_by_text("No data yet in this range.")).to_have_count(9)
        expect(page.get_by_text("No data yet in this range.").locator("visible=true")).to_have_count(7)


def test_axes_have_no_tick_twice_and_single_points_are_seen(open_page: OpenPage) -> None:
    few = {"requests": 3, "least": 0.2, "most": 26.8}
    series: list[dict[str, Any]] = [
        {
            "name": "ttft_p50_s",
            "model": "coder",
            "values": [None, 0.31, None, None],
            "few": [None, few] + [None] * 2,
        },
        {"name": "gap_p50_s", "model": "coder", "values": [0.004, 0.0052, None, None]},
        {"name": "queue", "model": "coder", "values": [0, 0, 1, 1]},
        {"name": "kv_used", "model": "coder", "values": [0.004] * 4},
        {"name": "memory_bytes", "model": "coder", "values": [340 * 2**20] * 4},
        {"name": "memory_bytes", "model": None, "values": [2 * GIB] * 4},
    ]
    curves = {
        "start": int(time.time()) - 20,
        "step_s": 5,
        "series": [{"band": None, **row} for row in series],
    }
    with played(state(model("coder")), answers={"/api/curves": curves}) as url:
        page = open_page(f"{url}/#curves")
        expect(page.locator("svg.chart circle")).to_have_count(1)
        for chart in page.locator("section.panel:has(svg.chart)").all():
            ticks = chart.locator("svg.chart text").all_text_contents()
            assert len(ticks) == len(set(ticks)), ticks
        first = page.get_by_role("region", name="Time to first token, p50: figures").locator("tbody tr")
        expect(first).to_contain_text("0.20 to 26.80 s (3 requests)")
        memory = page.get_by_role("region", name="Memory: figures").locator("tbody tr")
        expect(memory).to_contain_text(["0.3 GiB", "2.0 GiB"])


def test_nothing_jumps_when_data_comes(open_page: OpenPage) -> None:
    """Figures and texts that change move neither the rows below them nor the columns beside them."""
    step = Queue[str]()

    def changes() -> Iterator[Mapping[str, Any]]:
        while text := step.get(timeout=WAIT_MS / 1000):
            busy = len(text) % 50
            yield {
                "event": "model",
                **to_builtins(ready("a", busy=busy, tokens_per_s=busy * 11.7, kv_used=0.5)),
            }
            yield {"event": "model", **to_builtins(model("b", why_not=text))}

    with played(state(ready("a"), model("b")), changes) as url:
        page = open_page(url)
        rows, cells = page.locator("table.models tbody tr"), page.locator("table.models tbody td")
        expect(cells).to_have_count(18)
        places = "cells => cells.map(cell => cell.getBoundingClientRect()).map(box => [box.x, box.y])"
        before = cells.evaluate_all(places)
        for text in ("short", "needs 64.9 GiB, and 28.3 GiB are left " * 5):
            step.put(text)
            expect(cell(rows.last, "Actions")).to_contain_text(text.strip())
            expect(cell(rows.first, "Tokens/s")).to_have_text(f"{len(text) % 50 * 11.7:.1f}")
            assert cells.evaluate_all(places) == before
        step.put("")


@pytest.mark.skipif(IS_FIREFOX, reason="the pages in a PDF of Firefox are compressed, and cannot be counted")
def test_it_prints_on_one_page(open_page: OpenPage) -> None:
    with played(state(*(ready(f"model-{number}") for number in range(6)))) as url:
        page = open_page(url)
        expect(page.locator("table.models tbody tr")).to_have_count(6)
        pdf = page.pdf(format="A4")
        assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type/Page/") == 1


def heap(page: Page) -> tuple[int, int]:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    figures = {each["name"]: each["value"] for each in _metrics(session)}
    session.detach()
    return int(figures["JSHeapUsedSize"]), int(figures["Nodes"])


def _metrics(session: Any) -> Any:
    session.send("Performance.enable")
    return session.send("Performance.getMetrics")["metrics"]


@pytest.mark.skipif(IS_FIREFOX, reason="only Chromium tells its heap")
@pytest.mark.slow  # reads 60 MB of events in a browser
def test_a_hundred_thousand_events_leave_nothing_behind(open_page: OpenPage) -> None:
    def flood() -> Iterator[Mapping[str, Any]]:
        for number in range(100_000):
            name = f"model-{number % 10}"
            if number % 5 == 0:
                yield {"event": "news", "model": name, "words": f"weights {number % 100} %", "eta_s": 5}
            elif number % 7 == 0:
                yield {"event": "note", "model": name, "words": f"note {number}"}
            else:
                yield {
                    "event": "model",
                    **to_builtins(ready(name, busy=number % 9, tokens_per_s=float(number % 100))),
                }
            if number == 5000:
                time.sleep(3)
        yield {"event": "note", "model": "", "words": "the flood is over"}

    with played(state(*(ready(f"model-{number}") for number in range(10))), flood) as url:
        page = open_page(url)
        expect(page.locator(".events li")).to_have_count(30)
        before, nodes = heap(page)
        expect(page.get_by_text("the flood is over")).to_be_visible(timeout=300_000)
        after, nodes_after = heap(page)
        assert after < before * 1.5 + 2_000_000, (before, after)
        assert nodes_after < nodes * 1.3 + 500, (nodes, nodes_after)
