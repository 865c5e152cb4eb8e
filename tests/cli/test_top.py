"""`firesteel top` as a user runs it: in a terminal (tmux), with a real gateway on a simulated Spark."""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from firesteel.edge.sim.setup import environment
from firesteel.gateway.keys import add_key
from tests.conftest import run_firesteel
from tests.edge.sim.spark import free_port
from tests.needs import needs_programs

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed")
_WAIT_S = 120
FILE = """listen: 127.0.0.1:{}
models:
  coder: {{recipe: qwen3.6-35b-a3b-nvfp4, port: {}}}
  big: {{recipe: gpt-oss-120b, port: {}}}
"""


@dataclass
class Gateway:
    url: str
    env: dict[str, str]
    process: subprocess.Popen[bytes]

    def top(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "firesteel", "top", *arguments]
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=_WAIT_S, check=False
        )


@contextmanager
def gateway_on_a_spark(folder: Path, *options: str, asks_for_key: bool = False) -> Iterator[Gateway]:
    assert run_firesteel(folder, "--sim", "idle", "ps").code == 0
    env = environment(folder / "sim", os.environ) | {"FIRESTEEL_SIM_SPEED": "1000"}
    spark = json.loads((folder / "sim" / "spark.json").read_text())
    (folder / "sim" / "spark.json").write_text(json.dumps({**spark, "faster": 1000.0}))
    if asks_for_key:
        _, env["BOSS"] = add_key(folder / "sim" / "home" / "keys.json", "boss", scope="admin")
    file = folder / "firesteel.yaml"
    file.write_text(FILE.format(free_port(), free_port(), free_port()))
    command = [sys.executable, "-m", "firesteel", "serve", "-f", str(file), "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)
    assert process.stdout
    try:
        assert select.select([process.stdout], [], [], _WAIT_S)[0], "it says nothing"
        yield Gateway(json.loads(process.stdout.readline())["url"], env, process)
    finally:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=_WAIT_S)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway_on_a_spark(tmp_path_factory.mktemp("spark")) as running:
        yield running


