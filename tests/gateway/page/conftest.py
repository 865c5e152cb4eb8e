"""A real browser and gateways to look at with it.

Debian's Chromium, or its Firefox with FIRESTEEL_TEST_BROWSER=firefox.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from firesteel.edge.home import Home
from tests.conftest import know_bandwidth
from tests.gateway.page import firefox

IS_FIREFOX = os.environ.get("FIRESTEEL_TEST_BROWSER") == "firefox"
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
WAIT_MS = 120_000
"""A load is warmed up and verified, which takes three minutes on a machine that is busy with other tests."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Not for the session: while it is open, its event loop runs, and no async test of another module can."""
    yield from launched(tmp_path_factory.mktemp("browser"), is_firefox=IS_FIREFOX)


def launched(folder: Path, *, is_firefox: bool) -> Iterator[Browser]:
    program = firefox.PROGRAM if is_firefox else "/usr/bin/chromium"
    if shutil.which(program) is None:
        assert os.environ.get("CI") != "true", "scripts/test installs both browsers in CI"
        pytest.skip(f"needs Debian's {Path(program).name}")
    with sync_playwright() as playwright:
        if is_firefox:
            start = folder / "firefox"
            start.write_text(f'#!/bin/sh\nexec {sys.executable} {firefox.__file__} "$@"\n')
            start.chmod(0o755)
            browser = playwright.firefox.launch(channel="moz-firefox", executable_path=start)
        else:
            browser = playwright.chromium.launch(executable_path=program, args=list(OPTIONS))
        yield browser
        browser.close()


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens a page. In the end no error may have happened in it, and nothing that the policy forbids."""
    troubles: list[str] = []
    contexts = []

    def listen(message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            troubles.append(message.text)

    def opened(url: str, *, width: int = 1440, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",  # Firefox stays light, see firefox.py
        )
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", listen)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not troubles


@dataclass(slots=True)
class ServedGateway:
    url: str
    home: Path
    file: Path
    process: subprocess.Popen[bytes]

    def start(self, *options: str) -> None:
        self.process = start_gateway(self.file, self.home, self.url, *options)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=90)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start_gateway(file: Path, home: Path, url: str, *options: str) -> subprocess.Popen[bytes]:
    know_bandwidth(Home(home))
    log = file.with_name("serve.log")
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "firesteel", *options, "serve", "-f", str(file)],
            stdout=out,
            stderr=out,
            env={**os.environ, "FIRESTEEL_HOME": str(home)},
        )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return process
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


Serve = Callable[..., AbstractContextManager[ServedGateway]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """A real gateway with this service file (without `listen`)."""

    @contextmanager
    def serving(text: str, *options: str) -> Iterator[ServedGateway]:
        (port,) = free_ports(1)
        home, file = tmp_path / "home", tmp_path / "service.yaml"
        home.mkdir(exist_ok=True)
        file.write_text(f"listen: 127.0.0.1:{port}\n{text}")
        url = f"http://127.0.0.1:{port}"
        gateway = ServedGateway(url, home, file, start_gateway(file, home, url, *options))
        try:
            yield gateway
        finally:
            gateway.stop()

    return serving


def wait_for_key(url: str, token: str) -> None:
    """The gateway reads its keys again every second; without any it lets everybody in."""
    deadline = time.monotonic() + 60
    while (_status(url, "fs-wrong"), _status(url, token)) != (401, 200):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _status(url: str, token: str) -> int:
    request = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
