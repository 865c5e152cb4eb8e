"""Options of `docker run`, as people write them."""

from __future__ import annotations

import pytest

from firesteel.launch import Container, Mount
from firesteel.reads import docker
from firesteel.reads.shell import split
from firesteel.reads.source_text import SourceFile
from firesteel.units import GIB


def read_container(line: str) -> Container:
    file = SourceFile("run.sh", line)
    (command,) = split(file.whole, file)
    options, image = docker.parse_options(command.words)
    return docker.build_container(command.words[image].text, options, ())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("img", {}),
        ("-d --gpus all --ipc=host img", {"gpus": "all", "ipc": "host"}),
        ("--shm-size 64gb img", {"shm_bytes": 64 * GIB}),
        ("--shm-size=$SHM img", {"options": (("shm-size", "$SHM"),)}),
        ("-p 8000:8000 -p9000:9000 --publish=127.0.0.1:1:1 img", None),
        ("--net host --restart unless-stopped img", {"network": "host", "restart": "unless-stopped"}),
        ("-it --rm img", {"options": (("interactive", None), ("tty", None), ("rm", None))}),
        ("-itp 1:1 img", {"options": (("interactive", None), ("tty", None)), "publish": ("1:1",)}),
        ("--rm=false --init=true img", {"options": (("rm", "false"), ("init", None))}),
        ("--ulimit memlock=-1 --cap-add=SYS_PTRACE img", None),
        ("--some-new-option value img", {"options": (("some-new-option", "value"),)}),
        ("--entrypoint '' img", {"entrypoint": ""}),
        ("--env-file .env -e A=1 img", {"options": (("env-file", ".env"),)}),
        ("-l a=b --label c img", {"labels": {"a": "b", "c": ""}}),
        ("-- img", {}),
    ],
)
def test_options(line: str, expected: dict[str, object] | None) -> None:
    if expected is None and "-p" in line.split():
        expected = {"publish": ("8000:8000", "9000:9000", "127.0.0.1:1:1")}
    elif expected is None:
        expected = {"options": (("ulimit", "memlock=-1"), ("cap-add", "SYS_PTRACE"))}
    assert read_container(line) == Container(image="img", **expected)  # type: ignore[arg-type]  # a table of fields


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("-v ~/vllm:/models", Mount("~/vllm", "/models")),
        ("-v $HOME/m:/models:ro", Mount("$HOME/m", "/models", read_only=True)),
        ("-v ${M:-/m}:/models:rw", Mount("${M:-/m}", "/models")),
        ("--mount type=bind,source=/a,target=/b,readonly", Mount("/a", "/b", read_only=True)),
        ("--mount '\"source=/a,b\",target=/c'", Mount("/a,b", "/c")),
        ("-v /anonymous", None),
        ("-v a:/b:z", None),
        ("--mount type=tmpfs,target=/x", None),
        ("--mount '\"'", None),
    ],
)
def test_mounts(option: str, expected: Mount | None) -> None:
    found = read_container(f"{option} img")
    assert found.mounts == ((expected,) if expected else ())
    assert bool(found.options) is (expected is None)


def test_environment() -> None:
    line = '-e A=1 -eB=2 --env C --env D="$D" -e E=${E} -e F=$G -e H= -e A=3 img'
    file = SourceFile("run.sh", line)
    (command,) = split(file.whole, file)
    options, _ = docker.parse_options(command.words)
    assert docker.environment(options) == {
        "A": "3", "B": "2", "C": "$C", "D": "$D", "E": "$E", "F": "$G", "H": "",
    }  # fmt: skip


def test_a_line_that_ends_early() -> None:
    file = SourceFile("run.sh", "-d --gpus")
    (command,) = split(file.whole, file)
    options, image = docker.parse_options(command.words)
    assert (options[-1].value, image >= len(command.words)) == (None, True)
