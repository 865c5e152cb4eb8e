"""A service over namespace hosts, looked at from outside: files of the head, processes of every host."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hosts.cluster.namespaces import NamespaceHost

NAME = "smollm2"
QUESTION = {"model": NAME, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
LONG = {
    "model": NAME, "prompt": "Once upon a time", "max_tokens": 1900, "temperature": 0, "ignore_eos": True,
}  # fmt: skip
_ENGINES = ("ggml-rpc-server", "llama-server", "VLLM::", "vllm serve")


def cluster_page_commands() -> list[list[str]]:
    """The commands of docs/cluster.md, from top to bottom, without `firesteel`."""
    page = (Path(__file__).parents[3] / "docs/cluster.md").read_text()
    blocks = [text for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", page, re.M | re.S) if not kind]
    return [shlex.split(line)[1:] for text in blocks for line in text.splitlines()]


def equip(head: NamespaceHost, engine: Path, weights: Path) -> None:
    """The head has the weights and the built engine; the nodes have nothing."""
    home = head.folder / "firesteel"
    shutil.copytree(engine, home / "engines" / engine.name, symlinks=True)
    (home / "weights").symlink_to(weights)


def wait_until(what: str, is_so: Callable[[], object], limit_s: float = 180) -> float:
    """How long it took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < limit_s, what
        time.sleep(0.1)
    return time.monotonic() - began


def folder(head: NamespaceHost) -> Path:
    return head.folder / "firesteel" / "services" / NAME


def read(head: NamespaceHost, name: str) -> Any:
    try:
        return json.loads((folder(head) / name).read_text())
    except (OSError, ValueError):
        return {}


def notices(head: NamespaceHost) -> list[str]:
    return list(read(head, "cluster.json").get("notices", []))


def engines_on(host: NamespaceHost) -> list[str]:
    words = (*_ENGINES, "agent.py hold", "agent-", "cluster.runner")
    return [
        line for line in host.processes("") if any(word in line for word in words) and "watch" not in line
    ]


def pids_on(host: NamespaceHost, word: str, without: str = "reaper") -> list[int]:
    """Numbers on that host."""
    rows = host.run("ps", "-ewwo", "pid,args").out.splitlines()
    return [
        int(row.split()[0]) for row in rows if word in row and without not in row and "ps -ewwo" not in row
    ]


def kill(host: NamespaceHost, word: str, without: str = "reaper") -> None:
    numbers = pids_on(host, word, without)
    assert numbers, f"nothing on {host.name} is called {word}"
    host.run("kill", "-9", *map(str, numbers))


def is_ready(head: NamespaceHost) -> bool:
    state, status = read(head, "state.json"), read(head, "cluster.json")
    return (
        state.get("engine") is not None
        and state.get("ended_at") is None
        and state.get("is_proved") is True
        and (folder(head) / "report.json").exists()
        and status.get("phase") == "running"
        and all(node["phase"] == "running" for node in status["nodes"])
    )


def ask(head: NamespaceHost, question: dict[str, Any] | None = None, limit_s: float = 30) -> str:
    """An answer of the engine, or nothing."""
    body, url = json.dumps(question or QUESTION), "http://127.0.0.1:8000/v1/completions"
    return head.run(
        "curl", "-sS", "-m", str(limit_s), "-H", "Content-Type: application/json", "-d", body, url,
        timeout_s=limit_s + 30,
    ).out  # fmt: skip
