"""The web page in a real browser, over a real gateway with two models and room for one.

Their engine is the real one in `scripts/test-slow`, else `tests/quick_engine.py`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from firesteel.edge.home import Home
from tests.conftest import quick_engines, run_firesteel
from tests.gateway.page.conftest import (
    IS_FIREFOX,
    WAIT_MS,
    OpenPage,
    ServedGateway,
    free_ports,
    start_gateway,
    wait_for_key,
)

pytestmark = pytest.mark.real
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def gateway(pulled: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    """`blocked` has a port that another program holds."""
    folder = tmp_path_factory.mktemp("page")
    home, file = folder / "home", folder / "service.yaml"
    home.mkdir()
    (home / pulled.engines.name).symlink_to(quick_engines(pulled, folder, holds_mib=300))
    (home / pulled.weights.name).symlink_to(pulled.weights)
    port, first, second = free_ports(3)
    other = socket.create_server(("127.0.0.1", 0))
    file.write_text(
        f"""\
listen: 127.0.0.1:{port}
memory: {{ceiling: 500MiB}}
queue: {{min_dwell: 1s, max_wait: 20s}}
models:
  first: {{recipe: smollm2, context: 2048, port: {first}}}
  second: {{recipe: smollm2, context: 4096, port: {second}}}
  blocked: {{recipe: smollm2, context: 1024, port: {other.getsockname()[1]}}}
