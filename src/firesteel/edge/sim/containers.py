"""What the simulated docker has: containers and images, as files, and how its commands read and print.

A container is a record, `containers/ID.json`, and the output of its engine in `containers/ID.log`. There is
no daemon: a container lives while its process does; the first reader after its end records that, and removes
it if it was run with `--rm`. An engine that ends by itself leaves its exit code in `ID.code`; without one it
was killed, which is 137. Images are names: those of the Spark, and those that a pull adds.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from firesteel.edge.home import write_state
from firesteel.edge.host.process import Pid, is_alive
from firesteel.edge.sim.spark import SimSpark
from firesteel.values import Value, from_json, replace

_KILLED = 137
_KEEP_CODE_S = 60


class ContainerRecord(Value):
    id: str
    name: str
    image: str
    command: tuple[str, ...]
    created: float
    labels: Mapping[str, str] = {}
    ports: tuple[tuple[str, int, int], ...] = ()
    """Address, port on the host, port inside."""
    remove: bool = False
    pid: Pid | None = None
    ended: float | None = None
    exit_code: int | None = None

    @property
    def is_running(self) -> bool:
        return self.ended is None and self.pid is not None and is_alive(self.pid)


def file_path(folder: Path, id: str, suffix: str) -> Path:
    """Of a container: `json` its record, `config` that of its engine, `log` its output, `code` its exit code,
    `times` when each line of the log was printed and where it starts."""
    return folder / "containers" / f"{id}.{suffix}"


def open_log(folder: Path, id: str, since: float = 0.0) -> BinaryIO:
    """Its output, from a time on."""
    log = file_path(folder, id, "log").open("rb")
    log.seek(_offset(file_path(folder, id, "times"), since) if since else 0)
    return log


def _offset(times: Path, since: float) -> int:
    last = 0
    for line in times.read_text().splitlines():
        time_text, _, offset = line.partition(" ")
        last = int(offset)
        if float(time_text) >= since:
            return last
    return 2**62 if last else 0


def write(folder: Path, record: ContainerRecord) -> None:
    write_state(file_path(folder, record.id, "json"), record)


def remove(folder: Path, record: ContainerRecord) -> None:
    """Its exit code stays a while: an attached client reads it after the container is gone."""
    for suffix in ("json", "log", "config", "times"):
        file_path(folder, record.id, suffix).unlink(missing_ok=True)
    for path in (folder / "containers").glob("*.code"):
        with suppress(FileNotFoundError):
            age_s = time.time() - path.stat().st_mtime
            if age_s > _KEEP_CODE_S and not path.with_suffix(".json").exists():
                path.unlink()


def refresh(folder: Path, record: ContainerRecord) -> ContainerRecord | None:
    """The record as it is now; None when the container has been removed."""
    if record.ended is None and not record.is_running and record.pid is not None:
        record = replace(record, ended=time.time(), exit_code=exit_code(folder, record.id))
        if record.remove:
            remove(folder, record)
            return None
        write(folder, record)
    return record


def exit_code(folder: Path, id: str) -> int:
    try:
        return int(file_path(folder, id, "code").read_text())
    except (FileNotFoundError, ValueError):
        return _KILLED


def all_records(folder: Path) -> list[ContainerRecord]:
    """Newest first, as `docker ps` lists them."""
    saved = (_read(path) for path in (folder / "containers").glob("*.json"))
    current = (refresh(folder, record) for record in saved if record)
    return sorted((record for record in current if record), key=lambda record: -record.created)


def find(folder: Path, name: str) -> ContainerRecord | None:
    """By name, or by the start of its id."""
    every = all_records(folder)
    named = [record for record in every if record.name == name]
    return next(iter(named or [record for record in every if name and record.id.startswith(name)]), None)


def _read(path: Path) -> ContainerRecord | None:
    try:
        return from_json(ContainerRecord, json.loads(path.read_text()))
    except FileNotFoundError:
        return None


def _pulled(folder: Path) -> list[str]:
    try:
        names: list[str] = json.loads((folder / "images.json").read_text())
    except (FileNotFoundError, ValueError):
        return []
    return names


def has_image(folder: Path, spark: SimSpark, reference: str) -> bool:
    return "*" in spark.images or reference in spark.images or reference in _pulled(folder)


def inspect_image(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, names = read_options(arguments, values={"format", "f"})
    for name in names:
        if not has_image(folder, spark, name):
            raise DockerError(f"Error response from daemon: No such image: {name}")
        show(options, image_document(name), json.dumps([image_document(name)], indent=4))
    return 0


def image_document(reference: str) -> dict[str, Any]:
    """What `docker image inspect` prints of it."""
    digest = f"sha256:{_hash(reference)}"
    repository = reference.rpartition(":")[0] or reference
    return {
        "Id": digest, "RepoTags": [reference], "RepoDigests": [f"{repository}@{digest}"], "Os": "linux",
        "Architecture": "arm64", "Size": 20_000_000_000, "Config": {"Labels": {"simulated": "true"}},
        "RootFS": {"Type": "layers", "Layers": [digest]},
    }  # fmt: skip


def _hash(text: str) -> str:
    """The same in every process, unlike `hash`."""
    return sha256(text.encode()).hexdigest()


def list_images(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, _ = read_options(
        arguments, values={"format", "f", "filter"}, switches={"quiet", "q", "all", "a", "no-trunc"}
    )
    for name in _pulled(folder):
        repository, _, tag = name.rpartition(":")
        row = {"Repository": repository, "Tag": tag, "ID": image_document(name)["Id"]}
        show(options, row, row["ID"] if options.keys() & {"q", "quiet"} else name)
    return 0


def pull_images(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, names = read_options(arguments, values={"platform"}, switches={"quiet", "q"})
    for name in names:
        pull_image(name, folder, spark, quiet=bool(options.keys() & {"quiet", "q"}))
    return 0


def pull_image(name: str, folder: Path, spark: SimSpark, *, quiet: bool) -> None:
    progress: Callable[[str], None] = (lambda line: None) if quiet else out
    repository, _, tag = name.rpartition(":")
    progress(f"{tag}: Pulling from {repository}")
    layers = [_hash(f"{name}{index}")[:12] for index in range(4)]
    for index, layer in enumerate(layers):
        progress(f"{layer}: Pulling fs layer")
        time.sleep(spark.pull_s / len(layers))
        if index == 1 and (failed := spark.fault("pull-fails")):
            raise DockerError(
                failed.lines[0] if failed.lines else f"Error response from daemon: {name}: not found"
            )
        if index == 2 and spark.fault("disk-full"):
            raise DockerError(f"failed to register layer: write /layers/{layer}: no space left on device")
        progress(f"{layer}: Pull complete")
    (folder / "images.json").write_text(json.dumps(sorted({*_pulled(folder), name})))
    progress(f"Digest: {image_document(name)['Id']}")
    out(name if quiet else f"Status: Downloaded newer image for {name}")


def save_images(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    """A simulated archive has the names of its images and nothing else."""
    for name in arguments:
        if not has_image(folder, spark, name):
            raise DockerError(f"Error response from daemon: No such image: {name}")
        out(name)
    return 0


def load_images(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    names = [line.strip() for line in sys.stdin if line.strip()]
    (folder / "images.json").write_text(json.dumps(sorted({*_pulled(folder), *names})))
    for name in names:
        out(f"Loaded image: {name}")
    return 0


FAILED = 125
"""docker's own exit code when docker itself fails."""
DAEMON = "docker: Error response from daemon: "
NO_GPU = f'{DAEMON}could not select device driver "" with capabilities: [[gpu]].'


