"""The simulated `docker`: the commands that firesteel uses, on simulated containers.

    python -m firesteel.edge.sim.docker run --rm --gpus all IMAGE ...

It refuses commands and options that it does not know, by name. As with the real docker, a container keeps
running when the `docker run` that shows its output is killed; a signal that can be caught is passed on to it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from firesteel.edge.host import process
from firesteel.edge.host.machine_files import SIM
from firesteel.edge.sim import containers
from firesteel.edge.sim.containers import (
    DAEMON,
    FAILED,
    NO_GPU,
    ContainerRecord,
    DockerError,
    err,
    out,
    read_options,
    show,
)
from firesteel.edge.sim.spark import SimSpark, read_spark, update_proc
from firesteel.values import replace

_POLL_S = 0.05


VERSION = "28.5.1"
_GRACE_S = 10.0
_NO_DAEMON = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
)
KEY = "FIRESTEEL_SIM_KEY"
"""The variable that carries the clients' API key to the simulated engine; it is in no file."""
_KEYS = {"vllm": "VLLM_API_KEY", "llamacpp": "LLAMA_API_KEY", "sglang": "SGLANG_API_KEY"}


def main(arguments: Sequence[str], folder: Path) -> int:
    try:
        return _run_command(list(arguments), folder)
    except DockerError as error:
        err(str(error))
        return error.code
    finally:
        update_proc(folder)  # what has ended holds no memory; the agent of a node only reads the file


def _run_command(arguments: list[str], folder: Path) -> int:
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if name in ("image", "container"):
        subcommand = rest[0] if rest else ""
        name, rest = f"{name} {subcommand}", rest[1:]
    command = _COMMANDS.get(name) or _COMMANDS.get(name.removeprefix("container "))
    if command is None:
        raise DockerError(f"docker: '{name}' is not a command that the simulated docker knows", 1)
    spark = read_spark(folder)
    if (fault := spark.fault("no-docker")) is not None:
        raise DockerError(fault.lines[0] if fault.lines else _NO_DAEMON)
    return command(rest, folder, spark)


# --- docker itself ---


