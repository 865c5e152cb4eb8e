"""What is rendered runs: docker, compose and podman start the real engine from it, on a machine that has none
of its folders yet, and its health check is right.

The image is made here, with a health check on port 8080 as llama.cpp's images have it; Python, curl and the
engine in it are this machine's, mounted read-only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from firesteel.catalog.image import Image
from firesteel.catalog.launches import in_container
from firesteel.edge.home import Home
from firesteel.edge.programs import wheels
from firesteel.launch import Launch, Mount
from firesteel.render import compose, docker
from firesteel.values import replace

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not Path("/usr/bin/curl").exists(), reason="needs curl in /usr/bin"),
]
IMAGE = "localhost/firesteel-test/health:1"
ENTRYPOINT = 'ENTRYPOINT ["/engine/bin/python", "-I", "/server.py"]'
HEALTHCHECK = "HEALTHCHECK CMD curl -f http://localhost:8080/health"
NAME = "firesteel-real"
PODMAN_CONF = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
"""What podman needs inside another container: limits that may be set, no systemd."""


def _find_compose() -> tuple[str, ...] | None:
    for argv in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(argv[0]):
            version = subprocess.run([*argv, "version"], capture_output=True, check=False)
            if version.returncode == 0:
                return argv
    return None


@pytest.fixture
def launch(engine_home: Home, free_port: int, tmp_path: Path) -> Launch:
    weights = next(engine_home.weights.rglob("*.gguf")).resolve()
    start = ("llama-server",)
    image = Image("llamacpp", None, reference=IMAGE, entrypoint=start, gpu=False, health_port=8080)
    flags = {"ctx-size": "512", "threads": "1"}
    made = in_container(Launch("real", str(weights), "llamacpp", flags=flags, port=free_port), image)
    assert made.container is not None
    engine = next(engine_home.engines.glob("*/bin/python")).parent.parent.resolve()
    ours = {"/usr": "/usr", sys.base_prefix: sys.base_prefix, str(engine): "/engine"}
    mounts = [Mount(source, target, read_only=True) for source, target in ours.items()]
    mounts.append(Mount(str(wheels.SERVER), "/server.py", read_only=True))
    mounts.append(Mount(str(tmp_path / "not/there/yet"), "/compiled"))
    return replace(made, container=replace(made.container, mounts=(*made.container.mounts, *mounts)))


def _import_image(*program: str, env: dict[str, str]) -> None:
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("lib", "lib64", "bin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
    argv = [*program, "-", IMAGE]
    subprocess.run(argv, input=packed.getvalue(), check=True, capture_output=True, env=env)


@pytest.fixture
def docker_env(docker_daemon: str) -> Iterator[dict[str, str]]:
    env = {**os.environ, "DOCKER_HOST": docker_daemon}
    _import_image("docker", "import", "-c", ENTRYPOINT, "-c", HEALTHCHECK, env=env)
    yield env
    subprocess.run(["docker", "rm", "--force", NAME], env=env, check=False, capture_output=True)


def _paste(text: str, env: dict[str, str]) -> None:
    done = subprocess.run(["bash", "-c", text], env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _health(env: dict[str, str]) -> str:
    argv = ["docker", "inspect", "--format", "{{.State.Health.Status}}", NAME]
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout.strip()


def _until_healthy(env: dict[str, str]) -> None:
    """docker asks every few seconds while the engine starts."""
    for _ in range(240):
        if (status := _health(env)) == "healthy":
            return
        time.sleep(0.5)
    logs = subprocess.run(["docker", "logs", NAME], env=env, check=False, capture_output=True, text=True)
    raise AssertionError(f"{status}: {logs.stderr[-2000:]}")


def test_a_pasted_docker_run(docker_env: dict[str, str], launch: Launch, tmp_path: Path) -> None:
    _paste(docker(launch), docker_env)
    _until_healthy(docker_env)
    assert (tmp_path / "not/there/yet").stat().st_uid == os.getuid()


def test_a_compose_file(docker_env: dict[str, str], launch: Launch, tmp_path: Path) -> None:
    compose_command = _find_compose()
    if compose_command is None:
        assert os.environ.get("CI") != "true", "scripts/test should have installed it"
        pytest.skip("needs docker compose (Debian: docker-compose)")
    (tmp_path / "compose.yaml").write_text(compose(launch))
    run = [*compose_command, "-f", str(tmp_path / "compose.yaml")]
    done = subprocess.run([*run, "up", "-d"], env=docker_env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    try:
        _until_healthy(docker_env)
    finally:
        subprocess.run([*run, "down"], env=docker_env, check=False, capture_output=True)


@pytest.fixture
def podman_env(tmp_path: Path) -> Iterator[dict[str, str]]:
    if os.geteuid() != 0 or not (shutil.which("podman") and shutil.which("runc")):
        pytest.skip("needs root, podman and runc (Debian: podman, runc)")
    (tmp_path / "containers.conf").write_text(PODMAN_CONF)
    storage = tmp_path / "storage.conf"
    storage.write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/data"\nrunroot = "{tmp_path}/run"\n'
    )
    env = {**os.environ, "CONTAINERS_CONF": str(tmp_path / "containers.conf")}
    env["CONTAINERS_STORAGE_CONF"] = str(storage)
    _import_image("podman", "import", "-c", ENTRYPOINT, env=env)  # it takes no HEALTHCHECK
    yield env
    subprocess.run(["podman", "rm", "--force", "--all"], env=env, check=False, capture_output=True)


def test_a_pasted_podman_run(podman_env: dict[str, str], launch: Launch) -> None:
    """podman creates no folders, and here there is no systemd that would run its health checks."""
    text = docker(launch).replace("docker run", "podman run", 1)
    _paste(text, podman_env)
    check = ["podman", "healthcheck", "run", NAME]
    for _ in range(240):
        done = subprocess.run(check, env=podman_env, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            return
        time.sleep(0.5)
    raise AssertionError(done.stdout + done.stderr)