class DockerError(Exception):
    """docker's error message and exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def read_options(
    arguments: list[str],
    *,
    values: Collection[str] = (),
    switches: Collection[str] = (),
    many: Collection[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Reads `--name value`, `--name=value`, `-n value`; options that are not listed are refused by name."""
    options: dict[str, Any] = {}
    positional: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument == "-":
            positional.append(argument)
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        if name in switches:
            options[name] = True
            continue
        if name not in values:
            raise DockerError(
                f"unknown flag: {argument.partition('=')[0]} (the simulated docker does not know it)", FAILED
            )
        value = value if equals else next(rest, "")
        if name in many:
            options.setdefault(name, []).append(value)
        else:
            options[name] = value
    return options, positional


def show(options: dict[str, Any], document: dict[str, Any], plain: str) -> None:
    """Prints the document as `--format` asks, or the plain text."""
    template = options.get("format") or (None if "filter" in options else options.get("f"))
    if not isinstance(template, str):
        out(plain)
        return
    try:
        out(json.dumps(document) if template == "json" else render(template, document))
    except UnknownAction as error:
        raise DockerError(
            f"template parsing error: the simulated docker does not know `{error}`", 64
        ) from None


def out(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def err(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


_ACTION = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_FIELD = re.compile(r"\.(\w+(?:\.\w+)*)?")
_LABEL = re.compile(r"\.Label \"([^\"]+)\"")
_INDEX = re.compile(r"index \.([\w.]+) (?:\"([^\"]+)\"|(\d+))")


class UnknownAction(ValueError):
    """An action that is not supported here."""


def render(template: str, document: dict[str, Any]) -> str:
    text = template.replace("\\t", "\t").replace("\\n", "\n").removeprefix("table ")
    return _ACTION.sub(lambda match: _action(match[1], document), text)


def _action(action: str, document: dict[str, Any]) -> str:
    if action.startswith("json "):
        return json.dumps(_field(action.removeprefix("json ").strip(), document))
    if label := _LABEL.fullmatch(action):
        return str(document.get("Label", {}).get(label[1], ""))
    if index := _INDEX.fullmatch(action):
        container = _field(f".{index[1]}", document)
        key = index[2] if index[2] is not None else int(index[3])
        try:
            return _text(container[key])
        except (KeyError, IndexError, TypeError):
            return "<no value>"
    return _text(_field(action, document))


def _field(path: str, document: dict[str, Any]) -> Any:
    match = _FIELD.fullmatch(path)
    if match is None:
        raise UnknownAction(path)
    value: Any = document
    for name in match[1].split(".") if match[1] else ():
        if not isinstance(value, dict) or name not in value:
            raise UnknownAction(path)
        value = value[name]
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, dict | list) else str(value)
