"""`firesteel serve` as it is typed, and what `client` and `ps` say while it runs."""

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.files.home import Home, lock
from firesteel.gateway.address import Address, lock_path, read_address, write_address
from firesteel.run.service import load
from firesteel.sim.setup import environment
from firesteel.units import GIB
from tests.cli.inside import inside
from tests.conftest import Firesteel, run_firesteel
from tests.sim.spark import free_port as other_port

HERE = os.getpid()
GATE = Address("http://127.0.0.1:19999", ("coder", "small"), has_keys=False, pid=HERE)
DOCS = Path(__file__).parents[2] / "docs" / "serve.md"


@pytest.fixture
def firesteel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Firesteel:
    return inside(tmp_path / "home", monkeypatch, capsys)


@contextmanager
def serving(home: Home, *words: str) -> Iterator[Any]:
    """A real gateway; what it said of itself when it listened."""
    process = subprocess.Popen(
        [sys.executable, "-m", "firesteel", "serve", *words, "--json"],
        stdout=subprocess.PIPE,
        env={**os.environ, "FIRESTEEL_HOME": str(home.root)},
    )
    assert process.stdout
    try:
        assert select.select([process.stdout], [], [], 60)[0], "it says nothing"
        told = json.loads(process.stdout.readline())
        write_address(home, Address(told["url"], tuple(told["models"]), False, process.pid))
        yield told
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


# --- where the gateway is ---


def test_an_address_is_believed_while_its_lock_is_held(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write_address(home, GATE)
    assert read_address(home) is None
    with lock(lock_path(home)):
        assert read_address(home) == GATE
    assert read_address(home) is None


def test_a_dead_gateways_address_is_not_the_next_ones(tmp_path: Path) -> None:
    home, dead = Home(tmp_path), subprocess.Popen(["true"])
    dead.wait()
    write_address(home, Address(GATE.url, GATE.models, False, dead.pid))
    with lock(lock_path(home)):
        assert read_address(home) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"url": 1}', "[" * 10_000, '{"url":"x","models":[],"pid":true}']
)
def test_a_file_that_is_no_address(tmp_path: Path, text: str) -> None:
    home = Home(tmp_path)
    with lock(lock_path(home)):
        (tmp_path / "gateway/address.json").write_text(text)
        assert read_address(home) is None


def test_it_is_read_by_processes_that_must_stay_small() -> None:
    heavy = "{'pydantic', 'yaml', 'rich', 'aiohttp'} & set(sys.modules)"
    words = f"import sys, firesteel.gateway.address; print({heavy} or 'light')"
    said = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout
    assert said == "light\n"


# --- who is sent there ---


@pytest.mark.parametrize(("words", "model"), [((), "coder"), (("small",), "small")])
def test_clients_are_sent_to_the_gateway(
    firesteel: Firesteel, tmp_path: Path, words: tuple[str, ...], model: str
) -> None:
    home = Home(tmp_path / "home")
    with lock(lock_path(home)):
        write_address(home, GATE)
        told = firesteel("client", "openai", *words, "--json").json
    assert (told["url"], told["model"], told["taken"]) == ("http://127.0.0.1:19999/v1", model, "gateway")
    assert told["key_variable"] is None and told["context"] is None, "nobody answers, so nobody knows"
    assert any("this is the gateway" in note for note in told["notes"])


