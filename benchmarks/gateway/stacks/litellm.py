"""LiteLLM's proxy, one worker, no database, if `litellm` is on the PATH or named by BENCH_LITELLM.

It reads and writes every event anew, so its answers are held against the text and not the bytes.
"""

from __future__ import annotations

import json
import os
import shutil

from stacks import BEARER, KEY, Proxy, Room, free_port, wait_for


def program() -> str | None:
    return shutil.which(os.environ.get("BENCH_LITELLM", "litellm"))


def missing() -> str | None:
    return None if program() else "pip install 'litellm[proxy]' in a venv, and BENCH_LITELLM=VENV/bin/litellm"


def start(room: Room, upstream_port: int) -> Proxy:
    port, config = free_port(), room.folder / "config.yaml"
    where = {"model": "openai/bench", "api_base": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "none"}
    sheet = {
        "model_list": [{"model_name": "bench", "litellm_params": where}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"telemetry": False},
    }
    config.write_text(json.dumps(sheet))  # JSON is YAML
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "NO_DOCS": "True"}
    words = [str(program()), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    child = room.start([*words, "--num_workers", "1"], env)
    wait_for(port, child, room, 120)
    return Proxy(child.pid, port, BEARER, is_exact=False, slowness=20)
