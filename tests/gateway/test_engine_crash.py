"""An engine that is killed under its requests: who has heard nothing yet is answered after its return.

The real gateway and the real engine. A request that is not streamed hears nothing until its answer is whole.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.run.service import load, read_proof
from tests.conftest import run_firesteel

pytestmark = pytest.mark.real

_LONG = 1500
"""Tokens of an answer that takes long enough to be interrupted."""


@dataclass(frozen=True)
class Served:
    url: str
    home: Home

    def model(self) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/state", timeout=120) as answer:
            return json.load(answer)["models"][0]

    def until(self, is_so: Callable[[Any], bool]) -> None:
        deadline = time.monotonic() + 300
        while not is_so(self.model()):
            assert time.monotonic() < deadline, self.model()
            time.sleep(0.05)

    def until_busy_again(self, killed: process.Pid) -> process.Pid:
        """The engine that answers a request after that one."""
        self.until(
            lambda model: (
                self.engine() not in (None, killed) and model["phase"] == "ready" and model["busy"] == 1
            )
        )
        engine = self.engine()
        assert engine
        return engine

    def ask(self, tokens: int = 12, *, stream: bool = False) -> str:
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=400, max_retries=0) as client:
            kind: dict[str, Any] = {"extra_body": {"ignore_eos": tokens == _LONG}, "stream": stream}
            answer = client.chat.completions.create(
                model="one",
                messages=[{"role": "user", "content": "Say hello."}],
                max_tokens=tokens,
                temperature=0,
                **kind,
            )
            if stream:
                return "".join(piece.choices[0].delta.content or "" for piece in answer if piece.choices)
            return str(answer.choices[0].message.content)

    def engine(self) -> process.Pid | None:
        """Of a service that is ready."""
        service = load(self.home, "one")
        return service.state.engine if service and service.state and service.phase == "ready" else None


@pytest.fixture
def served(quick_home: Home, tmp_path: Path, free_port: int) -> Iterator[Served]:
    url, file = f"http://127.0.0.1:{free_port}", tmp_path / "service.yaml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        model = f"{{recipe: smollm2, context: 2048, port: {free.getsockname()[1]}}}"
    file.write_text(f"listen: 127.0.0.1:{free_port}\nmodels:\n  one: {model}\n")
    with (tmp_path / "serve.log").open("wb") as log:
        gateway = subprocess.Popen(
            [sys.executable, "-m", "firesteel", "serve", "-f", str(file)],
            stdout=log,
            stderr=log,
            env={**os.environ, "FIRESTEEL_HOME": str(quick_home.root)},
        )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert gateway.poll() is None, (tmp_path / "serve.log").read_text()
            try:
                urllib.request.urlopen(f"{url}/health", timeout=2).close()
                break
            except OSError:
                time.sleep(0.1)
        yield Served(url, quick_home)
    finally:
        gateway.send_signal(signal.SIGTERM)
        gateway.wait(timeout=60)
        run_firesteel(quick_home.root, "down", "--all")


def test_a_request_survives_one_crash_but_not_two(served: Served) -> None:
    assert served.ask()
    assert read_proof(served.home, "one")
    with ThreadPoolExecutor(3) as pool:
        # A frozen engine has read the request and says nothing; then it dies.
        engine = served.engine()
        assert engine
        process.send(engine, signal.SIGSTOP)
        waiting = [pool.submit(served.ask), pool.submit(served.ask, stream=True)]
        # The gateway looks once a second: whoever comes after its look at the frozen engine waits instead.
        served.until(lambda model: model["busy"] + model["waiting"] == 2)
        process.send(engine, signal.SIGKILL)
        assert all(each.result() for each in waiting)
        assert read_proof(served.home, "one") is None, "after a crash it is proved in full"

        long = pool.submit(served.ask, _LONG)
        for _ in range(2):
            engine = served.until_busy_again(engine)
            process.send(engine, signal.SIGKILL)
        with pytest.raises(openai.APIStatusError) as failed:
            long.result()
        assert failed.value.status_code == 502
        assert served.ask(), "nobody else has to wait for it"