def test_a_gateway_with_keys_wants_one(firesteel: Firesteel, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with lock(lock_path(home)):
        write_address(home, Address("http://0.0.0.0:19999", ("coder",), has_keys=True, pid=HERE))
        ran = firesteel("client", "opencode")
    options = json.loads(ran.out)["provider"]["firesteel"]["options"]
    assert options == {"baseURL": "http://127.0.0.1:19999/v1", "apiKey": "{env:FIRESTEEL_API_KEY}"}
    assert "firesteel key add NAME" in ran.err


def test_past_the_gateway(firesteel: Firesteel, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with lock(lock_path(home)):
        write_address(home, Address(GATE.url, ("smollm2",), False, HERE))
        told = firesteel("client", "openai", "smollm2", "--direct", "--json").json
        other = firesteel("client", "openai", "gpt-oss-20b", "--json").json
    assert (told["url"], told["taken"]) == ("http://127.0.0.1:8000/v1", "plan")
    assert other["taken"] == "plan", "the gateway does not have it"


def test_ps_names_the_gateway(firesteel: Firesteel, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with lock(lock_path(home)):
        write_address(home, GATE)
        assert firesteel("ps", "--json").json["gateway"] == {**asdict(GATE), "models": ["coder", "small"]}
        said = " ".join(firesteel("ps").out.split())
    assert "gateway http://127.0.0.1:19999/v1" in said and "serves coder, small" in said
    assert "nothing is running" not in said
    assert firesteel("ps", "--json").json["gateway"] is None


def test_a_real_gateway_says_what_its_models_can(tmp_path: Path, free_port: int) -> None:
    """Nothing is loaded: between two swaps clients are told the same."""
    home = Home(tmp_path / "home")
    with serving(home, "smollm2", "--listen", f"127.0.0.1:{free_port}") as told:
        found = run_firesteel(home.root, "client", "openai", "--json").json
        assert (found["url"], found["model"]) == (f"{told['url']}/v1", "smollm2")
        with urllib.request.urlopen(f"{found['url']}/models", timeout=10) as answer:
            assert found["context"] == json.load(answer)["data"][0]["context"] > 1000


# --- names in place of a file ---


@pytest.mark.real
def test_what_runs_is_adopted_where_it_is(engine_home: Home, free_port: int) -> None:
    assert run_firesteel(engine_home.root, "up", "smollm2", "--port", str(free_port)).code == 0
    before = load(engine_home, "smollm2")
    with serving(engine_home, "smollm2", "--listen", f"127.0.0.1:{other_port()}") as told:
        assert _state(told["url"]) == "ready"
        after = load(engine_home, "smollm2")
        assert before and after and before.state and after.state
        assert after.phase == "ready" and after.state.engine == before.state.engine
    still = load(engine_home, "smollm2")
    assert still and still.phase == "ready", "who started it by hand stops it by hand"


def _state(url: str) -> str:
    """Settled: an adopted one is ready, one that would be started anew is on its way out."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
            found: str = json.load(answer)["data"][0]["state"]
        if found == "ready":
            break
        time.sleep(0.1)
    return found


# --- what is typed wrong ---


@pytest.mark.parametrize(
    "listen", ["19210", ":8080", "everywhere:80", "127.0.0.1:0", "127.0.0.1:8_0", "[::1]", "", "::1"]
)
def test_an_address_is_one_before_anything_else(firesteel: Firesteel, tmp_path: Path, listen: str) -> None:
    ran = firesteel("serve", "smollm2", "--listen", listen)
    assert ran.code == 2 and "write it like 127.0.0.1:8080" in ran.err, ran.err
    assert not (tmp_path / "home/serve.yaml").exists()


# --- the manual's own file ---


def test_the_manuals_file_can_serve_all_its_models(tmp_path: Path) -> None:
    """On an idle simulated Spark, each beside the pinned models and other processes, with some GiB left."""
    assert run_firesteel(tmp_path, "--sim", "idle", "ps").code == 0
    file = tmp_path / "firesteel.yaml"
    file.write_text(DOCS.read_text("utf-8").partition("```yaml\n")[2].partition("```\n")[0])
    env = environment(tmp_path / "sim", os.environ)
    loader = [sys.executable, "-m", "firesteel.gateway.loader.job", "read", str(file)]
    with subprocess.Popen(loader, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        said = [json.loads(line) for line in process.stdout]
    models = said[-1]["read"]["models"]
    assert len(models) > 3 and [each["why_not"] for each in models] == [None] * len(models)
    stays = sum(each["bytes"] for each in models if each["pinned"] or each["is_outside"])
    for each in models:
        needs = 0 if each["pinned"] or each["is_outside"] else each["bytes"]
        assert stays + needs + GIB < said[-1]["read"]["ceiling_bytes"], each["name"]
