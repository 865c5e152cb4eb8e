"""The commands of the simulated docker that describe containers: `ps`, `inspect`, `logs`."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from firesteel.sim.docker import images, records
from firesteel.sim.docker.options import DockerError, read_options, show
from firesteel.sim.docker.records import ContainerRecord
from firesteel.sim.spark import SimSpark

_POLL_S = 0.05


def ps(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, _ = read_options(
        arguments,
        values={"filter", "f", "format"},
        switches={"all", "a", "quiet", "q", "no-trunc"},
        many={"filter", "f"},
    )
    filters = [*options.get("filter", []), *options.get("f", [])]
    is_quiet, is_all = options.keys() & {"quiet", "q"}, options.keys() & {"all", "a"}
    for record in records.all_records(folder):
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
        record = records.find(folder, name)
        if record is not None:
            document = _document(record)
        elif options.get("type") != "container" and images.has_image(folder, spark, name):
            document = images.document(name)
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
        "State": _state(record), "Image": images.document(record.image)["Id"], "RestartCount": 0,
        "Args": list(record.command), "Config": {"Image": record.image, "Labels": dict(record.labels)},
        "HostConfig": {"AutoRemove": record.remove}, "NetworkSettings": {"Ports": ports},
    }  # fmt: skip


def logs(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, names = read_options(
        arguments, values={"tail", "n", "since"}, switches={"follow", "f", "timestamps", "t"}
    )
    record = find_container(folder, names)
    since = _seconds(options.get("since", ""))
    lines = records.printed(folder, record.id, since).splitlines(keepends=True)
    tail = options.get("tail") or options.get("n")
    if isinstance(tail, str) and tail.isdigit():
        lines = lines[-int(tail) :] if int(tail) else []
    sys.stdout.write("".join(lines))
    sys.stdout.flush()
    if options.keys() & {"follow", "f"} and record.is_running:
        with records.file_path(folder, record.id, "log").open("r", errors="replace") as log:
            log.seek(0, os.SEEK_END)
            while record.is_running:
                sys.stdout.write(log.read())
                sys.stdout.flush()
                time.sleep(_POLL_S)
    return 0


def find_container(folder: Path, names: list[str]) -> ContainerRecord:
    """The container that the first name means."""
    name = names[0] if names else ""
    record = records.find(folder, name)
    if record is None:
        raise _no_container(name)
    return record


def _no_container(name: str) -> DockerError:
    return DockerError(f"Error response from daemon: No such container: {name}")


def _seconds(since: str) -> float:
    """`1700000000.25`, or `10m` for so long ago."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", since)
    if since and match is None:
        raise DockerError(f'invalid value for "since": the simulated docker does not know `{since}`')
    if match is None:
        return 0.0
    unit_s = {"": 0, "s": 1, "m": 60, "h": 3600}[match[2]]
    return time.time() - float(match[1]) * unit_s if unit_s else float(match[1])


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
