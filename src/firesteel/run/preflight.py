"""Check that this host is ready for a launch, before anything is fetched or started.

    async for event in preflight(proposal, home, again): ...      HostNotReady (exit 5) with what to type

It checks libraries, the disk, the port, docker, the driver for the image's CUDA, whether a container sees the
GPU, what `doctor` would say about the GPU (`host_alarms`, also for `ps`), and the memory that other processes
leave (`decide_start`, pure). Warnings are events. The GPU is tried only with an image that is already here,
and once per boot: call it again after the image was fetched.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from itertools import accumulate

from firesteel.edge.docker.containers import DISK_FULL, image_id, last_line, require_docker
from firesteel.edge.docker.gpu import foreign_gpu_processes, has_seen_gpu, probe_gpu, remember_gpu
from firesteel.edge.home import Home, require_disk_space
from firesteel.edge.host import process
from firesteel.edge.host.machine import read_probe
from firesteel.edge.host.machine_files import boot_id, sim_folder
from firesteel.edge.host.memory import KernelLog, gpu_processes, sample, shm
from firesteel.edge.programs.wheels import require_libraries
from firesteel.errors import HostNotReady
from firesteel.facts.host.gpus import oldest_driver
from firesteel.facts.host.hardware import Gpu, Meminfo
from firesteel.facts.host.host_facts import HostFacts
from firesteel.facts.host.memory import GpuProcess, MemorySample, Shm
from firesteel.launch import Container
from firesteel.planner.advice import down, services_to_stop
from firesteel.planner.propose import Proposal
from firesteel.rules.host.findings import HostFinding, judge
from firesteel.run.down import freed_bytes
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.service import all_services
from firesteel.run.start import withheld_variables
from firesteel.run.supervise.guard import MIN_LARGE_BLOCKS_BYTES, NO_KERNEL_LOG
from firesteel.units import GIB, show_bytes
from firesteel.values import Value, replace

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


async def preflight(proposal: Proposal, home: Home, again: str = "") -> AsyncGenerator[Event]:
    """`again`: the user's command, to be suggested with another port."""
    yield PhaseProgress("check", "checking this host")
    launch = proposal.plan.launch
    if proposal.is_embedded:
        require_libraries()
    require_disk_space(home.root, OWN_DISK_BYTES, "the engine's log")
    _require_port(
        launch.port,
        again or f"firesteel up {shlex.quote(proposal.asked or proposal.name)} --port {launch.port}",
    )
    if launch.program and (withheld := withheld_variables(launch.engine, os.environ, launch.env)):
        yield PhaseDone(
            "check",
            f"the engine does not get {', '.join(withheld)}: of your environment only paths, locale, and "
            "what begins with CUDA_ or NVIDIA_ are passed on; write what it needs in `env` of a recipe",
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


async def _require_gpu(container: Container, home: Home) -> AsyncGenerator[Event]:
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


async def _require_memory(proposal: Proposal, home: Home) -> AsyncGenerator[Event]:
    container = proposal.plan.launch.container
    users = await _other_gpu_users(home) if container and container.gpus else ()
    # A container has its own /dev/shm unless it shares the host's.
    uses_host_shm = container is not None and container.ipc == "host"
    log = KernelLog()
    try:
        room = shm() if uses_host_shm else None
        ours, memory = held_bytes(home), sample(log)
        start = decide_start(memory, _memory(proposal), users, room, ours)
        if start.refusal:  # once more, with all that could be stopped
            others = await memory_holders(home, on_gpu=not proposal.plan.is_in_host_memory)
            start = decide_start(memory, _memory(proposal), users, room, ours, others)
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


def _own_pids(home: Home) -> frozenset[int]:
    states = [service.state for service in all_services(home) if service.state]
    pids = [pid for state in states for pid in (state.supervisor, state.engine) if pid]
    return frozenset(pid.number for pid in pids if process.is_alive(pid))


class MemoryHolder(Value):
    """A program that is not ours."""

    name: str
    bytes: int
    """What it holds of the host's memory and, where the driver says so, of the GPU's."""
    stop: str
    """The command that ends it."""

    def __str__(self) -> str:
        return f"{self.name} holds {show_bytes(self.bytes)}"


_SMALL_HOLDER_BYTES = 128 * 2**20


async def memory_holders(home: Home, *, on_gpu: bool = False) -> tuple[MemoryHolder, ...]:
    """What else holds much of the memory, the largest first; what one command stops is one. `on_gpu`: of a
    GPU with memory of its own."""
    held = {} if on_gpu or sim_folder() else await asyncio.to_thread(process.held_by_all)
    names = {}
    for user in await asyncio.to_thread(gpu_processes) or ():
        held[user.pid], names[user.pid] = held.get(user.pid, 0) + (user.used_bytes or 0), user.name
    held.pop(os.getpid(), None)
    large = tuple(GpuProcess(pid, "", size) for pid, size in held.items() if size >= _SMALL_HOLDER_BYTES)
    found: dict[str, MemoryHolder] = {}
    for other in await foreign_gpu_processes(large, _own_pids(home)):
        name, stop = process.how_to_stop(other.pid)
        before = found.get(stop, MemoryHolder(name or names.get(other.pid, stop), 0, stop))
        found[stop] = replace(before, bytes=before.bytes + held[other.pid])
    return tuple(sorted(found.values(), key=lambda holder: -holder.bytes))


def stop_commands(holders: Sequence[MemoryHolder]) -> str:
    """As one line of a shell."""
    return " && ".join(holder.stop for holder in holders)


def holders_to_stop(short_bytes: int, holders: Sequence[MemoryHolder]) -> tuple[MemoryHolder, ...]:
    """The fewest that together free enough; none if all of them would not."""
    for count, freed in enumerate(accumulate(holder.bytes for holder in holders), 1):
        if freed >= short_bytes:
            return tuple(holders[:count])
    return ()


def _memory(proposal: Proposal) -> LaunchMemory:
    plan = proposal.plan
    peak_bytes = round(plan.memory.needed.expected) if plan.is_in_host_memory else 0
    keep_free = plan.host.keep_free_bytes
    return LaunchMemory(peak_bytes, keep_free, keep_free // 2, is_unified=plan.host.hardware == "gb10")


# --- may a launch start in the memory that is left? ---

_LEFTOVER_BYTES = GIB
"""Swap, shared memory or huge pages above this are reported before a start."""


class LaunchMemory(Value):
    """What a launch takes of this host's memory, according to its plan."""

    peak_bytes: int
    """Peak use of host memory. 0: the engine uses a GPU with its own memory."""
    keep_free_bytes: int
    floor_bytes: int
    is_unified: bool = False
    """CUDA then sees only MemFree and counts page cache as used."""
    shm_bytes: int | None = None
    """What it will use of the host's `/dev/shm`; None: it has its own, or unknown."""


class StartDecision(Value):
    refusal: str | None = None
    next: str = ""
    """What to type if it is refused."""
    warnings: tuple[str, ...] = ()


def decide_start(
    sample: MemorySample,
    need: LaunchMemory,
    others: Sequence[GpuProcess] | None = None,
    shm: Shm | None = None,
    ours: Mapping[str, int] | None = None,
    holders: Sequence[MemoryHolder] = (),
) -> StartDecision:
    """`others`: processes on the GPU that are not ours; None: not known. `ours`: what our services hold.
    `holders`: what else holds memory."""
    memory = sample.memory
    if memory is None:
        refusal = "this machine's memory cannot be read, so the memory guard could not work"
        return StartDecision(refusal, "cat /proc/meminfo")
    warnings = (
        *_memory_warnings(memory, need, sample.large_blocks_bytes),
        *_leftovers(memory, shm, need),
        *(_gpu_user_warning(user) for user in others or ()),
        *((NO_KERNEL_LOG,) if sample.kernel is None and need.is_unified else ()),
    )
    if need.peak_bytes > memory.available_bytes - need.floor_bytes:
        refusal = (
            f"it takes {show_bytes(need.peak_bytes)} at its peak; {show_bytes(memory.available_bytes)} are "
            f"available and {show_bytes(need.floor_bytes)} must stay free, or the host hangs"
        )
        short = need.peak_bytes - (memory.available_bytes - need.floor_bytes)
        return StartDecision(refusal, _make_room(short, others or (), ours or {}, holders), warnings)
    return StartDecision(warnings=warnings)


def _make_room(
    short_bytes: int,
    others: Sequence[GpuProcess],
    ours: Mapping[str, int],
    holders: Sequence[MemoryHolder],
) -> str:
    """What to stop; only what frees enough. A process whose use is not known may be it."""
    if stopped := services_to_stop(short_bytes, ours):
        return f"{down(stopped, ours)}, then repeat the command"
    if stops := holders_to_stop(short_bytes, holders):
        return f"{stop_commands(stops)}, then repeat the command"
    largest = max(others, key=lambda user: user.used_bytes or 0, default=None)
    if largest and (largest.used_bytes is None or largest.used_bytes >= short_bytes):
        return f"kill {largest.pid}   # {largest.name}"
    return f"free {show_bytes(short_bytes)} first: ps aux --sort=-rss shows who holds most"


def _gpu_user_warning(user: GpuProcess) -> str:
    holds = f" and holds {show_bytes(user.used_bytes)}" if user.used_bytes is not None else ""
    return f"{user.name} (pid {user.pid}) also uses the GPU{holds}: kill {user.pid}, if it is not needed"


def _memory_warnings(memory: Meminfo, need: LaunchMemory, blocks: int | None) -> Iterator[str]:
    left = memory.available_bytes - need.peak_bytes
    if left < need.keep_free_bytes and need.peak_bytes:
        keep_free = show_bytes(need.keep_free_bytes)
        yield f"it will leave {show_bytes(max(0, left))}, but {keep_free} should stay free"
    if need.is_unified and memory.free_bytes < need.peak_bytes:
        yield (
            f"only {show_bytes(memory.free_bytes)} are free, the rest of the available memory is page cache: "
            "sync; echo 1 | sudo tee /proc/sys/vm/drop_caches"
        )
    if (
        need.is_unified
        and blocks is not None
        and blocks < min(MIN_LARGE_BLOCKS_BYTES, memory.free_bytes // 2)
    ):
        yield (
            f"memory is fragmented, only {show_bytes(blocks)} are free in blocks of 2 MiB or more: "
            "echo 1 | sudo tee /proc/sys/vm/compact_memory"
        )


def _leftovers(memory: Meminfo, shm: Shm | None, need: LaunchMemory) -> Iterator[str]:
    """Memory that other programs left occupied and that an engine could use."""
    if (swapped := memory.swap_used_bytes) and swapped > _LEFTOVER_BYTES:
        yield f"{show_bytes(swapped)} are in swap: sudo swapoff --all && sudo swapon --all"
    if memory.huge_pages_bytes and memory.huge_pages_bytes > _LEFTOVER_BYTES:
        size = show_bytes(memory.huge_pages_bytes)
        yield (f"{size} are reserved as huge pages, which no engine uses: sudo sysctl vm.nr_hugepages=0")
    if shm and shm.used_bytes > _LEFTOVER_BYTES:
        yield f"{show_bytes(shm.used_bytes)} of memory are used by /dev/shm: ls -l /dev/shm"
    if shm and need.shm_bytes and shm.free_bytes < need.shm_bytes:
        yield (
            f"/dev/shm has {show_bytes(shm.free_bytes)} free and {show_bytes(need.shm_bytes)} are needed: "
            f"sudo mount -o remount,size={need.shm_bytes} /dev/shm"
        )


# --- what `doctor` would say right now ---

_ALARM_SECTIONS = (
    "gpu",
    "proc/driver/nvidia/version",
    "kernel",
    "module-version",
    "kernel-log",
    "sensors",
    "dmi",
)
_ALARM_CHECKS = ("driver-match", "clock-under-load", "heat", "power-limits", "kernel-faults")


def host_alarms() -> tuple[HostFinding, ...]:
    """What is wrong now, the worst first. Only checks that take a moment; no host without an NVIDIA GPU."""
    if shutil.which("nvidia-smi") is None:
        return ()
    facts = HostFacts.of(read_probe(only=_ALARM_SECTIONS))
    return tuple(finding for finding in judge(facts, _ALARM_CHECKS) if finding.level in ("stop", "warn"))
