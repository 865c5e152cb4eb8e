"""Docker through its command line: is it available, does it have an image, pull one, which containers run."""

from __future__ import annotations

import shutil
import subprocess

from firesteel.edge.host.process import run
from firesteel.errors import FiresteelError, HostNotReady, printable

_TIMEOUT_S = 10
DISK_FULL = ("no space left on device", "the disk under docker is full", "docker system prune")
"""Docker's message, what it means, and what to type."""


async def require_docker() -> None:
    """Raises when docker is not installed, not running, or not ours to use."""
    if shutil.which("docker") is None:
        raise HostNotReady("docker is not installed", next="sudo apt install docker.io")
    code, output = await run("docker", "version", "--format", "{{.Server.Version}}")
    if code:
        raise docker_unavailable("docker", output)


def docker_unavailable(program: str, output: str) -> HostNotReady:
    """The error for a docker or podman that is installed and does not work."""
    if "permission denied" in output.lower():
        return HostNotReady(
            f"{program} denies you access: you are not in its group",
            next="sudo usermod -aG docker $USER, then log in again",
        )
    return HostNotReady(
        f"{program} does not answer: {last_line(output)}", next=f"sudo systemctl start {program}"
    )


def is_container_running(label: str) -> bool:
    """Whether a container of this service is running; False without docker."""
    return bool(_docker_output("ps", "--quiet", "--filter", f"label=firesteel={label}").strip())


def container_exists(label: str) -> bool:
    """Also one that has stopped and is still to be removed: `docker stop` returns before that."""
    return bool(_docker_output("ps", "--quiet", "--all", "--filter", f"label=firesteel={label}").strip())


def container_pid(label: str) -> int | None:
    """The number of the first process of a service's container, as the host counts; None: none runs."""
    found = _docker_output("ps", "--quiet", "--filter", f"label=firesteel={label}").split()
    output = _docker_output("inspect", "--format", "{{.State.Pid}}", found[0].decode()) if found else b""
    return int(output) if output.strip().isdigit() and int(output) else None


def logs_since(name: str, seconds: float) -> bytes:
    """What a container printed since a time, while no client was attached to it."""
    return _docker_output("logs", "--since", f"{seconds:.3f}", name, stderr=subprocess.STDOUT)


def _docker_output(*arguments: str, stderr: int = subprocess.DEVNULL) -> bytes:
    """Empty when docker is not installed, fails or does not answer."""
    argv = ["docker", *arguments]
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=stderr, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout if done.returncode == 0 else b""


async def image_id(reference: str) -> str | None:
    """The id of the image that has this name on this machine; None: there is none."""
    code, output = await run("docker", "image", "inspect", "--format", "{{.Id}}", reference)
    return output.strip() if code == 0 else None


async def has_image(reference: str) -> bool:
    return await image_id(reference) is not None


async def pull_image(reference: str) -> None:
    code, output = await run("docker", "pull", "--quiet", reference)
    if code == 0:
        return
    failed = f"docker could not pull {reference}"
    sign, what, hint = DISK_FULL
    if sign in output:
        raise HostNotReady(f"{failed}: {what}", next=hint)
    from firesteel.engines.diagnosis import diagnose  # not loaded by a gateway, which pulls nothing

    if cause := diagnose(output, runtime="container").cause:
        kind = HostNotReady if cause.is_host else FiresteelError
        raise kind(f"{failed}: {cause.says} ({last_line(output)})", next=cause.next or "firesteel models")
    raise FiresteelError(
        f"{failed}: {last_line(output)}",
        next=f"firesteel image inspect {reference}, which asks the registry itself whether it is there",
    )


def last_line(output: str) -> str:
    """The last line that says something; docker ends its errors with a pointer to `--help`."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and "--help" not in line]
    return printable(lines[-1][:200]) if lines else "no output"
