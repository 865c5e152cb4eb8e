"""Is this host ready for this launch? Looked at before anything is fetched or started.

    async for event in preflight(proposal, home, again): ...      HostNotReady (exit 5) with what to type

Disk, port, docker, the driver for the image's CUDA, a GPU that a container sees, and what memory and the
others on the GPU leave (`guard.may_start`). What is worth a word and no refusal is an event. The GPU is tried
only with an image that is here already, and once a boot: call it again after the image was fetched.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from firesteel.edge.docker.containers import DISK_FULL, need_docker
from firesteel.edge.docker.gpu import boot_id, has_seen_gpu, image_id, remember_gpu, try_gpu, without_ours
from firesteel.edge.files.home import Home, need_disk
from firesteel.edge.host import process
from firesteel.edge.host.kernel_log import KernelLog
from firesteel.edge.host.memory import gpu_users, sample, shm
from firesteel.errors import HostNotReady
from firesteel.facts import Gpu, GpuProcess
from firesteel.launch import Container
from firesteel.planner.memory.pool import pool
from firesteel.rules import Proposal
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.service import all_services
from firesteel.run.supervise.guard import LaunchMemory, decide_start
from firesteel.units import GIB

_OWN_DISK_BYTES = GIB
"""For logs and state. What weights and images need is asked where they are fetched."""
_PORTS_TRIED = 100

_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver for each CUDA, by the major number of both:
https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, seen 2026-11-15"""
_TOOLKIT = (
    "sudo apt install nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker "
    "&& sudo systemctl restart docker"
)
_UPGRADE = "sudo apt update && sudo apt full-upgrade, then sudo reboot"


@dataclass(frozen=True, slots=True)
class HostProblem:
    what: str
    next: str


_GPU_TROUBLES: tuple[tuple[str, str, str], ...] = (
    (r"could not select device driver", "docker cannot hand a GPU to a container", _TOOLKIT),
    (r"failed to discover GPU vendor from CDI", "docker cannot hand a GPU to a container", _TOOLKIT),
    (r"[Uu]nknown (?:or invalid )?runtime.*nvidia", "docker does not know the nvidia runtime", _TOOLKIT),
    (
        r"unsatisfied condition: (cuda ?>= ?[\d.]+)",
        "the NVIDIA driver is too old for this image, which wants {0}",
        _UPGRADE,
    ),
    (r"Driver/library version mismatch", "the NVIDIA driver was updated and not yet loaded", "sudo reboot"),
    (
        r"nvml error: driver not loaded|couldn't communicate with the NVIDIA driver",
        "the NVIDIA driver is not loaded",
        "sudo modprobe nvidia && nvidia-smi, or sudo reboot",
    ),
    (
        r"Failed to initialize NVML|nvidia-container-cli: (?:initialization|device) error",
        "a container does not get at the GPU",
        "nvidia-smi, and if that works sudo systemctl restart docker",
    ),
    (r"No devices were found", "the NVIDIA driver finds no GPU", "sudo reboot"),
    (r"exec format error", "the image is for another kind of processor", "docker image inspect IMAGE"),
    (r"did not answer within", "the NVIDIA driver does not answer, so the host is in trouble", "sudo reboot"),
    DISK_FULL,
)
"""What docker or nvidia-smi say, what it means, and what to type. Tried in this order."""
_NOT_TOLD = re.compile(
    r"executable file not found|nvidia-smi: (?:command )?not found|no such file or directory"
)
"""The image has no nvidia-smi, so it cannot tell."""


def gpu_problem(code: int, said: str) -> HostProblem | None:
    """How `nvidia-smi` in a container ended -> what is wrong; None: nothing, or it cannot tell."""
    if code == 0 and re.search(r"\S", said) and "No devices were found" not in said:
        return None
    for sign, what, hint in _GPU_TROUBLES:
        if match := re.search(sign, said):
            return HostProblem(what.format(*match.groups()), hint)
    if _NOT_TOLD.search(said):
        return None
    return HostProblem(
        f"a container does not see the GPU: {_words(said)}", "docker run --rm --gpus all IMAGE nvidia-smi"
    )


