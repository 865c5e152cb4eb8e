"""A simulated Spark for tests: its folder, its docker, and engines that end with the test."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firesteel.edge.host import process
from firesteel.edge.host.machine_files import SIM, machine_file
from firesteel.edge.sim.containers import ContainerRecord, all_records
from firesteel.edge.sim.setup import create_spark, environment
from firesteel.edge.sim.spark import SimSpark
from firesteel.facts.host.hardware import Meminfo

LLAMACPP = (
    "ghcr.io/ggml-org/llama.cpp:server-cuda13", "--hf-repo", "ggml-org/gpt-oss-120b-GGUF:MXFP4",
    "--alias", "oss", "--metrics", "--ctx-size", "16384", "--parallel", "2", "--ubatch-size", "2048",
    "--batch-size", "2048",
)  # fmt: skip
VLLM = (
    "vllm/vllm-openai:v0.28.0",
    "openai/gpt-oss-20b",
    "--served-model-name",
    "oss",
    "--max-model-len",
    "16384",
)


@dataclass
class Spark:
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def docker(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [str(self.folder / "bin/docker"), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)

    def start(
        self, *arguments: str, name: str = "one", env: dict[str, str] | None = None, key: str | None = None
    ) -> Engine:
        """`docker run` in the foreground, as a supervisor does it."""
        port = free_port()
        options = ["--name", name, "--label", f"firesteel={name}", "--rm", "--gpus", "all", "-p"]
        options += [f"127.0.0.1:{port}:{port}"]
        client = subprocess.Popen(
            [str(self.folder / "bin/docker"), "run", *options, *arguments, "--port", str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment(self.folder, os.environ), **(env or {})},
        )
        self.started.append(client)
        return Engine(self, client, f"http://127.0.0.1:{port}", name, key)

    @property
    def memory(self) -> Meminfo:
        """As any reader sees it now."""
        return Meminfo.parse(machine_file("proc/meminfo", {SIM: str(self.folder)}).read_text())

    def end(self) -> None:
        for record in all_records(self.folder):
            if record.pid:
                process.send(record.pid, signal.SIGKILL)
        for client in self.started:
            client.kill()
            client.wait()
            if client.stdout:
                client.stdout.close()


@dataclass
class Engine:
    spark: Spark
    client: subprocess.Popen[str]
    url: str
    name: str
    key: str | None = None

    @property
    def record(self) -> ContainerRecord:
        return next(record for record in all_records(self.spark.folder) if record.name == self.name)

    @property
    def pid(self) -> process.Pid:
        assert self.record.pid is not None
        return self.record.pid

    def until_ready(self) -> Engine:
        until(lambda: self.client.poll() is not None or self.get("/health") == 200)
        assert self.client.poll() is None, self.client.stdout.read() if self.client.stdout else ""
        return self

    def get(self, path: str) -> int:
        """The status; 0 when nothing answers."""
        try:
            with urllib.request.urlopen(self._request(path), timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def text(self, path: str) -> str:
        with urllib.request.urlopen(self._request(path), timeout=120) as response:
            return str(response.read().decode())

    def post(self, path: str, body: dict[str, Any], timeout: float = 30) -> Any:
        request = self._request(path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.loads(response.read())

    def _request(self, path: str, body: bytes | None = None) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return urllib.request.Request(f"{self.url}{path}", body, headers)

    def ask(self, question: str, **more: Any) -> Any:
        return self.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": question}], **more}
        )

    def refusal(self, question: str) -> int:
        """The status of a question that is refused; 200: it was answered."""
        try:
            self.ask(question)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        return 200

    def answer(self, question: str, **more: Any) -> str:
        return str(self.ask(question, **more)["choices"][0]["message"]["content"])

    def log(self) -> str:
        """Its whole output, once it has ended."""
        output, _ = self.client.communicate(timeout=30)
        return output


def spark(folder: Path, description: SimSpark) -> Spark:
    create_spark(folder, description)
    return Spark(folder)


def until(condition: Callable[[], bool], limit_s: float = 300) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
