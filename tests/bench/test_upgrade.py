"""`upgrade`: releases and choices as values; a real gateway whose clients see no error during a switch."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from firesteel.bench.upgrade.releases import find_release, newest
from firesteel.catalog.catalog import shipped
from firesteel.cli.main import firesteel as firesteel_command
from firesteel.edge.docker.registry import Registry
from firesteel.edge.home import (
    EngineRelease,
    Home,
    ModelRelease,
    choose_release,
    chosen_release,
)
from firesteel.errors import UsageError
from firesteel.launch import Ask
from firesteel.run.service import load
from firesteel.values import replace
from firesteel.workspace import Workspace
from tests.conftest import Firesteel, run_firesteel

OLD, NEW, BROKEN = "2026.10.11549", "2026.11.11600", "2026.12.11700"


@pytest.mark.parametrize(
    ("current", "others", "found"),
    [
        ("0.9.1", ["0.10.0", "0.9.2", "0.8"], "0.10.0"),
        ("v0.28.0", ["v0.28.0", "v0.27.0"], None),
        ("11434", ["11401"], None),
        ("2026.10.11549", ["2026.9.11063", "2026.10.11600"], "2026.10.11600"),
    ],
)
def test_the_newest_is_newer_by_its_numbers(current: str, others: list[str], found: str | None) -> None:
    assert newest(current, others) == found


@pytest.mark.parametrize(
    ("to", "image"),
    [
        ("0.29.0", "vllm/vllm-openai:v0.29.0"),
        ("v0.29.0-cu130", "vllm/vllm-openai:v0.29.0-cu130"),
        ("nvcr.io/nvidia/vllm:26.05-py3", "nvcr.io/nvidia/vllm:26.05-py3"),
    ],
)
async def test_an_image_that_was_asked_for(to: str, image: str, tmp_path: Path) -> None:
    current = EngineRelease("vllm", "0.28.0", image="vllm/vllm-openai:v0.28.0@sha256:ab")
    found = await find_release(Home(tmp_path), current, to)
    assert found is not None and found.image == image


async def test_a_build_of_llamacpp_keeps_its_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, image = Home(tmp_path), "ghcr.io/ggml-org/llama.cpp:server-cuda13"
    current = EngineRelease("llamacpp", "unknown", image=image)
    found = await find_release(home, current, "b11600")
    assert found == EngineRelease("llamacpp", "11600", image=f"{image}-b11600")
    tags = [
        "server-cuda12-b11700",
        "server-cuda13-b11600",
        "server-cuda13-b11500",
        "server-cuda14",
        "light-b11800",
    ]
    monkeypatch.setattr(Registry, "tags", lambda self: tags)
    for start in (image, f"{image}-b11500"):
        newest_one = await find_release(home, replace(current, image=start), None)
        assert newest_one is not None and newest_one.image == f"{image}-b11600"
    assert await find_release(home, replace(current, image=f"{image}-b11600"), None) is None


async def test_a_package_and_a_program_that_were_asked_for(tmp_path: Path) -> None:
    current = EngineRelease("llamacpp", "11549", package=f"xllamacpp=={OLD}")
    found = await find_release(Home(tmp_path), current, NEW)
    assert found == EngineRelease("llamacpp", "11600", package=f"xllamacpp=={NEW}")
    native = EngineRelease("llamacpp", "11434", engine_path="/opt/llama-server")
    assert await find_release(Home(tmp_path), native, None) is None
    with pytest.raises(UsageError, match="11500"):
        await find_release(Home(tmp_path), native, "b11500")


def test_a_choice_is_kept_used_and_taken_back(tmp_path: Path) -> None:
    home, ask = Home(tmp_path), Ask("smollm2")
    host = Workspace(home).host("gb10")
    own = Workspace(home).propose(ask, host)[0]
    release = EngineRelease("llamacpp", "11600", package=f"xllamacpp=={NEW}")
    choose_release(home, ModelRelease("smollm2", release, None, "today"))
    chosen = Workspace(home).propose(ask, host)[0]
    assert chosen.image and chosen.image.package == release.package and chosen.plan.launch.version == "11600"
    asked = Workspace(home).propose(replace(ask, name="other"), host)[0]
    assert asked.image == own.image, "the choice is one model's"
    choice = chosen_release(home, "smollm2")
    assert choice is not None
    choose_release(home, choice.swapped("later"))
    assert Workspace(home).propose(ask, host)[0].image == own.image
    back = chosen_release(home, "smollm2")
    assert back is not None and back.previous == release


def test_a_choice_of_an_image_concerns_its_engine_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    name = next(each.name for each in shipped().recipes.values() if each.engine == "vllm")
    release = EngineRelease("vllm", "0.99.0", image="vllm/vllm-openai:v0.99.0")
    host = Workspace(home).host("gb10")
    launch = Workspace(home, release).propose(Ask(name), host)[0].plan.launch
    assert launch.container and launch.container.image == release.image and launch.version == "0.99.0"
    small = Workspace(home, release).propose(Ask("smollm2"), host)[0]
    assert small.image == Workspace(home).propose(Ask("smollm2"), host)[0].image


def test_what_cannot_be_upgraded(firesteel: Firesteel) -> None:
    assert firesteel("upgrade", "smollm2").code == 5, "nothing runs"
    assert firesteel("upgrade", "smollm2", "--to", "1", "--rollback").code == 2


@pytest.mark.parametrize(
    ("words", "interrupted"),
    [
        (("upgrade", "smollm2"), "firesteel.library.run.upgrade_model"),
        (("image", "build", "llamacpp-here"), "firesteel.library.images.build_image"),
    ],
)
def test_an_interruption_is_no_traceback(
    words: tuple[str, ...], interrupted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(*arguments: object, **options: object) -> AsyncIterator[object]:
        raise asyncio.CancelledError
        yield

    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path))
    monkeypatch.setattr(interrupted, cancelled)
    ran = CliRunner().invoke(firesteel_command, words, standalone_mode=False)
    assert isinstance(ran.exception, click.Abort) and str(ran.exception)


# --- a gateway and its clients ---


class Clients:
    """Four that ask again and again, and write down what is not an answer."""

    def __init__(self, url: str) -> None:
        self.url, self.ends, self.answers, self.errors = url, threading.Event(), 0, list[str]()
        self.threads = [threading.Thread(target=self._ask) for _ in range(4)]
        for thread in self.threads:
            thread.start()

    def ask(self) -> str:
        body = {"model": "smollm2", "messages": [{"role": "user", "content": "2+2?"}], "max_tokens": 8}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=240) as response:
                return str(json.load(response)["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as refused:
            raise AssertionError(refused.read().decode()) from None

    def _ask(self) -> None:
        while not self.ends.is_set():
            try:
                self.ask()
                self.answers += 1
            except (AssertionError, OSError, ValueError, KeyError) as error:
                self.errors.append(repr(error))
            time.sleep(0.02)  # four that never pause would only measure the machine

    def close(self) -> None:
        self.ends.set()
        for thread in self.threads:
            thread.join()


def add_release(home: Home, version: str, *, is_broken: bool = False) -> None:
    """Another release of the embedded engine: the same program, or one that ends at once."""
    (known,) = home.engines.glob(f"xllamacpp-{OLD}/bin/python")
    program = home.engines / f"xllamacpp-{version}" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 3\n" if is_broken else known.read_text())
    program.chmod(0o755)
    (program.parents[1] / "complete").touch()


@pytest.fixture
def gateway(quick_home: Home, free_port: int, tmp_path: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path, url = tmp_path / "firesteel.yaml", f"http://127.0.0.1:{free_port}"
    path.write_text(
        f"listen: 127.0.0.1:{free_port}\nmodels: {{smollm2: {{recipe: smollm2, port: {port}}}}}\n"
    )
    log = (tmp_path / "serve.log").open("wb")
    argv = [sys.executable, "-m", "firesteel", "serve", "-f", str(path)]
    environ = {**os.environ, "FIRESTEEL_HOME": str(quick_home.root)}
    process = subprocess.Popen(argv, stdout=log, stderr=log, env=environ)
    try:
        for _ in range(1200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", free_port)) == 0:
                    break
            assert process.poll() is None, (tmp_path / "serve.log").read_text()
            time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
        log.close()


def runs_on(home: Home) -> str:
    service = load(home, "smollm2")
    assert service is not None
    return (
        next(word for word in service.spec.start if "xllamacpp" in word).split("xllamacpp-")[1].split("/")[0]
    )


@pytest.mark.real
@pytest.mark.skipif(
    bool(os.environ.get("FIRESTEEL_TEST_REAL_ENGINE")), reason="its releases are quick engines"
)
def test_clients_of_the_gateway_see_no_error_while_it_switches(gateway: str, quick_home: Home) -> None:
    add_release(quick_home, NEW)
    add_release(quick_home, BROKEN, is_broken=True)
    clients = Clients(gateway)
    try:
        clients.ask()
        assert runs_on(quick_home) == OLD
        command = ("upgrade", "smollm2", "--unmeasured", "--json")
        ran = run_firesteel(quick_home.root, *command, "--to", NEW)
        assert ran.code == 0, ran.err
        assert (ran.json["outcome"], ran.json["how"]) == ("switched", "beside") and runs_on(quick_home) == NEW
        before = clients.answers
        clients.ask()
        ran = run_firesteel(quick_home.root, *command, "--to", BROKEN)
        assert ran.code == 3 and ran.json["outcome"] == "kept" and "does not serve" in ran.json["reasons"][0]
        assert runs_on(quick_home) == NEW and load(quick_home, "smollm2-next") is None
        ran = run_firesteel(quick_home.root, "upgrade", "smollm2", "--rollback", "--json")
        assert ran.code == 0, ran.err
        assert ran.json["after"]["package"] == f"xllamacpp=={OLD}" and runs_on(quick_home) == OLD
        assert clients.ask()
    finally:
        clients.close()
    assert clients.errors == [] and clients.answers > before
    assert json.loads(quick_home.releases_path.read_text())[0]["previous"]["version"] == "11600"