def _version(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    about = {
        "Version": VERSION, "ApiVersion": "1.51", "Os": "linux", "Arch": "arm64",
        "KernelVersion": spark.kernel,
    }  # fmt: skip
    options, _ = read_options(arguments, values={"format", "f"})
    show(options, {"Client": about, "Server": about}, f"Server: simulated docker {VERSION}")
    return 0


def _info(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, _ = read_options(arguments, values={"format", "f"})
    runtimes = {"runc": {"path": "runc"}}
    if not spark.fault("no-gpu-in-docker"):
        runtimes["nvidia"] = {"path": "nvidia-container-runtime"}
    about = {
        "ServerVersion": VERSION, "Runtimes": runtimes, "DefaultRuntime": "runc", "CDISpecDirs": [],
        "DockerRootDir": str(folder / "docker"), "OperatingSystem": "simulated Spark",
        "Architecture": "aarch64", "MemTotal": spark.memory_total_bytes, "KernelVersion": spark.kernel,
    }  # fmt: skip
    show(options, about, "\n".join(f"{key}: {value}" for key, value in about.items()))
    return 0


# --- containers ---


def _run(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    # A short-lived process plans the engine, so that this one, which stays, does not load the planner.
    id = os.urandom(32).hex()
    argv = [sys.executable, "-P", "-m", "firesteel.edge.sim.engine_config", str(folder), id, *arguments]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DockerError(
            done.stderr.strip() or "docker: the simulated engine cannot be planned", done.returncode
        )
    config = json.loads(done.stdout)
    if config["output"] is not None:  # a program that is not an engine: this is all it prints
        sys.stdout.write(config["output"])
        return int(config["code"])
    if not containers.has_image(folder, spark, config["image"]):
        err(f"Unable to find image '{config['image']}' locally")
        containers.pull_image(config["image"], folder, spark, quiet=False)
    _refuse_conflicts(config, folder, spark)
    record = _start(config, id, folder)
    if config["detach"]:
        out(id)
        return 0
    return _attach(record, folder)


def _refuse_conflicts(config: dict[str, Any], folder: Path, spark: SimSpark) -> None:
    if config["gpus"] and spark.fault("no-gpu-in-docker"):
        raise DockerError(NO_GPU, FAILED)
    taken = containers.find(folder, config["name"])
    if taken and taken.name == config["name"]:
        raise DockerError(
            f'{DAEMON}Conflict. The container name "/{taken.name}" is already in use by container '
            f'"{taken.id}".',
            FAILED,
        )
    for address, port, _ in config["ports"]:
        if not process.port_is_free(port):
            raise DockerError(
                f"{DAEMON}failed to set up container networking: Bind for {address}:{port} failed: "
                "port is already allocated",
                FAILED,
            )


def _start(config: dict[str, Any], id: str, folder: Path) -> ContainerRecord:
    """Starts the engine in its own session; secrets are in its environment, never in its files."""
    record = ContainerRecord(
        id, config["name"], config["image"], tuple(config["command"]), time.time(), config["labels"],
        tuple(tuple(row) for row in config["ports"]), config["remove"],
    )  # fmt: skip
    path = containers.file_path(folder, id, "config")
    path.touch(mode=0o600)
    path.write_text(json.dumps({key: value for key, value in config.items() if key != "env"}))
    with containers.file_path(folder, id, "log").open("ab") as log:
        engine = subprocess.Popen(
            [sys.executable, "-P", "-m", "firesteel.edge.sim.process", str(folder), id],
            env={**os.environ, KEY: config["env"].get(_KEYS[config["engine"]], "")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    record = replace(record, pid=process.find(engine.pid) or process.Pid(engine.pid, 0))
    containers.write(folder, record)
    return record


def _attach_to(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, names = read_options(arguments, values={"sig-proxy", "detach-keys"}, switches={"no-stdin"})
    record = find_container(folder, names)
    if not record.is_running:
        raise DockerError("You cannot attach to a stopped container, start it first")
    return _attach(record, folder, passes_signals=options.get("sig-proxy") != "false", from_now=True)


def _attach(
    record: ContainerRecord, folder: Path, *, passes_signals: bool = True, from_now: bool = False
) -> int:
    """Shows its output until it ends; returns its exit code."""
    assert record.pid is not None
    pid = record.pid
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if passes_signals else ():
        signal.signal(number, lambda received, _: process.send(pid, signal.Signals(received)))
    with containers.file_path(folder, record.id, "log").open("rb") as log:
        if from_now:
            log.seek(0, os.SEEK_END)
        while True:
            process.has_ended(pid.number)  # reaps it
            # Before reading: what it printed last is read after its end.
            alive = process.is_alive(pid)
            if piece := log.read():
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
            if not alive:
                break
            time.sleep(_POLL_S)
    code = containers.exit_code(folder, record.id)
    containers.refresh(folder, record)
    return code


def _wait(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    _, names = read_options(arguments)
    record = find_container(folder, names)
    while record.is_running:
        time.sleep(_POLL_S)
    out(str(containers.exit_code(folder, record.id)))
    containers.refresh(folder, record)
    return 0


def _stop(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, names = read_options(arguments, values={"time", "t", "timeout", "signal", "s"})
    seconds = options.get("time") or options.get("timeout") or options.get("t")
    grace_s = float(seconds) if isinstance(seconds, str) else _GRACE_S
    for name in names:
        record = find_container(folder, [name])
        _end(record, signal.SIGTERM, grace_s)
        containers.refresh(folder, record)
        out(name)
    return 0


def _kill(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, names = read_options(arguments, values={"signal", "s"})
    given = str(options.get("signal") or options.get("s") or "KILL").upper().removeprefix("SIG")
    number = signal.Signals(int(given)) if given.isdigit() else signal.Signals[f"SIG{given}"]
    for name in names:
        record = find_container(folder, [name])
        if record.pid is None or not record.is_running:
            raise DockerError(f"Error response from daemon: container {name} is not running")
        process.send(record.pid, number)
        if number == signal.SIGKILL:
            _end(record, number, _GRACE_S)
        containers.refresh(folder, record)
        out(name)
    return 0


def _rm(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, names = read_options(arguments, switches={"force", "f", "volumes", "v"})
    for name in names:
        record = find_container(folder, [name])
        if record.is_running:
            if not options.keys() & {"force", "f"}:
                raise DockerError(
                    "Error response from daemon: cannot remove container: container is running: "
                    f"stop {name} before removal or force remove"
                )
            _end(record, signal.SIGKILL, _GRACE_S)
        containers.remove(folder, record)
        out(name)
    return 0


def _end(record: ContainerRecord, number: signal.Signals, grace_s: float) -> None:
    """Sends a signal and waits; then kills."""
    if record.pid is None:
        return
    for sent, limit_s in ((number, grace_s), (signal.SIGKILL, _GRACE_S)):
        process.send(record.pid, sent)
        deadline = process.uptime() + limit_s
        while process.is_alive(record.pid) and process.uptime() < deadline:
            time.sleep(_POLL_S)


def ps(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, _ = read_options(
        arguments,
        values={"filter", "f", "format"},
        switches={"all", "a", "quiet", "q", "no-trunc"},
        many={"filter", "f"},
    )
    filters = [*options.get("filter", []), *options.get("f", [])]
    is_quiet, is_all = options.keys() & {"quiet", "q"}, options.keys() & {"all", "a"}
    for record in containers.all_records(folder):
        if (record.is_running or is_all) and all(_matches(record, filter) for filter in filters):
            id = record.id if "no-trunc" in options else record.id[:12]
            row = _row(record, id)
            show(options, row, id if is_quiet else f"{id}  {record.image}  {row['Status']}  {record.name}")
    return 0


def _matches(record: ContainerRecord, filter: str) -> bool:
    key, _, value = filter.partition("=")
    match key:
        case "label":
            name, equals, label = value.partition("=")
            return name in record.labels and (not equals or record.labels[name] == label)
        case "name":
            name = value.strip("^$/")
            return name == record.name if value[:1] in ("^", "/") else name in record.name
        case "status":
            return bool(value == _state(record)["Status"])
        case "id":
            return record.id.startswith(value)
        case "ancestor":
            return record.image == value
    raise DockerError(
        f"invalid filter '{key}': the simulated docker knows label, name, status, id and ancestor"
    )


def _row(record: ContainerRecord, id: str) -> dict[str, Any]:
    labels = ",".join(f"{name}={value}" for name, value in record.labels.items())
    ports = ", ".join(f"{address}:{outside}->{inside}/tcp" for address, outside, inside in record.ports)
    state = _state(record)["Status"]
    status = "Up" if record.is_running else f"Exited ({record.exit_code})"
    return {
        "ID": id, "Names": record.name, "Image": record.image, "Labels": labels, "Label": record.labels,
        "Status": status, "State": state, "Ports": ports, "Command": " ".join(record.command),
    }  # fmt: skip


def _state(record: ContainerRecord) -> dict[str, Any]:
    running = record.is_running
    return {
        "Status": "running" if running else "created" if record.ended is None else "exited",
        "Running": running,
        "Paused": False,
        "OOMKilled": record.exit_code == 137,
        "Pid": record.pid.number if running and record.pid else 0,
        "ExitCode": record.exit_code or 0,
        "StartedAt": _time(record.created),
        "FinishedAt": _time(record.ended or 0),
    }


def inspect(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, names = read_options(arguments, values={"format", "f", "type"}, switches={"size", "s"})
    for name in names:
        record = containers.find(folder, name)
        if record is not None:
            document = _document(record)
        elif options.get("type") != "container" and containers.has_image(folder, spark, name):
            document = containers.image_document(name)
        else:
            raise _no_container(name)
        show(options, document, json.dumps([document], indent=4))
    return 0


def _document(record: ContainerRecord) -> dict[str, Any]:
    ports: dict[str, list[dict[str, str]]] = {}
    for address, outside, inside in record.ports:
        ports.setdefault(f"{inside}/tcp", []).append({"HostIp": address, "HostPort": str(outside)})
    return {
        "Id": record.id, "Name": f"/{record.name}", "Created": _time(record.created),
        "State": _state(record), "Image": containers.image_document(record.image)["Id"], "RestartCount": 0,
        "Args": list(record.command), "Config": {"Image": record.image, "Labels": dict(record.labels)},
        "HostConfig": {"AutoRemove": record.remove}, "NetworkSettings": {"Ports": ports},
    }  # fmt: skip


def logs(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, names = read_options(
        arguments, values={"tail", "n", "since"}, switches={"follow", "f", "timestamps", "t"}
    )
    record = find_container(folder, names)
    since = _seconds(options.get("since", ""))
    tail = options.get("tail") or options.get("n")
    with containers.open_log(folder, record.id, since) as log:
        lines = log.read().decode(errors="replace").splitlines(keepends=True)
        if isinstance(tail, str) and tail.isdigit():
            lines = lines[-int(tail) :] if int(tail) else []
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
        follows = bool(options.keys() & {"follow", "f"})
        while follows:
            follows = record.is_running  # looked up before the read, which then includes the last line
            sys.stdout.write(log.read().decode(errors="replace"))
            sys.stdout.flush()
            if follows:
                time.sleep(_POLL_S)
    return 0


def find_container(folder: Path, names: list[str]) -> ContainerRecord:
    """The container that the first name means."""
    name = names[0] if names else ""
    record = containers.find(folder, name)
    if record is None:
        raise _no_container(name)
    return record


def _no_container(name: str) -> DockerError:
    return DockerError(f"Error response from daemon: No such container: {name}")


def _seconds(since: str) -> float:
    """`1700000000.25`, or `10m` for ten minutes ago."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", since)
    if since and match is None:
        raise DockerError(f'invalid value for "since": the simulated docker does not know `{since}`')
    if match is None:
        return 0.0
    unit_s = {"": 0, "s": 1, "m": 60, "h": 3600}[match[2]]
    return time.time() - float(match[1]) * unit_s if unit_s else float(match[1])


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


_COMMANDS: dict[str, Callable[[list[str], Path, SimSpark], int]] = {
    "version": _version,
    "info": _info,
    "image inspect": containers.inspect_image,
    "image ls": containers.list_images,
    "image pull": containers.pull_images,
    "images": containers.list_images,
    "pull": containers.pull_images,
    "save": containers.save_images,
    "load": containers.load_images,
    "run": _run,
    "attach": _attach_to,
    "ps": ps,
    "ls": ps,
    "inspect": inspect,
    "logs": logs,
    "wait": _wait,
    "stop": _stop,
    "kill": _kill,
    "rm": _rm,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(os.environ[SIM])))
