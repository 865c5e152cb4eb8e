"""Whether containers see the GPU: tried with the image itself, once per boot, and remembered."""

from __future__ import annotations

import asyncio
import json
import os
import re
from contextlib import suppress
from pathlib import Path

from firesteel.edge.home import Home, write_text
from firesteel.edge.host.process import run
from firesteel.errors import HostNotReady
from firesteel.facts.host.memory import GpuProcess

TIMEOUT_S = 60
_QUERY = ("--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader")
_MAX_IMAGES = 64


async def probe_gpu(image: str, gpus: str) -> tuple[int, str]:
    """Runs `nvidia-smi` in a container of this image: exit code and output. Nothing is left behind."""
    name = f"firesteel-preflight-{os.getpid()}"
    argv = ("docker", "run", "--rm", "--name", name, "--gpus", gpus, "--entrypoint", "nvidia-smi", image)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await run(*argv, *_QUERY)
    except TimeoutError:
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                await run("docker", "rm", "--force", name)
        return 124, f"nvidia-smi in a container did not answer within {TIMEOUT_S} s"


def has_seen_gpu(home: Home, image: str, boot: str | None) -> bool:
    return boot is not None and image in _seen_images(home, boot)


def remember_gpu(home: Home, image: str, boot: str | None) -> None:
    if boot is None:
        return
    images = [*(known for known in _seen_images(home, boot) if known != image), image][-_MAX_IMAGES:]
    with suppress(HostNotReady):  # if the folder cannot be written, the GPU is only probed again
        write_text(_path(home), json.dumps({"boot": boot, "images": images}))


def _seen_images(home: Home, boot: str) -> list[str]:
    try:
        document = json.loads(_path(home).read_text())
        return [str(image) for image in document["images"]] if document["boot"] == boot else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _path(home: Home) -> Path:
    return home.root / "gpu_in_container.json"


async def foreign_gpu_processes(
    processes: tuple[GpuProcess, ...], own: frozenset[int]
) -> tuple[GpuProcess, ...]:
    """Those that are neither firesteel's own, nor their children, nor in one of its containers."""
    others = tuple(process for process in processes if not own & _ancestors(process.pid))
    if not any(_container_of(process.pid) for process in others):
        return others
    code, output = await run("docker", "ps", "--no-trunc", "--quiet", "--filter", "label=firesteel")
    containers = set(output.split()) if code == 0 else set()
    return tuple(process for process in others if _container_of(process.pid) not in containers)


def _ancestors(pid: int) -> set[int]:
    """The process itself, its parent and so on."""
    pids: set[int] = set()
    while pid > 1 and pid not in pids and len(pids) < 64:
        pids.add(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])  # the parent
    return pids


def _container_of(pid: int) -> str | None:
    try:
        # The cgroup path of a container contains its full id.
        match = re.search(r"[0-9a-f]{64}", Path(f"/proc/{pid}/cgroup").read_text())
    except OSError:
        return None
    return match[0] if match else None