def _words(said: str) -> str:
    """The line that says it: docker ends with a word on its help."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and "--help" not in line]
    return (lines[-1] if lines else "no output")[:300]


def driver_problem(gpus: Sequence[Gpu], cuda: str | None) -> HostProblem | None:
    """None also when the CUDA of the image or the driver of the host is not known."""
    major = re.match(r"\d+", cuda or "")
    floor = _DRIVERS.get(int(major[0])) if major else None
    for gpu in gpus:
        number = re.match(r"\d+", gpu.driver)
        if floor and number and int(number[0]) < floor:
            what = (
                f"the image has CUDA {cuda}, which needs driver {floor} or newer; this host has {gpu.driver}"
            )
            return HostProblem(what, _UPGRADE)
    return None


async def preflight(proposal: Proposal, home: Home, again: str = "") -> AsyncIterator[Event]:
    """`again`: what the user typed, to be typed with another port."""
    yield PhaseProgress("check", "looking at this host")
    launch = proposal.plan.launch
    need_disk(home.root, _OWN_DISK_BYTES, "firesteel's own log")
    _need_port(launch.port, again or f"firesteel up {proposal.asked or proposal.name} --port {launch.port}")
    if launch.container is not None:
        await need_docker()
        cuda = proposal.image.cuda if proposal.image else None
        _refuse(driver_problem(proposal.plan.host.gpus, cuda) if launch.container.gpus else None)
        async for event in _need_gpu(launch.container, home):
            yield event
    async for event in _need_memory(proposal, home):
        yield event


def _refuse(trouble: HostProblem | None) -> None:
    if trouble:
        raise HostNotReady(trouble.what, next=trouble.next)


def _need_port(port: int, again: str) -> None:
    if process.port_is_free(port):
        return
    owner = process.port_owner(port)
    by = f" by {owner}" if owner else ""
    later = range(port + 1, min(port + _PORTS_TRIED, 65536))
    another = next((each for each in later if process.port_is_free(each)), None)
    hint = again.replace(f"--port {port}", f"--port {another}") if another else f"{again}, with a free --port"
    raise HostNotReady(f"port {port} is in use{by}", next=hint)


async def _need_gpu(box: Container, home: Home) -> AsyncIterator[Event]:
    image = await image_id(box.image) if box.gpus else None
    boot = boot_id()
    if box.gpus is None or image is None or has_seen_gpu(home, image, boot):
        return
    yield PhaseProgress("check", "trying the GPU in a container")
    code, said = await try_gpu(box.image, box.gpus)
    trouble = gpu_problem(code, said)
    if trouble:
        raise HostNotReady(trouble.what, next=trouble.next.replace("IMAGE", box.image))
    remember_gpu(home, image, boot)
    if code == 0:
        yield PhaseDone("check", f"a container sees {_words(said)}")


async def _need_memory(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    box = proposal.plan.launch.container
    users = await _others(home) if box and box.gpus else ()
    log = KernelLog()
    try:
        start = decide_start(sample(log), _need(proposal), users, shm() if _shares_memory(box) else None)
    finally:
        log.close()
    if start.refusal:
        raise HostNotReady(f"{proposal.name} is not started: {start.refusal}", next=start.next)
    for warning in start.warnings:
        yield PhaseDone("check", warning)


async def _others(home: Home) -> tuple[GpuProcess, ...] | None:
    users = await asyncio.to_thread(gpu_users)
    return None if users is None else await without_ours(users, _own(home))


def _need(proposal: Proposal) -> LaunchMemory:
    plan = proposal.plan
    takes = round(plan.memory.needed.expected) if pool(plan.launch, plan.host).is_host_memory else 0
    kept = plan.host.keep_free_bytes
    return LaunchMemory(takes, kept, kept // 2, is_unified=plan.host.hardware == "gb10")


def _shares_memory(box: Container | None) -> bool:
    """Uses the host's `/dev/shm`; a container has one of its own unless told otherwise."""
    return box is not None and box.ipc == "host"


def _own(home: Home) -> frozenset[int]:
    states = (service.state for service in all_services(home))
    pids = (pid for state in states if state for pid in (state.supervisor, state.engine))
    return frozenset(pid.number for pid in pids if pid and process.is_alive(pid))