class Terminal:
    """A tmux pane of 80 x 24 with a shell in it."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._socket = folder / "tmux.sock"
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh", env=env)
        self.type("PS1='ready> '; clear")
        self.until("ready>")

    def _tmux(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        command = ["tmux", "-S", str(self._socket), *arguments]
        env = {**(env or os.environ), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
        ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_WAIT_S, check=True)
        return ran.stdout

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def press(self, *names: str) -> None:
        self._tmux("send-keys", *names)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def modes(self) -> str:
        """Alternate screen, cursor shown, wrapping, and the line settings of the terminal."""
        state = self._tmux("display-message", "-p", "#{alternate_on} #{cursor_flag} #{wrap_flag} #{pane_tty}")
        *flags, tty = state.split()
        settings = subprocess.run(["stty", "-F", tty, "-g"], capture_output=True, text=True, check=True)
        return f"{flags} {settings.stdout}"

    def until(self, *parts: str) -> str:
        deadline = time.monotonic() + _WAIT_S
        while not all(part in (seen := self.screen()) for part in parts):
            assert time.monotonic() < deadline, f"no {parts} in:\n{seen}"
            time.sleep(0.05)
        return seen

    def close(self) -> None:
        self._tmux("kill-server")


@pytest.fixture
def terminal(gateway: Gateway, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path, gateway.env)
    yield terminal
    terminal.close()


TOP = shlex.join([sys.executable, "-m", "firesteel", "top"])


def test_load_and_unload_by_key(gateway: Gateway, terminal: Terminal) -> None:
    terminal.type(TOP)
    seen = terminal.until("MODEL", "coder off", "big   off", "q quit")
    assert "coder: not loaded; a request loads it" in seen and "guard" in seen
    terminal.press("l")
    terminal.until("asked the gateway to load coder")
    terminal.until("coder ready", "healthy: no request")
    terminal.press("Down", "l")
    seen = terminal.until("load big?", "y/n")
    terminal.press("n")
    terminal.until("q quit", "big   off")
    terminal.press("Up", "p")
    terminal.until("coder ready*")
    terminal.press("u")
    terminal.until("coder is pinned, so it stays loaded")
    terminal.press("Down", "l")
    terminal.until("big cannot be loaded", "alongside the models that always stay")
    terminal.press("Up", "p")
    terminal.until("coder ready ")
    terminal.press("u")
    terminal.until("coder off")
    terminal.press("u")
    terminal.until("coder is not loaded")


def test_curves_requests_and_logs_of_a_request(gateway: Gateway, terminal: Terminal) -> None:
    body = {"model": "coder", "messages": [{"role": "user", "content": "2+2"}], "max_tokens": 20}
    request = urllib.request.Request(
        f"{gateway.url}/v1/chat/completions", json.dumps({**body, "stream": True}).encode()
    )
    with urllib.request.urlopen(request, timeout=_WAIT_S) as answer:
        assert answer.read()
    terminal.type(TOP)
    terminal.until("log of coder", "INFO")
    terminal.press("Tab")
    seen = terminal.until("ENDED", "coder  200")
    assert "█" in seen
    terminal.press("s", "s")
    terminal.until("requests from 60 s on", "no such request")
    terminal.press("b")
    terminal.until("until yesterday")
    terminal.press("2")
    terminal.until("curves 24h")
    terminal.press("Tab")
    terminal.until("who waits: 0", "no request waits")
    terminal.press("?")
    terminal.until("a day back, a day forward")


@pytest.mark.parametrize("key", ["q", "C-c"])
def test_it_leaves_the_terminal_as_it_was(terminal: Terminal, key: str) -> None:
    before = terminal.modes()
    terminal.type(TOP)
    terminal.until("q quit")
    during = terminal.modes()
    assert during.startswith("['1', '0', '0']") and during != before
    terminal.press(key)
    terminal.until("ready>")
    assert terminal.modes() == before
    terminal.type("echo $?")
    terminal.until("0" if key == "q" else "130")


def test_ctrl_z_and_back_and_killed(terminal: Terminal) -> None:
    terminal.type("set -m; PS1='job> '")
    before = terminal.modes()
    terminal.type(TOP)
    terminal.until("q quit")
    terminal.press("C-z")
    terminal.until("job>")
    assert terminal.modes() == before
    terminal.type("fg")
    terminal.until("q quit")
    terminal.press("C-z")
    terminal.until("job>")
    terminal.type("kill %1; clear; fg; echo ended with $?")
    terminal.until("ended with 130")
    assert terminal.modes() == before


def test_a_new_size(terminal: Terminal) -> None:
    terminal.type(TOP)
    terminal.until("q quit")
    terminal.resize(120, 30)
    seen = terminal.until("-" * 90, "? help")
    assert len(seen.rstrip("\n").split("\n")) == 30
    terminal.resize(30, 8)
    terminal.until("too small: 40 x 10")
    terminal.resize(80, 24)
    terminal.until("MODEL", "q quit")


def test_a_gateway_that_stops_answering_and_comes_back(gateway: Gateway, terminal: Terminal) -> None:
    terminal.type(TOP)
    terminal.until("q quit", "coder")
    gateway.process.send_signal(signal.SIGSTOP)
    terminal.until("no answer from", "trying again", "coder")
    terminal.press("?")
    terminal.until("select a model")
    gateway.process.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + _WAIT_S
    while "trying again" in terminal.screen():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_once_and_json_for_scripts(gateway: Gateway) -> None:
    ran = gateway.top("--once")
    assert ran.returncode == 0 and "MODEL" in ran.stdout and "\x1b" not in ran.stdout
    assert gateway.top().stdout.splitlines()[3:] == ran.stdout.splitlines()[3:], "into a pipe: the same"
    document = json.loads(gateway.top("--json").stdout)
    assert document["document"] == "firesteel.top/1"
    assert [model["name"] for model in document["models"]] == ["coder", "big"]
    assert all(model["health"]["text"] for model in document["models"])


def test_a_gateway_elsewhere(gateway: Gateway, tmp_path: Path) -> None:
    env = {**gateway.env, "FIRESTEEL_HOME": str(tmp_path / "other")}
    here = Gateway(gateway.url, env, gateway.process)
    ran = here.top("--once")
    assert (ran.returncode, "no gateway runs here" in ran.stderr) == (1, True)
    ran = here.top("--once", "--url", f"{gateway.url}/v1/")
    assert ran.returncode == 0 and gateway.url in ran.stdout
    ran = here.top("--once", "--url", f"127.0.0.1:{free_port()}")
    assert ran.returncode == 1 and "no answer from http://127.0.0.1:" in ran.stderr
    assert here.top("--url", "ftp://spark").returncode == 2


def test_a_key(tmp_path: Path) -> None:
    with gateway_on_a_spark(tmp_path, asks_for_key=True) as gateway:
        ran = gateway.top("--once")
        assert ran.returncode == 1 and "FIRESTEEL_API_KEY" in ran.stderr
        gateway.env["FIRESTEEL_API_KEY"] = gateway.env["BOSS"]
        assert gateway.top("--once").returncode == 0


@needs_programs("openssl")
def test_a_gateway_of_this_home_may_show_a_certificate_that_it_signed_itself(tmp_path: Path) -> None:
    """Its name is not even that of the host. Of any other address it stays unknown."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=spark"],
        check=True, capture_output=True,
    )  # fmt: skip
    options = ("--cert", str(certificate), "--cert-key", str(key))
    with gateway_on_a_spark(tmp_path, *options) as gateway:
        assert gateway.url.startswith("https://")
        for more in ((), ("--url", gateway.url)):
            shown = gateway.top("--once", *more)
            assert shown.returncode == 0 and "coder" in shown.stdout, shown.stderr
        stranger = {**gateway.env, "FIRESTEEL_HOME": str(tmp_path / "other")}
        gateway.env = stranger
        refused = gateway.top("--once", "--url", gateway.url)
        assert refused.returncode == 1 and "is not trusted here" in refused.stderr, refused.stderr
        gateway.env = {**stranger, "SSL_CERT_FILE": str(certificate)}
        assert "mismatch" in gateway.top("--once", "--url", gateway.url).stderr
