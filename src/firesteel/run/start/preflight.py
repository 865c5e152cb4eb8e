"""Check that this host is ready for a launch, before anything is fetched or started.

    async for event in preflight(proposal, home, again): ...      HostNotReady (exit 5) with what to type

It checks libraries, the disk, the port, docker, the driver for the image's CUDA, whether a container sees the
GPU, what `doctor` would say about the GPU (`host_alarms`), and the memory that other processes leave
(`memory_check.decide_start`). Warnings are events. The GPU is tried only with an image that is already here,
and once per boot: call it again after the image was fetched.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence

from firesteel.edge.docker.containers import DISK_FULL, image_id, last_line, require_docker
from firesteel.edge.docker.gpu import (
    boot_id,
    foreign_gpu_processes,
    has_seen_gpu,
    probe_gpu,
    remember_gpu,
)
from firesteel.edge.home import Home, require_disk_space
from firesteel.edge.host import process
from firesteel.edge.host.memory import KernelLog, gpu_processes, sample, shm
from firesteel.edge.programs.wheels import require_libraries
from firesteel.errors import HostNotReady
from firesteel.facts.host.gpus import oldest_driver
from firesteel.facts.host.hardware import Gpu
from firesteel.facts.host.memory import GpuProcess
from firesteel.launch import Container
from firesteel.planner.memory.account import pool
from firesteel.planner.propose import Proposal
from firesteel.run.down import freed_bytes
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.service import all_services
from firesteel.run.start.host_alarms import host_alarms
from firesteel.run.start.memory_check import LaunchMemory, decide_start
from firesteel.values import Value

OWN_DISK_BYTES = 256 * 2**20
"""For the engine's log, at most twice 64 MiB, and for state. The space for weights and images is checked
where they are fetched."""
_PORTS_TRIED = 100

_TOOLKIT = (
    "sudo apt install nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker "
    "&& sudo systemctl restart docker"
)
_UPGRADE = "sudo apt update && sudo apt full-upgrade, then sudo reboot, then firesteel doctor kexec-handover"


class HostProblem(Value):
    what: str
    next: str


_GPU_PROBLEMS: tuple[tuple[str, str, str], ...] = (
    (r"could not select device driver", "docker cannot give a GPU to a container", _TOOLKIT),
    (r"failed to discover GPU vendor from CDI", "docker cannot give a GPU to a container", _TOOLKIT),
    (r"[Uu]nknown (?:or invalid )?runtime.*nvidia", "docker does not know the nvidia runtime", _TOOLKIT),
    (
        r"unsatisfied condition: (cuda ?>= ?[\d.]+)",
        "the NVIDIA driver is too old for this image, which needs {0}",
        _UPGRADE,
    ),
    (
        r"Driver/library version mismatch",
        "the NVIDIA driver was updated, but the old one is still loaded",
        "sudo reboot",
    ),
    (
        r"nvml error: driver not loaded|couldn't communicate with the NVIDIA driver",
        "the NVIDIA driver is not loaded",
        "sudo modprobe nvidia && nvidia-smi, or sudo reboot",
    ),
    (
        r"Failed to initialize NVML|nvidia-container-cli: (?:initialization|device) error",
        "a container cannot use the GPU",
        "nvidia-smi, and if that works sudo systemctl restart docker",
    ),
    (r"No devices were found", "the NVIDIA driver finds no GPU", "sudo reboot"),
    (r"exec format error", "the image is for another kind of processor", "docker image inspect IMAGE"),
    (r"did not answer within", "the NVIDIA driver does not answer, so the host is in trouble", "sudo reboot"),
    DISK_FULL,
)
"""What docker or nvidia-smi print, what it means, and what to type. Tried in this order."""
_NO_NVIDIA_SMI = re.compile(
    r"executable file not found|nvidia-smi: (?:command )?not found|no such file or directory"
)
"""The image has no nvidia-smi, so nothing is known."""


def gpu_problem(code: int, output: str) -> HostProblem | None:
    """What is wrong, by exit code and output of `nvidia-smi` in a container; None: nothing, or unknown."""
    if code == 0 and re.search(r"\S", output) and "No devices were found" not in output:
        return None
    for pattern, what, hint in _GPU_PROBLEMS:
        if match := re.search(pattern, output):
            return HostProblem(what.format(*match.groups()), hint)
    if _NO_NVIDIA_SMI.search(output):
        return None
    return HostProblem(
        f"a container does not see the GPU: {last_line(output)}",
        "docker run --rm --gpus all IMAGE nvidia-smi",
    )


def driver_problem(gpus: Sequence[Gpu], cuda: str | None) -> HostProblem | None:
    """None also if the CUDA version of the image or the driver of the host is not known."""
    floor = oldest_driver(cuda)
    for gpu in gpus:
        number = re.match(r"\d+", gpu.driver)
        if floor and number and int(number[0]) < floor:
            needs = f"the image has CUDA {cuda}, which needs driver {floor} or newer"
            return HostProblem(f"{needs}; this host has {gpu.driver}", _UPGRADE)
    return None


async def preflight(proposal: Proposal, home: Home, again: str = "") -> AsyncIterator[Event]:
    """`again`: the user's command, to be suggested with another port."""
    yield PhaseProgress("check", "checking this host")
    launch = proposal.plan.launch
    if proposal.is_embedded:
        require_libraries()
    require_disk_space(home.root, OWN_DISK_BYTES, "the engine's log")
    _require_port(
        launch.port, again or f"firesteel up {proposal.asked or proposal.name} --port {launch.port}"
    )
    if launch.container is not None:
        await require_docker()
        cuda = proposal.image.cuda if proposal.image else None
        if launch.container.gpus and (problem := driver_problem(proposal.plan.host.gpus, cuda)):
            raise HostNotReady(problem.what, next=problem.next)
        async for event in _require_gpu(launch.container, home):
            yield event
    if proposal.plan.host.gpus:
        for alarm in await asyncio.to_thread(host_alarms):
            yield PhaseDone("check", f"{alarm.check}: {alarm.says}; {alarm.do}")
    async for event in _require_memory(proposal, home):
        yield event


