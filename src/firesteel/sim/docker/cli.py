"""The pretend `docker`: the commands that firesteel uses, on pretend containers.

    python -m firesteel.sim.docker.cli run --rm --gpus all IMAGE ...

It knows what it knows, and refuses everything else by name. As with the real one, a container lives on when
the `docker run` that shows its output is killed; a signal that can be caught is passed on to it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from firesteel.edge.host import process
from firesteel.edge.host.machine_files import SIM
from firesteel.sim.docker import images, listing, records
from firesteel.sim.docker.options import FAILED, DockerError, err, out, read_options, show
from firesteel.sim.docker.records import ContainerRecord
from firesteel.sim.spark import SimSpark, read_spark

VERSION = "28.5.1"
_POLL_S = 0.05
_GRACE_S = 10.0
_NO_DAEMON = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
)
KEY = "FIRESTEEL_SIM_KEY"
"""How the key that clients must show reaches the pretend engine: through its environment alone."""
_KEYS = {"vllm": "VLLM_API_KEY", "llamacpp": "LLAMA_API_KEY", "sglang": "SGLANG_API_KEY"}


def main(words: Sequence[str], folder: Path) -> int:
    try:
        return _command(list(words), folder)
    except DockerError as error:
        err(str(error))
        return error.code


def _command(words: list[str], folder: Path) -> int:
    name, rest = (words[0], words[1:]) if words else ("", [])
    if name in ("image", "container"):
        inner = rest[0] if rest else ""
        name, rest = f"{name} {inner}", rest[1:]
    command = _COMMANDS.get(name) or _COMMANDS.get(name.removeprefix("container "))
    if command is None:
        raise DockerError(f"docker: '{name}' is not a command that the pretend docker knows", 1)
    world = read_spark(folder)
    if (gone := world.fault("no-docker")) is not None:
        raise DockerError(gone.lines[0] if gone.lines else _NO_DAEMON)
    return command(rest, folder, world)


# --- what there is ---


def _version(words: list[str], folder: Path, world: SimSpark) -> int:
    about = {
        "Version": VERSION,
        "ApiVersion": "1.51",
        "Os": "linux",
        "Arch": "arm64",
        "KernelVersion": world.kernel,
    }
    options, _ = read_options(words, values={"format", "f"})
    show(options, {"Client": about, "Server": about}, f"Server: pretend docker {VERSION}")
    return 0


def _info(words: list[str], folder: Path, world: SimSpark) -> int:
    options, _ = read_options(words, values={"format", "f"})
    runtimes = {"runc": {"path": "runc"}}
    if not world.fault("no-gpu-in-docker"):
        runtimes["nvidia"] = {"path": "nvidia-container-runtime"}
    about = {
        "ServerVersion": VERSION, "Runtimes": runtimes, "DefaultRuntime": "runc", "CDISpecDirs": [],
        "DockerRootDir": str(folder / "docker"), "OperatingSystem": "pretend Spark",
        "Architecture": "aarch64", "MemTotal": world.memory_total_bytes, "KernelVersion": world.kernel,
    }  # fmt: skip
    show(options, about, "\n".join(f"{key}: {value}" for key, value in about.items()))
    return 0


# --- what runs ---


def _run(words: list[str], folder: Path, world: SimSpark) -> int:
    """Orders the container from a process of its own, which may load the planner and go; this one stays."""
    id = os.urandom(32).hex()
    asked = [sys.executable, "-P", "-m", "firesteel.sim.docker.engine_config", str(folder), id, *words]
    done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DockerError(
            done.stderr.strip() or "docker: the pretend engine cannot be planned", done.returncode
        )
    order = json.loads(done.stdout)
    if order["says"] is not None:  # a program that is no engine, and has said all it says
        sys.stdout.write(order["says"])
        return int(order["code"])
    if not images.has_image(folder, world, order["image"]):
        err(f"Unable to find image '{order['image']}' locally")
        images.pull_one(order["image"], folder, world, quiet=False)
    _refuse_conflicts(order, folder, world)
    record = _start(order, id, folder)
    if order["detach"]:
        out(id)
        return 0
    return _attach(record, folder)


def _refuse_conflicts(order: dict[str, Any], folder: Path, world: SimSpark) -> None:
    daemon = "docker: Error response from daemon: "
    if order["gpus"] and world.fault("no-gpu-in-docker"):
        raise DockerError(f'{daemon}could not select device driver "" with capabilities: [[gpu]].', FAILED)
    taken = records.find(folder, order["name"])
    if taken and taken.name == order["name"]:
        raise DockerError(
            f'{daemon}Conflict. The container name "/{taken.name}" is already in use by container '
            f'"{taken.id}".',
            FAILED,
        )
    for address, port, _ in order["ports"]:
        if not process.port_is_free(port):
            raise DockerError(
                f"{daemon}failed to set up container networking: Bind for {address}:{port} failed: "
                "port is already allocated",
                FAILED,
            )


def _start(order: dict[str, Any], id: str, folder: Path) -> ContainerRecord:
    """The engine in a session of its own; its environment holds what may be secret, its record does not."""
    record = ContainerRecord(
        id, order["name"], order["image"], tuple(order["command"]), time.time(), order["labels"],
        tuple(tuple(row) for row in order["ports"]), order["remove"],
    )  # fmt: skip
    path = folder / "containers" / f"{id}.order"
    path.touch(mode=0o600)
    path.write_text(json.dumps({key: value for key, value in order.items() if key != "env"}))
    words = [sys.executable, "-P", "-m", "firesteel.sim.engine.process", str(folder), id]
    with records.log_path(folder, id).open("ab") as log:
        engine = subprocess.Popen(
            words,
            env={**os.environ, KEY: order["env"].get(_KEYS[order["engine"]], "")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    record = replace(record, pid=process.find(engine.pid) or process.Pid(engine.pid, 0))
    records.write(folder, record)
    return record


def _attach_to(words: list[str], folder: Path, world: SimSpark) -> int:
    options, names = read_options(words, values={"sig-proxy", "detach-keys"}, switches={"no-stdin"})
    record = listing.named(folder, names[0] if names else "")
    if not record.is_running:
        raise DockerError("You cannot attach to a stopped container, start it first")
    return _attach(record, folder, passes_signals=options.get("sig-proxy") != "false", from_now=True)


def _attach(
    record: ContainerRecord, folder: Path, *, passes_signals: bool = True, from_now: bool = False
) -> int:
    """Shows what it prints until it ends; its exit code is ours."""
    assert record.pid is not None
    pid = record.pid
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if passes_signals else ():
        signal.signal(number, lambda got, _: process.send(pid, signal.Signals(got)))
    with records.log_path(folder, record.id).open("rb") as lines:
        if from_now:
            lines.seek(0, os.SEEK_END)
        while True:
            process.has_ended(pid.number)  # reaps it
            alive = process.is_alive(pid)
            if piece := lines.read():
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
            if not alive:
                break
            time.sleep(_POLL_S)
    code = records.exit_code(folder, record.id)
    records.settle(folder, record)
    return code


def _wait(words: list[str], folder: Path, world: SimSpark) -> int:
    _, names = read_options(words)
    record = listing.named(folder, names[0] if names else "")
    while record.is_running:
        time.sleep(_POLL_S)
    out(str(records.exit_code(folder, record.id)))
    records.settle(folder, record)
    return 0


def _stop(words: list[str], folder: Path, world: SimSpark) -> int:
    options, names = read_options(words, values={"time", "t", "timeout", "signal", "s"})
    said = options.get("time") or options.get("timeout") or options.get("t")
    grace = float(said) if isinstance(said, str) else _GRACE_S
    for name in names:
        record = listing.named(folder, name)
        _end(record, signal.SIGTERM, grace)
        records.settle(folder, record)
        out(name)
    return 0


def _kill(words: list[str], folder: Path, world: SimSpark) -> int:
    options, names = read_options(words, values={"signal", "s"})
    said = str(options.get("signal") or options.get("s") or "KILL").upper().removeprefix("SIG")
    number = signal.Signals(int(said)) if said.isdigit() else signal.Signals[f"SIG{said}"]
    for name in names:
        record = listing.named(folder, name)
        if record.pid is None or not record.is_running:
            raise DockerError(f"Error response from daemon: container {name} is not running")
        process.send(record.pid, number)
        if number == signal.SIGKILL:
            _end(record, number, _GRACE_S)
        records.settle(folder, record)
        out(name)
    return 0


def _rm(words: list[str], folder: Path, world: SimSpark) -> int:
    options, names = read_options(words, switches={"force", "f", "volumes", "v"})
    for name in names:
        record = listing.named(folder, name)
        if record.is_running:
            if not options.keys() & {"force", "f"}:
                raise DockerError(
                    "Error response from daemon: cannot remove container: container is running: "
                    f"stop {name} before removal or force remove"
                )
            _end(record, signal.SIGKILL, _GRACE_S)
        records.remove(folder, record)
        out(name)
    return 0


def _end(record: ContainerRecord, number: signal.Signals, grace_s: float) -> None:
    """Politely, then for certain."""
    if record.pid is None:
        return
    process.send(record.pid, number)
    deadline = process.uptime() + grace_s
    while process.is_alive(record.pid) and process.uptime() < deadline:
        time.sleep(_POLL_S)
    process.send(record.pid, signal.SIGKILL)
    deadline = process.uptime() + _GRACE_S
    while process.is_alive(record.pid) and process.uptime() < deadline:
        time.sleep(_POLL_S)


_COMMANDS: dict[str, Callable[[list[str], Path, SimSpark], int]] = {
    "version": _version,
    "info": _info,
    "image inspect": images.inspect,
    "image ls": images.list_all,
    "image pull": images.pull,
    "images": images.list_all,
    "pull": images.pull,
    "run": _run,
    "attach": _attach_to,
    "ps": listing.ps,
    "ls": listing.ps,
    "inspect": listing.inspect,
    "logs": listing.logs,
    "wait": _wait,
    "stop": _stop,
    "kill": _kill,
    "rm": _rm,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(os.environ[SIM])))
