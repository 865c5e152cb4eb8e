"""A real gateway on a simulated Spark whose engine crashes at its start: the command hears of it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from firesteel.edge.sim.setup import environment
from tests.conftest import run_firesteel
from tests.edge.sim.spark import free_port

_WAIT_S = 120


def test_a_failed_load_reaches_the_command(tmp_path: Path) -> None:
    assert run_firesteel(tmp_path, "--sim", "crash", "ps").code == 0
    got, file = tmp_path / "got", tmp_path / "firesteel.yaml"
    file.write_text(
        f"listen: 127.0.0.1:{free_port()}\n"
        f"models: {{coder: {{recipe: qwen3.6-35b-a3b-nvfp4, port: {free_port()}}}}}\n"
        f"alerts: {{command: [sh, -c, 'cat > {got}.part && mv {got}.part {got}']}}\n"
    )
    env = environment(tmp_path / "sim", os.environ)
    command = [sys.executable, "-m", "firesteel", "serve", "-f", str(file), "--json"]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    assert gateway.stdout and gateway.stderr
    try:
        assert select.select([gateway.stdout], [], [], _WAIT_S)[0], "it says nothing"
        url = json.loads(gateway.stdout.readline())["url"]
        urllib.request.urlopen(
            urllib.request.Request(f"{url}/api/models/coder/load", method="POST"), timeout=30
        )
        deadline = time.monotonic() + _WAIT_S
        while not got.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        alert = json.loads(got.read_text())
        assert (alert["kind"], alert["state"], alert["subject"]) == ("load_failed", "firing", "coder")
        assert "coder did not load" in alert["text"]
        with urllib.request.urlopen(f"{url}/api/state", timeout=30) as answer:
            (model,) = json.load(answer)["models"]
        assert not model["health"]["ok"] and model["health"]["text"].startswith("its last load failed")
    finally:
        gateway.send_signal(signal.SIGTERM)
        _, said = gateway.communicate(timeout=_WAIT_S)
    assert b"alert: coder did not load" in said
