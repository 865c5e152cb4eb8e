"""systemd units and quadlets: `systemd-analyze` accepts them, and they are read back to the same launch."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.errors import UsageError
from firesteel.launch import Container, EngineProgram, FlagValue, Launch, Mount
from firesteel.reads.source_text import source_file
from firesteel.reads.systemd import words
from firesteel.render import LaunchFacts, containerized, pin, quadlet, systemd
from firesteel.render.systemd import native_unit
from firesteel.values import replace
from tests.http_thread import QuietHandler, serving_http
from tests.render.material import (
    ON_ONE,
    SHOWN,
    check_golden,
    facts_of,
    launch_of,
    objections,
    own_objections,
    read_one,
)

ANALYZE = shutil.which("systemd-analyze")
QUADLET = next(
    (path for path in ("/usr/libexec/podman/quadlet", "/usr/lib/podman/quadlet") if Path(path).exists()), None
)
QUADLET_KEYS = frozenset(
    {
        "AddCapability",
        "AddDevice",
        "ContainerName",
        "DropCapability",
        "Entrypoint",
        "Environment",
        "Exec",
        "GroupAdd",
        "HealthCmd",
        "HealthStartPeriod",
        "Image",
        "Label",
        "Network",
        "PodmanArgs",
        "PublishPort",
        "ShmSize",
        "Ulimit",
        "User",
        "Volume",
        "WorkingDir",
    }
)
"""Seen in https://docs.podman.io/en/latest/markdown/podman-container.unit.5.html, 2026-11-15."""


def in_home(launch: Launch) -> Launch:
    """The unit's own word for the user's home."""
    container = launch.container
    assert container is not None
    mounts = tuple(replace(mount, source=mount.source.replace("~/", "%h/", 1)) for mount in container.mounts)
    return replace(launch, container=replace(container, mounts=mounts))


@pytest.mark.parametrize("name", ON_ONE)
def test_every_recipe_as_a_unit_is_read_back(name: str) -> None:
    launch, known = launch_of(name), facts_of(name)
    text = systemd(launch, known)
    expected = in_home(containerized(pin(launch, known)))
    assert expected.container is not None
    options = (*expected.container.options, ("rm", None))
    expected = replace(expected, container=replace(expected.container, options=options))
    found = read_one(text, "x.service")
    assert found == replace(expected, version=found.version)
    assert objections(text, "x.service") <= own_objections(launch)


@pytest.mark.parametrize("name", ON_ONE)
def test_every_recipe_as_a_quadlet_is_read_back(name: str) -> None:
    launch, known = launch_of(name), facts_of(name)
    text = quadlet(launch, known)
    expected = in_home(containerized(pin(launch, known)))
    container = expected.container
    assert container is not None
    image = (
        container.image
        if container.image.startswith(("ghcr.io/", "nvcr.io/"))
        else f"docker.io/{container.image}"
    )
    found = read_one(text, "x.container")
    assert found == replace(expected, version=found.version, container=replace(container, image=image))
    assert objections(text, "x.container") <= own_objections(launch)
    section = text.partition("[Container]\n")[2].partition("\n[Service]")[0].replace("\\\n", " ")
    keys = {line.partition("=")[0] for line in section.splitlines() if line and line[0] not in "# "}
    assert keys <= QUADLET_KEYS


