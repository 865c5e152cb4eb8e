"""Docker through its command line: is it there, does it have the image, fetch it, stop what is left."""

from __future__ import annotations

import shutil
import subprocess

from firesteel.edge.host.process import run
from firesteel.errors import FiresteelError, HostNotReady

_PATIENCE_S = 10
DISK_FULL = ("no space left on device", "the disk under docker is full", "docker system prune")
"""What docker says, what it means, and what to type."""


async def require_docker() -> None:
    """Raises when docker is not installed, not running, or not ours to use."""
    if shutil.which("docker") is None:
        raise HostNotReady("docker is not installed", next="sudo apt install docker.io")
    code, said = await run("docker", "version", "--format", "{{.Server.Version}}")
    if code == 0:
        return
    if "permission denied" in said.lower():
        raise HostNotReady(
            "docker refuses you: you are not in its group",
            next="sudo usermod -aG docker $USER, then log in again",
        )
    raise HostNotReady(f"docker does not answer: {_last(said)}", next="sudo systemctl start docker")


def is_container_running(label: str) -> bool:
    """Is there a running container that was started as this service? No docker, no container."""
    return _lists(label)


def container_exists(label: str) -> bool:
    """The same, or what docker has yet to remove of it: `docker stop` returns before that is done."""
    return _lists(label, "--all")


def _lists(label: str, *options: str) -> bool:
    words = ["docker", "ps", "--quiet", *options, "--filter", f"label=firesteel={label}"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def logs_since(name: str, seconds: float) -> bytes:
    """What a container printed since then, while nobody wrote it down."""
    words = ["docker", "logs", "--since", f"{seconds:.3f}", name]
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout if done.returncode == 0 else b""


async def has_image(reference: str) -> bool:
    code, _ = await run("docker", "image", "inspect", "--format", "{{.Id}}", reference)
    return code == 0


async def pull_image(reference: str) -> None:
    code, said = await run("docker", "pull", "--quiet", reference)
    if code == 0:
        return
    failed = f"docker could not fetch {reference}"
    sign, what, hint = DISK_FULL
    if sign in said:
        raise HostNotReady(f"{failed}: {what}", next=hint)
    raise FiresteelError(f"{failed}: {_last(said)}", next=f"docker pull {reference}")


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip() and "--help" not in line]
    return lines[-1] if lines else "no output"