"""
    )
    url = f"http://127.0.0.1:{port}"
    gateway = ServedGateway(url, home, file, start_gateway(file, home, url))
    try:
        yield gateway
    finally:
        gateway.stop()
        other.close()
        run_firesteel(home, "down", "--all")


def row(page: Page, model: str) -> Locator:
    title = page.locator("strong").get_by_text(model, exact=True)  # others' notes name the model, too
    return page.locator("table.models tbody tr").filter(has=title)


def load_second(page: Page) -> None:
    """Whichever test ran before."""
    if row(page, "second").locator(".phase").inner_text() != "ready":
        page.get_by_role("button", name="Load second", exact=True).click()
    expect(row(page, "second").locator(".phase")).to_have_text("ready")


def set_tokens(page: Page, tokens: int) -> None:
    """As a user types it: `fill` adds to a number in Firefox."""
    field = page.get_by_label("Tokens at most")
    field.press("Control+a")
    field.press_sequentially(str(tokens))


def test_two_models_are_swapped_by_clicks(gateway: ServedGateway, open_page: OpenPage) -> None:
    page = open_page(gateway.url)
    expect(row(page, "first")).to_contain_text("fits; loads in about")
    page.get_by_role("button", name="Load first", exact=True).click()
    expect(row(page, "first")).to_contain_text("ready")
    expect(row(page, "second")).to_contain_text("unloads first first (")  # before anybody clicks
    page.get_by_role("button", name="Load second", exact=True).click()
    expect(row(page, "second").locator(".phase")).to_have_text("ready")
    expect(row(page, "first").locator(".phase")).to_have_text("off")
    expect(page.locator(".events")).to_contain_text("second was loaded in")
    expect(page.locator(".events")).to_contain_text("first was unloaded in")


def test_a_pinned_model_stays(gateway: ServedGateway, open_page: OpenPage) -> None:
    page = open_page(gateway.url)
    load_second(page)
    page.get_by_role("button", name="Pin second", exact=True).click()
    expect(row(page, "second")).to_contain_text("pinned: stays loaded")
    expect(row(page, "first")).to_contain_text("are left")  # why it cannot be loaded
    expect(page.get_by_role("button", name="Load first", exact=True)).to_be_disabled()
    page.get_by_role("button", name="Unpin second", exact=True).click()
    expect(page.get_by_role("button", name="Load first", exact=True)).to_be_enabled()


def test_a_load_that_fails_is_explained(gateway: ServedGateway, open_page: OpenPage) -> None:
    page = open_page(gateway.url)
    page.get_by_role("button", name="Load blocked").click()
    expect(row(page, "blocked").locator(".phase.failed")).to_be_visible()
    expect(row(page, "blocked")).to_contain_text("in the service file, then load it again")
    expect(page.locator(".events .failed")).to_contain_text(re.compile("blocked did not load: .* in use"))
    row(page, "blocked").get_by_role("link", name="Log").click()
    expect(page.get_by_text("blocked has no log: its engine was not started here.")).to_contain_text("in use")


def test_a_chat_streams_and_is_found_in_the_requests(gateway: ServedGateway, open_page: OpenPage) -> None:
    page = open_page(f"{gateway.url}/#try?model=second")
    set_tokens(page, 12)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".said.assistant p")).not_to_be_empty()
    ended = re.compile("complete|reached the limit of tokens")
    expect(page.locator("main [role=status]").first).to_have_text(ended)
    figures = page.locator(".figures dd").first
    expect(figures).to_have_text(re.compile(r"^\d+\.\d{3} s$"))
    assert "second" in page.locator(".copyable").first.inner_text()
    page.get_by_role("link", name="Requests").click()
    found = page.locator("table.requests tbody tr").filter(has_text="second").first
    expect(found).to_contain_text("complete")
    found.get_by_role("button").click()
    # The page does not ask for temperature 0, so a model may end its answer before the limit.
    for step in ("Queued", "Prefill", r"Answer, ([1-9]|1[0-2]) tokens?"):
        expect(page.locator(".steps")).to_contain_text(re.compile(step))


@pytest.mark.slow  # two more loads; the pieces are tested above
def test_two_models_side_by_side(gateway: ServedGateway, open_page: OpenPage) -> None:
    page = open_page(f"{gateway.url}/#try")
    page.get_by_label("Two models side by side").check()
    set_tokens(page, 6)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".said.assistant p:not(:empty)")).to_have_count(2)
    expect(page.get_by_text("complete", exact=True)).to_have_count(2)


def test_logs_are_live_with_their_phases(gateway: ServedGateway, open_page: OpenPage) -> None:
    load_second(open_page(gateway.url))
    page = open_page(f"{gateway.url}/#logs?model=second")
    expect(page.locator(".log .line").first).to_be_visible()
    expect(page.get_by_text("Diagnosis: started normally")).to_be_visible()
    expect(page.locator(".log .phase-mark").first).to_be_attached()
    page.get_by_label("Only lines with").fill("no line has this text")
    expect(page.locator(".log .line:visible")).to_have_count(0)


def test_a_request_for_a_hostile_name_stays_text(gateway: ServedGateway, open_page: OpenPage) -> None:
    page = open_page(f"{gateway.url}/#requests")
    name = "<img src=x onerror=alert(1)>"
    page.evaluate(
        """name => fetch('/v1/chat/completions', {
        method: 'POST', headers: {'Content-Type': 'application/json'},
        body: JSON.stringify({model: name, messages: []})})""",
        name,
    )
    expect(page.locator("table.requests")).to_contain_text(name)
    assert page.locator("main img").count() == 0


def test_what_fits_is_planned_and_a_command_is_checked(gateway: ServedGateway, open_page: OpenPage) -> None:
    page = open_page(f"{gateway.url}/#fits")
    expect(page.get_by_role("button", name="Plan smollm2")).to_be_visible()
    page.get_by_role("button", name="Plan smollm2").click()
    expect(page.locator(".copyable code").first).to_have_text("firesteel up smollm2")
    page.locator("input[name=context]").fill("2")
    expect(page.locator(".copyable code").first).to_have_text("firesteel up smollm2 --context 4096")
    expect(page.locator(".copyable code").nth(1)).to_contain_text("smollm2: {recipe: smollm2, context: 4096}")
    page.locator("textarea[name=command]").fill(
        "docker run --gpus all vllm/vllm-openai:v0.24.0 vllm serve org/x --gpu-memory-utilization 0.97"
    )
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.locator("mark.stop").last).to_have_text("--gpu-memory-utilization 0.97")
    expect(page.get_by_text("utilization-over-0.95:")).to_be_visible()


def test_runs_say_what_to_do_when_there_are_none(gateway: ServedGateway, open_page: OpenPage) -> None:
    page = open_page(f"{gateway.url}/#runs")
    expect(page.get_by_text("Nothing was measured yet. firesteel bench")).to_be_visible()


VIEWS = ("now", "curves", "requests", "logs", "fits", "try", "runs")
SCHEMES = ("light", "dark")


def test_every_view_is_accessible_and_fits_the_screen(gateway: ServedGateway, open_page: OpenPage) -> None:
    page = open_page(gateway.url)
    page.evaluate(Axe().axe_script)  # once: another view is no other document
    for number, view in enumerate(VIEWS):
        page.goto(f"{gateway.url}/#{view}")
        expect(page.locator("h1")).to_be_visible()
        if view == "fits":
            expect(page.get_by_role("button", name="Plan smollm2")).to_be_visible()
        # Each width and each scheme for every view, every pair of them for every other view.
        for width, scheme in zip((360, 1440), SCHEMES if number % 2 else SCHEMES[::-1], strict=True):
            if not IS_FIREFOX:  # which knows no such command
                page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            page.set_viewport_size({"width": width, "height": 900})
            where = f"{view}, {width} px, {scheme}"
            assert page.evaluate("document.documentElement.scrollWidth") <= width, where
            found = page.evaluate("axe.run({resultTypes: ['violations']}).then(found => found.violations)")
            serious = [each for each in found if each["impact"] in ("serious", "critical")]
            faults = [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious]
            assert not faults, (where, faults)


def test_a_lost_connection_is_shown_and_repaired(gateway: ServedGateway, open_page: OpenPage) -> None:
    page = open_page(gateway.url)
    expect(page.locator("#link")).to_have_text("live")
    gateway.stop()
    expect(page.locator("#lost")).to_contain_text("Connection lost")
    expect(row(page, "first")).to_be_visible()  # what was known is still there
    gateway.start()
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#lost")).to_be_hidden()


def test_keys(gateway: ServedGateway, open_page: OpenPage, tmp_path: Path) -> None:
    """The last test of this file: a gateway that had keys stays closed."""
    page = open_page(gateway.url)
    expect(page.locator("#link")).to_have_text("live")
    admin = run_firesteel(gateway.home, "serve", "key", "add", "boss", "--admin", "--json").json["token"]
    guest = run_firesteel(gateway.home, "serve", "key", "add", "laptop", "--model", "first", "--json").json[
        "token"
    ]
    wait_for_key(gateway.url, guest)
    page.reload()
    key = page.get_by_label("Key", exact=True)
    key.fill("fs-wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert").filter(has_text="unknown or was revoked")).to_be_visible()
    key.fill(admin)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Load first", exact=True)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    key.fill(guest)
    page.get_by_role("button", name="Sign in").click()
    expect(row(page, "first")).to_be_visible()
    expect(page.locator("table.models tbody tr")).to_have_count(1)
    expect(page.get_by_role("button", name="Load first", exact=True)).to_have_count(0)
    assert page.get_by_role("navigation").inner_text().split("\n") == ["Now", "Try it"]