@pytest.mark.parametrize("name", SHOWN)
def test_golden(name: str) -> None:
    check_golden(f"{name}.service", systemd(launch_of(name), facts_of(name)))
    check_golden(f"{name}.container", quadlet(launch_of(name), facts_of(name)))


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", SHOWN)
def test_systemd_itself_accepts_the_unit(name: str, tmp_path: Path) -> None:
    """With `true` in docker's place, which every machine has."""
    unit = tmp_path / "firesteel-test.service"
    text = systemd(launch_of(name), facts_of(name))
    unit.write_text(re.sub(r"^(Exec\w+=-?)docker ", r"\1true ", text, flags=re.MULTILINE))
    done = subprocess.run(
        [str(ANALYZE), "verify", "--user", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert "firesteel-test.service:" not in done.stderr, done.stderr


@pytest.mark.skipif(QUADLET is None, reason="podman's generator is not installed")
@pytest.mark.parametrize("name", SHOWN)
def test_podman_itself_accepts_the_quadlet(name: str, tmp_path: Path) -> None:
    (tmp_path / "firesteel-test.container").write_text(quadlet(launch_of(name), facts_of(name)))
    done = subprocess.run(
        [str(QUADLET), "-dryrun", "-user"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"QUADLET_UNIT_DIRS": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0 and "ExecStart=" in done.stdout, done.stderr


@settings(max_examples=60)
@given(st.text(max_size=20).filter(lambda text: "$" not in text))
def test_any_text_survives_a_unit(value: str) -> None:
    launch = Launch(
        "m", "org/m", "vllm", env={"A": value}, container=Container("x.io/vllm", options=(("rm", None),))
    )
    assert read_one(systemd(launch), "x.service") == launch
    without = replace(launch, container=Container("x.io/vllm"))
    assert read_one(quadlet(without), "x.container") == without


def test_dollars_in_a_unit() -> None:
    flags: dict[str, FlagValue] = {
        "master-addr": "$HEAD",
        "hf-overrides": {"$ref": "%h"},
        "seed": "a${B}$ c %d",
    }
    launch = Launch("m", "org/m", "vllm", flags=flags, container=Container("x/vllm"))
    text = systemd(launch)
    assert "--master-addr $HEAD" in text and '"a${B}$$ c %%d"' in text and r"{\"$$ref\":\"%%h\"}" in text


def test_secrets_come_from_a_file() -> None:
    launch = Launch("m", "org/m", "vllm", env={"HF_TOKEN": "$HF_TOKEN"}, container=Container("x/vllm"))
    unit, container = systemd(launch), quadlet(launch)
    assert "chmod 600\nEnvironmentFile=-%h/.config/firesteel/firesteel-m.env" in unit
    assert "-e HF_TOKEN \\" in unit and "PodmanArgs=--env HF_TOKEN\n" in container
    assert "EnvironmentFile=-%h/.config/firesteel/firesteel-m.env" in container.partition("[Service]")[2]
    assert "EnvironmentFile" not in systemd(replace(launch, env={}))


def test_folders_are_created_first() -> None:
    mounts = (Mount("~/a b", "/x"), Mount("/models", "/m", read_only=True))
    launch = Launch("m", "org/m", "vllm", container=Container("x/vllm", mounts=mounts))
    for text in (systemd(launch), quadlet(launch)):
        assert 'ExecStartPre=mkdir -p "%h/a b"\n' in text.partition("[Service]")[2]


class _Engine(QuietHandler):
    """Answers /health from the second request on, and keeps what it is sent."""

    asked: ClassVar[list[tuple[str, str | None, bytes]]]

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        self.asked.append((self.path, self.headers["Authorization"], body))
        self.send(status=503 if len(self.asked) == 1 else 200)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_unit_warms_the_engine_up(free_port: int) -> None:
    """What systemd would run after the start, run here: it waits for the engine, and not for a dead one."""
    container = Container("x/vllm", gpus="all", publish=(f"0.0.0.0:{free_port}:8000",))
    launch = Launch("it's", "org/m", "vllm", env={"VLLM_API_KEY": "$VLLM_API_KEY"}, container=container)
    unit = systemd(launch)
    assert _post_start(unit) == _post_start(quadlet(launch))
    argv, env = _post_start(unit), {"PATH": os.environ["PATH"], "VLLM_API_KEY": "a key"}
    _Engine.asked = []
    with serving_http(_Engine, free_port):
        subprocess.run(argv, env={**env, "MAINPID": str(os.getpid())}, check=True, timeout=60)
    *waiting, (path, key, body) = _Engine.asked
    assert {path for path, _, _ in waiting} == {"/health"} and len(waiting) == 2
    assert path == "/v1/chat/completions" and key == "Bearer a key" and json.loads(body)["model"] == "it's"
    gone = subprocess.Popen(["true"])
    gone.wait()
    env["MAINPID"] = str(gone.pid)
    done = subprocess.run(argv, env=env, check=False, timeout=60, capture_output=True)
    assert done.returncode != 0  # which `-` in front of the command forgives


def _post_start(unit: str) -> list[str]:
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStartPost=-")]
    file = source_file(line.removeprefix("ExecStartPost=-"), "x.service")
    return [word.text for word in words(file.whole, file)]


def test_it_gives_up() -> None:
    """A slow start three times over is still inside the time over which starts are counted."""
    launch = Launch("m", "org/m", "vllm", container=Container("x/vllm", restart="always"))
    text = systemd(launch, LaunchFacts(start_up_s=3000))
    assert "StartLimitBurst=3" in text and "StartLimitIntervalSec=12000" in text
    assert "--restart" not in text and "--restart" not in quadlet(launch)


def test_gpus_as_podman_names_them() -> None:
    def devices(gpus: str) -> list[str]:
        launch = Launch("m", "org/m", "vllm", container=Container("x/vllm", gpus=gpus))
        return re.findall("AddDevice=nvidia.com/gpu=(.*)", quadlet(launch))

    assert devices("all") == ["all"] and devices("2") == ["0", "1"] and devices('"device=0,3"') == ["0", "3"]


def test_what_a_quadlet_cannot_express() -> None:
    container = Container("x/vllm", mounts=(Mount("/a:b", "/c"),))
    with pytest.raises(UsageError, match="colon"):
        quadlet(Launch("m", "org/m", "vllm", container=container))
    for form in (systemd, quadlet):
        with pytest.raises(UsageError, match="runs on 2 Sparks"):
            form(launch_of("qwen3-235b-gptq-int4-two-sparks"))


LAUNCH = Launch(
    "coder", "/models/a 100 %.gguf", "llamacpp", "11434", {"ctx-size": "4096", "metrics": True},
    {"GGML_CUDA_GRAPHS": "1"}, 8001, program=EngineProgram(("/bin/true",), "11434"),
)  # fmt: skip


def test_the_unit_starts_the_program_itself() -> None:
    text = native_unit(LAUNCH)
    assert "docker" not in text
    assert "Environment=GGML_CUDA_GRAPHS=1\n" in text
    assert 'ExecStart=/bin/true \\\n  --model "/models/a 100 %%.gguf" --host 127.0.0.1 --port 8001' in text


def test_systemd_accepts_it(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "firesteel-coder.service"
    unit.write_text(native_unit(LAUNCH))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert "firesteel-coder" not in done.stderr, done.stderr


def test_a_launch_without_a_program_is_refused() -> None:
    with pytest.raises(UsageError):
        native_unit(Launch("coder", "m", "vllm"))
