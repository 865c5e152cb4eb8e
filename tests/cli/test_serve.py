"""`firesteel serve` as a user types it, and what `client` and `ps` print while it runs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.home import Home, lock
from firesteel.edge.sim.setup import environment
from firesteel.gateway.address import Address, lock_path, read_address, write_address
from firesteel.run.service import load
from firesteel.units import GIB
from firesteel.values import plain
from tests.cli.inside import inside
from tests.conftest import Firesteel, run_firesteel
from tests.edge.sim.spark import free_port as other_port

HERE = os.getpid()
GATE = Address("http://127.0.0.1:19999", ("coder", "small"), has_keys=False, pid=HERE)
DOCS = Path(__file__).parents[2] / "docs" / "serve.md"


@pytest.fixture
def firesteel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Firesteel:
    return inside(tmp_path / "home", monkeypatch, capsys)


@contextmanager
def serving(home: Home, *arguments: str) -> Iterator[Any]:
    """A real gateway; yields the document that it printed when it listened."""
    process = subprocess.Popen(
        [sys.executable, "-m", "firesteel", "serve", *arguments, "--json"],
        stdout=subprocess.PIPE,
        env={**os.environ, "FIRESTEEL_HOME": str(home.root)},
    )
    assert process.stdout
    try:
        assert select.select([process.stdout], [], [], 60)[0], "it says nothing"
        printed = json.loads(process.stdout.readline())
        assert printed["document"] == "firesteel.serve/1"
        write_address(home, Address(printed["url"], tuple(printed["models"]), False, process.pid))
        yield printed
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


# --- where the gateway is ---


def test_an_address_is_valid_only_while_its_lock_is_held(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write_address(home, GATE)
    assert read_address(home) is None
    with lock(lock_path(home)):
        assert read_address(home) == GATE
    assert read_address(home) is None


def test_the_address_of_a_dead_gateway_is_not_that_of_the_next(tmp_path: Path) -> None:
    home, dead = Home(tmp_path), subprocess.Popen(["true"])
    dead.wait()
    write_address(home, Address(GATE.url, GATE.models, False, dead.pid))
    with lock(lock_path(home)):
        assert read_address(home) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"url": 1}', "[" * 10_000, '{"url":"x","models":[],"pid":true}']
)
def test_a_file_that_holds_no_address(tmp_path: Path, text: str) -> None:
    home = Home(tmp_path)
    with lock(lock_path(home)):
        (tmp_path / "gateway/address.json").write_text(text)
        assert read_address(home) is None


def test_reading_the_address_loads_no_large_module() -> None:
    heavy = "{'pydantic', 'yaml', 'rich', 'aiohttp'} & set(sys.modules)"
    program = f"import sys, firesteel.gateway.address; print({heavy} or 'light')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "light\n"


# --- who is sent there ---


@pytest.mark.parametrize(("arguments", "model"), [((), "coder"), (("small",), "small")])
def test_clients_are_sent_to_the_gateway(
    firesteel: Firesteel, tmp_path: Path, arguments: tuple[str, ...], model: str
) -> None:
    home = Home(tmp_path / "home")
    with lock(lock_path(home)):
        write_address(home, GATE)
        printed = firesteel("client", "openai", *arguments, "--json").json
    assert (printed["url"], printed["model"]) == ("http://127.0.0.1:19999/v1", model)
    assert printed["taken"] == "gateway"
    assert printed["key_variable"] is None and printed["context"] is None, "nobody answers, so nobody knows"
    assert any("this is the gateway" in note for note in printed["notes"])


def test_a_gateway_with_keys_asks_for_one(firesteel: Firesteel, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with lock(lock_path(home)):
        write_address(home, Address("http://0.0.0.0:19999", ("coder",), has_keys=True, pid=HERE))
        ran = firesteel("client", "opencode")
    options = json.loads(ran.out)["provider"]["firesteel"]["options"]
    assert options == {"baseURL": "http://127.0.0.1:19999/v1", "apiKey": "{env:FIRESTEEL_API_KEY}"}
    assert "firesteel serve key add NAME" in ran.err


def test_direct_bypasses_the_gateway(firesteel: Firesteel, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with lock(lock_path(home)):
        write_address(home, Address(GATE.url, ("smollm2",), False, HERE))
        printed = firesteel("client", "openai", "smollm2", "--direct", "--json").json
        other = firesteel("client", "openai", "gpt-oss-20b", "--json").json
    assert (printed["url"], printed["taken"]) == ("http://127.0.0.1:8000/v1", "plan")
    assert other["taken"] == "plan", "the gateway does not have it"


def test_ps_names_the_gateway(firesteel: Firesteel, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with lock(lock_path(home)):
        write_address(home, GATE)
        assert firesteel("ps", "--json").json["gateway"] == {**plain(GATE), "models": ["coder", "small"]}
        output = " ".join(firesteel("ps").out.split())
    assert "gateway http://127.0.0.1:19999/v1" in output and "serves coder, small" in output
    assert "nothing is running" not in output
    assert firesteel("ps", "--json").json["gateway"] is None


def test_a_real_gateway_reports_the_context_of_its_models(tmp_path: Path, free_port: int) -> None:
    """Nothing is loaded: clients get the same settings between two swaps."""
    home = Home(tmp_path / "home")
    with serving(home, "smollm2", "--port", str(free_port)) as printed:
        assert printed["url"] == f"http://127.0.0.1:{free_port}"
        settings = run_firesteel(home.root, "client", "openai", "--json").json
        assert (settings["url"], settings["model"]) == (f"{printed['url']}/v1", "smollm2")
        with urllib.request.urlopen(f"{settings['url']}/models", timeout=120) as answer:
            assert settings["context"] == json.load(answer)["data"][0]["context"] > 1000


# --- names in place of a file ---


@pytest.mark.real
def test_a_running_service_is_adopted_on_its_port(quick_home: Home, free_port: int) -> None:
    assert run_firesteel(quick_home.root, "up", "smollm2", "--port", str(free_port)).code == 0
    before = load(quick_home, "smollm2")
    with serving(quick_home, "smollm2", "--listen", f"127.0.0.1:{other_port()}") as printed:
        assert _state(printed["url"]) == "ready"
        after = load(quick_home, "smollm2")
        assert before and after and before.state and after.state
        assert after.phase == "ready" and after.state.engine == before.state.engine
    still = load(quick_home, "smollm2")
    assert still and still.phase == "ready", "who started it by hand stops it by hand"


def _state(url: str) -> str:
    """Once settled: an adopted service is ready, one that must be restarted is stopping."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=120) as answer:
            settings: str = json.load(answer)["data"][0]["state"]
        if settings == "ready":
            break
        time.sleep(0.1)
    return settings


