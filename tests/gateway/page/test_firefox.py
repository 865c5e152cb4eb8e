"""The page in Debian's Firefox, briefly: `scripts/test-slow` runs all tests of the page in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import to_builtins
from playwright.sync_api import Browser, expect

from tests.gateway.page.conftest import WAIT_MS, OpenPage, launched
from tests.gateway.page.scripted_gateway import model, played, state

expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from launched(tmp_path_factory.mktemp("browser"), is_firefox=True)


def test_every_view_opens_and_follows_the_gateway(open_page: OpenPage) -> None:
    """Without an error in the console: `open_page` looks at that."""
    changed = model("coder", phase="ready", tokens_per_s=41.7)
    with played(state(model("coder")), lambda: iter([{"event": "model", **to_builtins(changed)}])) as url:
        page = open_page(url)
        expect(page.get_by_role("cell", name="41.7")).to_be_visible()
        for title in ("Curves", "Requests", "Logs", "What fits", "Try it", "Runs"):
            page.get_by_role("link", name=title, exact=True).click()
            expect(page.get_by_role("heading", level=1)).to_have_text(title)
