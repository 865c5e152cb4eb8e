"""Does a container see the GPU? Tried with the image itself, once a boot, and remembered."""

from __future__ import annotations

import asyncio
import json
import os
import re
from contextlib import suppress
from pathlib import Path

from firesteel.edge.files.home import Home, write_text
from firesteel.edge.host.process import run
from firesteel.errors import HostNotReady
from firesteel.facts import GpuProcess

TIMEOUT_S = 60
_QUERY = ("--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader")
_MAX_KEPT = 64


async def probe_gpu(image: str, gpus: str) -> tuple[int, str]:
    """`nvidia-smi` inside a container of this image: exit code and what was said. Nothing stays behind."""
    name = f"firesteel-preflight-{os.getpid()}"
    words = ("docker", "run", "--rm", "--name", name, "--gpus", gpus, "--entrypoint", "nvidia-smi", image)
    try:
        return await asyncio.wait_for(run(*words, *_QUERY), TIMEOUT_S)
    except TimeoutError:
        with suppress(TimeoutError):
            await asyncio.wait_for(run("docker", "rm", "--force", name), TIMEOUT_S)
        return 124, f"nvidia-smi in a container did not answer within {TIMEOUT_S} s"


async def image_id(image: str) -> str | None:
    """What this name stands for on this machine; None: it is not here."""
    code, said = await run("docker", "image", "inspect", "--format", "{{.Id}}", image)
    return said.strip() if code == 0 else None


def has_seen_gpu(home: Home, image: str, boot: str | None) -> bool:
    return boot is not None and image in _kept(home, boot)


def remember_gpu(home: Home, image: str, boot: str | None) -> None:
    if boot is None:
        return
    images = [*(each for each in _kept(home, boot) if each != image), image][-_MAX_KEPT:]
    with suppress(HostNotReady):  # a folder that cannot be written only means trying again
        write_text(_path(home), json.dumps({"boot": boot, "images": images}))


def boot_id() -> str | None:
    """Always of the machine itself: a pretend Spark does not boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _kept(home: Home, boot: str) -> list[str]:
    try:
        found = json.loads(_path(home).read_text())
        return [str(each) for each in found["images"]] if found["boot"] == boot else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _path(home: Home) -> Path:
    return home.root / "gpu_in_container.json"


async def foreign_gpu_processes(users: tuple[GpuProcess, ...], own: frozenset[int]) -> tuple[GpuProcess, ...]:
    """Those that are no processes of firesteel's nor children of them, and in no container of its."""
    others = tuple(user for user in users if not own & _ancestry(user.pid))
    if not any(_container_of(user.pid) for user in others):
        return others
    code, said = await run("docker", "ps", "--no-trunc", "--quiet", "--filter", "label=firesteel")
    ours = set(said.split()) if code == 0 else set()
    return tuple(user for user in others if _container_of(user.pid) not in ours)


def _ancestry(number: int) -> set[int]:
    """The process, its parent and so on."""
    found: set[int] = set()
    while number > 1 and number not in found and len(found) < 64:
        found.add(number)
        try:
            stat = Path(f"/proc/{number}/stat").read_text()
        except OSError:
            break
        number = int(stat.rpartition(")")[2].split()[1])
    return found


def _container_of(number: int) -> str | None:
    try:
        match = re.search(r"[0-9a-f]{64}", Path(f"/proc/{number}/cgroup").read_text())
    except OSError:
        return None
    return match[0] if match else None
