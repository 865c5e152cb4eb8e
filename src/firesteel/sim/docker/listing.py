"""What the pretend docker tells of containers: `ps`, `inspect`, `logs`."""

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


def ps(words: list[str], folder: Path, world: SimSpark) -> int:
    options, _ = read_options(
        words,
        values={"filter", "f", "format"},
        switches={"all", "a", "quiet", "q", "no-trunc"},
        many={"filter", "f"},
    )
    wanted = [*options.get("filter", []), *options.get("f", [])]
    for record in records.all_records(folder):
        if (record.is_running or options.keys() & {"all", "a"}) and all(
            _matches(record, each) for each in wanted
        ):
            short = record.id if "no-trunc" in options else record.id[:12]
            row = _row(record, short)
            line = (
                short
                if options.keys() & {"quiet", "q"}
                else f"{short}  {record.image}  {row['Status']}  {record.name}"
            )
            show(options, row, line)
    return 0


def _matches(record: ContainerRecord, wanted: str) -> bool:
    key, _, value = wanted.partition("=")
    if key == "label":
        name, equals, label = value.partition("=")
        return name in record.labels and (not equals or record.labels[name] == label)
    if key == "name":
        return (
            value.strip("^$/") in record.name if value[:1] not in "^/" else value.strip("^$/") == record.name
        )
    if key == "status":
        return bool(value == _state(record)["Status"])
    if key == "id":
        return record.id.startswith(value)
    if key == "ancestor":
        return record.image == value
    raise DockerError(
        f"invalid filter '{key}': the pretend docker knows label, name, status, id and ancestor"
    )


def _row(record: ContainerRecord, short: str) -> dict[str, Any]:
    labels = ",".join(f"{name}={value}" for name, value in record.labels.items())
    ports = ", ".join(f"{address}:{outside}->{inside}/tcp" for address, outside, inside in record.ports)
    state = _state(record)["Status"]
    status = "Up" if record.is_running else f"Exited ({record.exit_code})"
    return {
        "ID": short, "Names": record.name, "Image": record.image, "Labels": labels, "Label": record.labels,
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


def inspect(words: list[str], folder: Path, world: SimSpark) -> int:
    options, names = read_options(words, values={"format", "f", "type"}, switches={"size", "s"})
    for name in names:
        record = records.find(folder, name)
        if record is None:
            if options.get("type") != "container" and images.has_image(folder, world, name):
                show(options, images.about(name), json.dumps([images.about(name)], indent=4))
                continue
            raise DockerError(f"Error response from daemon: No such container: {name}")
        bound: dict[str, list[dict[str, str]]] = {}
        for address, outside, inside in record.ports:
            bound.setdefault(f"{inside}/tcp", []).append({"HostIp": address, "HostPort": str(outside)})
        about = {
            "Id": record.id, "Name": f"/{record.name}", "Created": _time(record.created),
            "State": _state(record), "Image": images.about(record.image)["Id"], "RestartCount": 0,
            "Args": list(record.command), "Config": {"Image": record.image, "Labels": dict(record.labels)},
            "HostConfig": {"AutoRemove": record.remove}, "NetworkSettings": {"Ports": bound},
        }  # fmt: skip
        show(options, about, json.dumps([about], indent=4))
    return 0


def logs(words: list[str], folder: Path, world: SimSpark) -> int:
    options, names = read_options(
        words, values={"tail", "n", "since"}, switches={"follow", "f", "timestamps", "t"}
    )
    record = named(folder, names[0] if names else "")
    since = options.get("since", "")
    text = records.printed(folder, record.id, _seconds(since)).splitlines(keepends=True)
    tail = options.get("tail") or options.get("n")
    if isinstance(tail, str) and tail.isdigit():
        text = text[-int(tail) :] if int(tail) else []
    sys.stdout.write("".join(text))
    sys.stdout.flush()
    if options.keys() & {"follow", "f"} and record.is_running:
        with records.log_path(folder, record.id).open("r", errors="replace") as log:
            log.seek(0, os.SEEK_END)
            while record.is_running:
                sys.stdout.write(log.read())
                sys.stdout.flush()
                time.sleep(_POLL_S)
    return 0


def named(folder: Path, name: str) -> ContainerRecord:
    record = records.find(folder, name)
    if record is None:
        raise DockerError(f"Error response from daemon: No such container: {name}")
    return record


def _seconds(since: str) -> float:
    """`1700000000.25`, or `10m` for so long ago."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", since)
    if since and match is None:
        raise DockerError(f'invalid value for "since": the pretend docker does not know `{since}`')
    if match is None:
        return 0.0
    ago = {"": 0, "s": 1, "m": 60, "h": 3600}[match[2]]
    return time.time() - float(match[1]) * ago if ago else float(match[1])


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
