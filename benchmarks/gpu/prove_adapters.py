"""Serves a model with two LoRA adapters by vLLM of this machine, and writes what was seen as JSON lines.

    PYTHONPATH=src:. python benchmarks/gpu/prove_adapters.py --engine-path ENV --model FOLDER --out FILE

`up --native` with two adapters, the models that the port lists, one question to the model, to both adapters
and to the model again with the probabilities of its first token, `verify`, `down`. FOLDER is SmolLM2-135M as
safetensors (`make_models.py` makes it); the adapters are made here. vLLM's build for CPUs is enough.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.made_adapters import write_peft

QUESTION = "Name three animals that live in the sea."


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine-path", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--port", type=int, default=18766)
    parser.add_argument("--context", default="2048")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="firesteel-adapters-"))
    os.environ.setdefault("FIRESTEEL_HOME", str(work / "home"))
    with options.out.open("a") as out:
        return prove(options, work, out)


def prove(options: argparse.Namespace, work: Path, out: Any) -> int:
    def note(step: str, **values: object) -> None:
        print(json.dumps({"step": step, **values}), file=out, flush=True)
        print(step, {name: str(value)[:300] for name, value in values.items()}, flush=True)

    adapters = {
        "silly": write_peft(work / "silly"),
        "other": write_peft(work / "other", ("v_proj",), rank=8),
    }
    began = time.monotonic()
    code, output = firesteel(
        "up", options.model, "--native", "--engine", "vllm", "--engine-path", options.engine_path,
        "--port", str(options.port), "--context", options.context, "--users", "2",
        *(word for name, path in adapters.items() for word in ("--adapter", f"{name}={path}")), "--json",
    )  # fmt: skip
    document = json.loads(output) if code == 0 else {"output": output[-3000:]}
    note("up", code=code, seconds=round(time.monotonic() - began, 1), document=document)
    if code == 0:
        base = f"http://127.0.0.1:{options.port}/v1"
        served = [row["id"] for row in ask(f"{base}/models")["data"]]
        note("models", served=served)
        own = next(name for name in served if name not in adapters)
        for name in (own, "silly", "other", own):
            note("answer", model=name, **answer(base, name))
        code, output = firesteel("verify", document["name"], "--json")
        note("verify", code=code, document=json.loads(output) if output.startswith("{") else output[-3000:])
    note("down", code=firesteel("down", "--all")[0])
    return code


def answer(base: str, model: str) -> dict[str, object]:
    body = {
        "model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0,
        "max_tokens": 24, "logprobs": True, "top_logprobs": 5,
    }  # fmt: skip
    choice = ask(f"{base}/chat/completions", body)["choices"][0]
    first = {
        row["token"]: round(row["logprob"], 4) for row in choice["logprobs"]["content"][0]["top_logprobs"]
    }
    return {"text": choice["message"]["content"], "first_token": first}


def ask(url: str, body: dict[str, object] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


def firesteel(*words: str) -> tuple[int, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "firesteel", *words], capture_output=True, text=True, check=False
    )
    return ran.returncode, ran.stdout or ran.stderr


if __name__ == "__main__":
    sys.exit(main())
