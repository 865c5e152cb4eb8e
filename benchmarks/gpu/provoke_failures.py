"""Provoke failed starts of vLLM and llama.cpp on a real GPU, and keep their logs as fixtures.

    python benchmarks/gpu/provoke_failures.py --vllm ENV --llamacpp BUILD --models MODELS --gguf FILE \
        --out OUT

MODELS is what `make_models.py` wrote. Either engine may be left out. All starts run at once, so it takes
about as long as the slowest of them; no one takes more than a few GiB of the GPU. OUT gets a log for each and
`failures.jsonl` with the exit code, the seconds, and what `logs --why` says of the log. The words are
the engines' own; folders and the machine's name are made general.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

LIMIT_S = 240
FIRST_PORT = 19100


@dataclass(frozen=True)
class Failure:
    name: str
    flags: tuple[str, ...] = ()
    model: str = "smollm2"
    env: dict[str, str] = field(default_factory=dict)
    takes_port: bool = False
    kill_at: str | None = None
    """Kill the engine with SIGKILL as soon as its log has this text."""
    kills_child: bool = False
    """The process that holds the GPU, not the one that was started."""


EAGER = ("--enforce-eager",)
VLLM = (
    Failure("no-memory", EAGER, model="too-large"),
    Failure("less-free-than-asked", (*EAGER, "--gpu-memory-utilization", "1.0")),
    Failure("wrong-flag", ("--swap-space", "4")),
    Failure("missing-file", EAGER, model="missing-file"),
    Failure("bad-config", model="bad-config"),
    Failure("other-shape", EAGER, model="other-shape"),
    Failure("port-taken", EAGER, takes_port=True),
    Failure("killed-engine-core", EAGER, kill_at="Loading model from scratch", kills_child=True),
    Failure("killed", EAGER, kill_at="Loading model from scratch"),
    Failure("no-flashinfer", (*EAGER, "--attention-backend", "FLASHINFER")),
    Failure("kv-too-small", (*EAGER, "--kv-cache-memory-bytes", "16M", "--max-model-len", "8192")),
    Failure("context-too-long", ("--max-model-len", "100000")),
    Failure("broken-shard", EAGER, model="broken-shard"),
    Failure("no-gpu", EAGER, env={"CUDA_VISIBLE_DEVICES": ""}),
)
LLAMACPP = (
    Failure("no-memory", ("--ctx-size", "16000000", "--parallel", "1", "--fit", "off")),
    Failure("wrong-flag", ("--tensor-parallel-size", "2")),
    Failure("missing-file", model="missing.gguf"),
    Failure("unknown-architecture", model="unknown-architecture.gguf"),
    Failure("broken-file", model="broken.gguf"),
    Failure("port-taken", takes_port=True),
    Failure("killed", kill_at="loading model"),
    Failure("bad-template", ("--jinja", "--chat-template", "{% for m in messages %}{{ m.content }")),
    Failure("quantized-cache", ("--cache-type-v", "q4_0", "--flash-attn", "off")),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", type=Path, help="the environment that has bin/vllm")
    parser.add_argument("--llamacpp", type=Path, help="the build that has bin/llama-server")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of failures, with commas")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    options.out.mkdir(parents=True, exist_ok=True)
    jobs: list[tuple[str, list[str], Failure, int]] = []
    if options.vllm:
        for failure in (each for each in VLLM if not only or each.name in only):
            port = FIRST_PORT + len(jobs)
            argv = [str(options.vllm / "bin/vllm"), "serve", str(options.models / failure.model)]
            argv += ["--host", "127.0.0.1", "--port", str(port), *sizes(failure), *failure.flags]
            jobs.append(("vllm", argv, failure, port))
    if options.llamacpp:
        damage(options.gguf, options.models)
        for failure in (each for each in LLAMACPP if not only or each.name in only):
            port = FIRST_PORT + len(jobs)
            model = options.gguf if failure.model == "smollm2" else options.models / failure.model
            argv = [str(options.llamacpp / "bin/llama-server"), "-m", str(model)]
            argv += ["--host", "127.0.0.1", "--port", str(port), *failure.flags]
            jobs.append(("llamacpp", argv, failure, port))
    with ThreadPoolExecutor(len(jobs)) as pool, (options.out / "failures.jsonl").open("a") as out:
        for row in pool.map(lambda job: provoke(*job, options), jobs):
            print(json.dumps(row), file=out, flush=True)
            print(row, flush=True)
    return 0


def sizes(failure: Failure) -> list[str]:
    """A small share of the GPU, unless the failure is about that."""
    sized = {flag for flag in failure.flags if flag.startswith("--")}
    usual = {"--kv-cache-memory-bytes": "512M", "--gpu-memory-utilization": "0.02", "--max-num-seqs": "4"}
    if "--gpu-memory-utilization" in sized:
        usual.pop("--kv-cache-memory-bytes")  # with it vLLM does not ask how much is free
    return [word for flag, value in usual.items() if flag not in sized for word in (flag, value)]


def damage(gguf: Path, models: Path) -> None:
    data = gguf.read_bytes()
    (models / "broken.gguf").write_bytes(data[: len(data) // 2])
    (models / "unknown-architecture.gguf").write_bytes(data.replace(b"llama", b"llamb", 1))


def provoke(
    engine: str, argv: list[str], failure: Failure, port: int, options: argparse.Namespace
) -> dict[str, object]:
    raw = options.out / f"{engine}-{failure.name}.raw"
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if failure.takes_port:
        taken.bind(("127.0.0.1", port))
        taken.listen()
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **failure.env}
    env.pop("PYTHONPATH", None)
    began = time.monotonic()
    with raw.open("wb") as file:
        process = subprocess.Popen(
            argv, stdout=file, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        has_killed = False
        while process.poll() is None and time.monotonic() - began < LIMIT_S:
            if failure.kill_at and not has_killed and failure.kill_at in raw.read_text(errors="replace"):
                pid = engine_core(process.pid) if failure.kills_child else process.pid
                os.kill(pid, signal.SIGKILL)
                has_killed = True
            time.sleep(0.1)
        ended = process.poll()
        if ended is None or failure.kill_at:
            stop_group(process)
    taken.close()
    log = options.out / f"{engine}-{failure.name}.log"
    log.write_text(general(raw.read_text(errors="replace"), options))
    raw.unlink()
    diagnosis = [sys.executable, "-m", "firesteel", "logs", "--why", str(log), "--json", "--engine", engine]
    said = subprocess.run(diagnosis, capture_output=True, text=True, check=False)
    document = json.loads(said.stdout) if said.stdout.startswith("{") else {"error": said.stderr[-300:]}
    causes = document.get("causes") or []
    return {
        "engine": engine,
        "failure": failure.name,
        "exit_code": ended,
        "seconds": round(time.monotonic() - began, 1),
        "diagnosis": [cause["id"] for cause in causes],
        "state": document.get("state"),
        "suspect": document.get("suspect"),
    }


def engine_core(parent: int) -> int:
    """The child that calls itself EngineCore."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if int(fields[1]) == parent and "EngineCor" in name:
            return int(path.parent.name)
    return parent


def stop_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def general(text: str, options: argparse.Namespace) -> str:
    text = text.replace(str(options.models), "/models").replace(socket.gethostname(), "spark")
    if options.gguf:
        text = text.replace(str(options.gguf.parent), "/models")
    for path, name in ((options.vllm, "/venv"), (options.llamacpp, "/llama.cpp")):
        text = text.replace(str(path), name) if path else text
    base = shutil.which("python3")
    text = text.replace(str(Path(base).resolve().parent.parent), "/python") if base else text
    return "\n".join(line.rstrip() for line in text.split("\n"))


if __name__ == "__main__":
    sys.exit(main())