def _require_port(port: int, again: str) -> None:
    if process.port_is_free(port):
        return
    owner = process.port_owner(port)
    by = f" by {owner}" if owner else ""
    others = range(port + 1, min(port + _PORTS_TRIED, 65536))
    another = next((other for other in others if process.port_is_free(other)), None)
    if another is None:
        hint = f"{again}, with a free --port"
    elif f"--port {port}" in again:
        hint = again.replace(f"--port {port}", f"--port {another}")
    else:  # its port is in a service file
        hint = f"write `port: {another}` in the service file, then {again}"
    raise HostNotReady(f"port {port} is in use{by}", next=hint)


async def _require_gpu(container: Container, home: Home) -> AsyncIterator[Event]:
    image = await image_id(container.image) if container.gpus else None
    boot = boot_id()
    if container.gpus is None or image is None or has_seen_gpu(home, image, boot):
        return
    yield PhaseProgress("check", "checking that a container sees the GPU")
    code, output = await probe_gpu(container.image, container.gpus)
    if problem := gpu_problem(code, output):
        raise HostNotReady(problem.what, next=problem.next.replace("IMAGE", container.image))
    remember_gpu(home, image, boot)
    if code == 0:
        yield PhaseDone("check", f"a container sees {last_line(output)}")


async def _require_memory(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    container = proposal.plan.launch.container
    users = await _other_gpu_users(home) if container and container.gpus else ()
    # A container has a /dev/shm of its own unless it shares the host's.
    uses_host_shm = container is not None and container.ipc == "host"
    log = KernelLog()
    try:
        room = shm() if uses_host_shm else None
        start = decide_start(sample(log), _memory(proposal), users, room, held_bytes(home))
    finally:
        log.close()
    if start.refusal:
        raise HostNotReady(f"{proposal.name} is not started: {start.refusal}", next=start.next)
    for warning in start.warnings:
        yield PhaseDone("check", warning)


def held_bytes(home: Home) -> dict[str, int]:
    """What the host would get back from each service that runs, by name."""
    running = (service for service in all_services(home) if service.phase != "dead")
    return {service.name: freed_bytes(service) for service in running}


async def _other_gpu_users(home: Home) -> tuple[GpuProcess, ...] | None:
    users = await asyncio.to_thread(gpu_processes)
    return None if users is None else await foreign_gpu_processes(users, _own_pids(home))


def _memory(proposal: Proposal) -> LaunchMemory:
    plan = proposal.plan
    peak_bytes = round(plan.memory.needed.expected) if pool(plan.launch, plan.host).is_host_memory else 0
    keep_free = plan.host.keep_free_bytes
    return LaunchMemory(peak_bytes, keep_free, keep_free // 2, is_unified=plan.host.hardware == "gb10")


def _own_pids(home: Home) -> frozenset[int]:
    states = (service.state for service in all_services(home))
    pids = (pid for state in states if state for pid in (state.supervisor, state.engine))
    return frozenset(pid.number for pid in pids if pid and process.is_alive(pid))