# --- what is typed wrong ---


@pytest.mark.parametrize(
    "listen", ["19210", ":8080", "everywhere:80", "127.0.0.1:0", "127.0.0.1:8_0", "[::1]", "::1"]
)
def test_listen_is_checked_before_anything_else(firesteel: Firesteel, tmp_path: Path, listen: str) -> None:
    ran = firesteel("serve", "smollm2", "--listen", listen)
    assert ran.code == 2 and "write it like 127.0.0.1:8080" in ran.err, ran.err
    assert not (tmp_path / "home/serve.yaml").exists()


def test_listen_and_port_exclude_each_other(firesteel: Firesteel, tmp_path: Path) -> None:
    ran = firesteel("serve", "smollm2", "--listen", "127.0.0.1:8080", "--port", "8081")
    assert ran.code == 2 and "--listen has a port already" in ran.err, ran.err
    assert not (tmp_path / "home/serve.yaml").exists()


# --- the manual's own file ---


def test_all_models_of_the_documented_file_can_be_served(tmp_path: Path) -> None:
    """On an idle simulated Spark, each beside the pinned models and other processes, with some GiB left."""
    assert run_firesteel(tmp_path, "--sim", "idle", "ps").code == 0
    file = tmp_path / "firesteel.yaml"
    file.write_text(DOCS.read_text("utf-8").partition("```yaml\n")[2].partition("```\n")[0])
    env = environment(tmp_path / "sim", os.environ)
    loader = [sys.executable, "-m", "firesteel.gateway.loader", "read", str(file)]
    with subprocess.Popen(loader, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        output = [json.loads(line) for line in process.stdout]
    models = output[-1]["read"]["models"]
    assert len(models) > 3 and [model["why_not"] for model in models] == [None] * len(models)
    stays = sum(model["bytes"] for model in models if model["pinned"] or model["is_outside"])
    for model in models:
        needs = 0 if model["pinned"] or model["is_outside"] else model["bytes"]
        assert stays + needs + GIB < output[-1]["read"]["ceiling_bytes"], model["name"]
