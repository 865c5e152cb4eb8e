"""Docker through its command line: is it there, does it have the image, fetch it, stop what is left."""

from __future__ import annotations

import shutil

from firesteel.edge.process import run
from firesteel.errors import FiresteelError, HostNotReady


async def need_docker() -> None:
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


async def has_image(reference: str) -> bool:
    code, _ = await run("docker", "image", "inspect", "--format", "{{.Id}}", reference)
    return code == 0


async def pull_image(reference: str) -> None:
    code, said = await run("docker", "pull", "--quiet", reference)
    if code:
        raise FiresteelError(
            f"docker could not fetch {reference}: {_last(said)}", next=f"docker pull {reference}"
        )


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
