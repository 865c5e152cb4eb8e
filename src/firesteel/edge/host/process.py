"""Processes: starting them so that they cannot outlive their parent, recognizing, listing and ending them.

A number alone does not identify a process, since the kernel reuses numbers. A Pid here is the number and the
start time in clock ticks since boot, which together identify one process while the machine is up. In a
`MemoryFile` a process publishes data to others of the same user when the disk is full, read-only or stuck.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from firesteel.values import Value

GPU_DEVICES = "/dev/nvidia"
"""How the names of NVIDIA's devices begin: a process that uses a GPU has some of them open."""

_PR_SET_PDEATHSIG = 1
_LEFT_TREE_S = 5.0
_ARGUMENTS_S = 0.001


class Pid(Value):
    number: int
    started_ticks: int


def this_process() -> Pid:
    return find(os.getpid()) or Pid(os.getpid(), 0)


def find(number: int) -> Pid | None:
    """The process that has this number now; None when there is none, or only a zombie."""
    fields = _stat(number)  # state first, start time 20th (man 5 proc)
    if fields is None:
        return None
    # A main thread that has ended is a zombie while other threads still hold the memory and the ports.
    is_dead = fields[0] in "ZX" and int(fields[17]) <= 1
    return None if is_dead else Pid(number, int(fields[19]))


def is_alive(pid: Pid) -> bool:
    return find(pid.number) == pid


def is_stopped(pid: Pid) -> bool:
    """Whether it lives and does not run: stopped by a signal (SIGSTOP, SIGTSTP), state T in man 5 proc."""
    return is_alive(pid) and (fields := _stat(pid.number)) is not None and fields[0] == "T"


class TreeActivity(Value):
    """What a process and its children did so far."""

    cpu_s: float
    """CPU time, in user mode and in the kernel, of children that have ended too."""
    is_stopped: bool
    """One of them is stopped by a signal."""
    resident_bytes: int
    """Memory, mapped files included; what several of them share counts for each."""


def tree_activity(number: int) -> TreeActivity | None:
    """None when there is no such process."""
    stats = [stat for member in tree(number) if (stat := _stat(member))]
    if not stats:
        return None
    ticks = sum(int(value) for stat in stats for value in stat[11:15])
    resident = sum(int(stat[21]) for stat in stats) * os.sysconf("SC_PAGE_SIZE")
    return TreeActivity(ticks / os.sysconf("SC_CLK_TCK"), any(stat[0] == "T" for stat in stats), resident)


def _stat(number: int) -> list[str] | None:
    """The fields of `/proc/N/stat` from the state on. The name before it, in parentheses, may have any
    character, and is cut after 15 bytes, perhaps inside one."""
    try:
        return Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


class ProcessMemory(Value):
    """Memory of a process and its children; what they share with each other counts once."""

    total_bytes: int
    """Includes mapped files as if no other process had them: two engines may share their weights, but each
    needs them."""
    own_bytes: int
    """Excludes mapped files: what the host gets back when the process ends."""


def memory(pid: Pid) -> ProcessMemory:
    own = mapped = 0
    for number in tree(pid.number) if is_alive(pid) else ():
        try:
            rollup = Path(f"/proc/{number}/smaps_rollup").read_text()
            status = Path(f"/proc/{number}/status").read_text(errors="replace")
        except OSError:
            continue
        kib = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
        own += (kib.get("Pss_Anon", 0) + kib.get("Pss_Shmem", 0)) * 1024
        in_files = re.search(r"^RssFile:\s+(\d+) kB$", status, re.M)
        mapped = max(mapped, int(in_files[1]) * 1024 if in_files else 0)  # one of them has the weights
    return ProcessMemory(own + mapped, own)


def held_by_all() -> dict[int, int]:
    """By process, as far as it may be seen: memory that no file backs, which its end would free."""
    held: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            kib = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", path.read_text(errors="replace"), re.M)
            held[int(path.parent.name)] = 1024 * sum(map(int, kib))
    return held


def how_to_stop(number: int) -> tuple[str, str]:
    """Its name, as far as it is known, and the command that ends it with what belongs to it: a container, a
    systemd unit, a job."""
    folder = Path(f"/proc/{number}")
    name, cgroup, owner = "", "", os.geteuid()
    with suppress(OSError):
        name = (folder / "comm").read_text(errors="replace").strip()
        cgroup, owner = (folder / "cgroup").read_text(errors="replace"), folder.stat().st_uid
    sudo = "" if os.geteuid() in (0, owner) else "sudo "
    if container := re.search(r"[0-9a-f]{64}", cgroup):
        return name, f"docker stop {container[0][:12]}"
    if unit := re.search(r"/system\.slice/([\w@.-]+)\.service$", cgroup, re.M):
        return unit[1], f"{'' if os.geteuid() == 0 else 'sudo '}systemctl stop {unit[1]}"
    if unit := re.search(r"/app\.slice/([\w@.-]+)\.service$", cgroup, re.M):
        return unit[1], f"systemctl --user stop {unit[1]}"
    with suppress(OSError):
        job = os.getpgid(number)
        if job not in (number, 0, 1, os.getpgrp()):
            return name, f"{sudo}kill -- -{job}"
    return name, f"{sudo}kill {number}"


def has_gpu(pid: Pid) -> bool:
    """Whether it, or a process below it, has an NVIDIA device open, as far as we may see."""
    for number in tree(pid.number) if is_alive(pid) else ():
        with suppress(OSError):
            files = Path(f"/proc/{number}/fd").iterdir()
            if any(str(file.readlink()).startswith(GPU_DEVICES) for file in files):
                return True
    return False


def tree(number: int) -> list[int]:
    """A process and all below it, parents before their children."""
    numbers = [number]
    for parent in numbers:  # grows while it is read: children of children follow
        numbers += children(parent)
    return numbers


def children(number: int) -> list[int]:
    """The child processes of all its threads."""
    found: list[int] = []
    for task in Path(f"/proc/{number}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            found += map(int, task.read_text().split())
    return found


def with_variable(name: str, value: str) -> list[Pid]:
    """The processes that were started with this variable in their environment, as far as we may see."""
    entry = f"{name}={value}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
        except OSError:  # another user's, or gone by now
            continue
        if entry in environment.split(b"\0") and (pid := find(int(path.parent.name))):
            found.append(pid)
    return found


def die_with_parent() -> None:
    """Call between fork and exec: the kernel kills this process when its parent ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def send(pid: Pid, number: signal.Signals) -> None:
    if is_alive(pid):
        try:
            os.kill(pid.number, number)
        except ProcessLookupError:
            return


def start_detached(argv: list[str], log: Path, environ: Mapping[str, str]) -> int:
    """Starts a process in its own session, so that closing the terminal does not end it; returns its number.

    It inherits none of our open files: a process that reads a pipe to its end would otherwise wait for it."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        actions: list[tuple[object, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, out, 1),
            (os.POSIX_SPAWN_DUP2, out, 2),
            *((os.POSIX_SPAWN_CLOSE, number) for number in _inheritable_files()),
        ]
        number = os.posix_spawn(argv[0], argv, environ, file_actions=actions, setsid=True)
    finally:
        os.close(out)
    # The kernel lets us continue before the arguments can be read, by which `commands` finds a process.
    with suppress(OSError):  # it has already ended
        while find(number) and not Path(f"/proc/{number}/cmdline").read_bytes():
            time.sleep(_ARGUMENTS_S)
    return number


def _inheritable_files() -> list[int]:
    """Open files above 2 that a new program would inherit. Python opens none like that, but what started us
    may have: uvloop leaves its children the ends of their pipes under a second number."""
    numbers = []
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        try:
            if number > 2 and os.get_inheritable(number):
                numbers.append(number)
        except OSError:  # closed by now, like the one that listed the folder
            continue
    return numbers


async def run(*argv: str) -> tuple[int, str]:
    """Exit code and output; a program that does not exist has code 127. Cancelled, it ends with all that it
    has started: `python -m venv` has another Python install pip."""
    import asyncio  # not at the top: a supervisor does without it, and a third of its start-up time

    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except FileNotFoundError:
        return 127, f"{argv[0]}: not found"
    try:
        output, _ = await child.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGSTOP)  # so that it starts nothing more
        for member in tree(child.pid):
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        await child.wait()
        if child.stdout:
            with suppress(TimeoutError):  # of what has left the tree
                async with asyncio.timeout(_LEFT_TREE_S):
                    await child.stdout.read()  # until the last of them is gone
        raise
    return child.returncode or 0, output.decode(errors="replace")


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers set it: connections in TIME_WAIT do not keep the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    # vLLM shares its port (SO_REUSEPORT), and not every kernel refuses another bind then: seen in a sandbox.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        return client.connect_ex((host, port)) != 0


def port_owner(port: int) -> str | None:
    """`nginx (pid 812)`; None when no process listens there, or we may not see which."""
    inodes = {
        fields[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for fields in (line.split() for line in Path(table).read_text().splitlines()[1:])
        if fields[3] == "0A"  # TCP_LISTEN
        and int(fields[1].rpartition(":")[2], 16) == port
    }
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(str(link.readlink()) in sockets for link in folder.iterdir()):
                name = (folder.parent / "comm").read_text(errors="replace").strip()
                return f"{name} (pid {folder.parent.name})"
        except OSError:
            continue
    return None


def now() -> float:
    """The wall clock, for times that people read."""
    return time.time()


def uptime() -> float:
    """The monotonic clock, for measuring and waiting."""
    return time.monotonic()


def has_ended(child: int) -> bool:
    """Whether one of our children has ended; reaps it."""
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:
        return True


def command_lines() -> Iterator[tuple[Pid, tuple[str, ...]]]:
    """Every process with its arguments, as far as we may see them; the oldest first."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = os.fsdecode((folder / "cmdline").read_bytes()).split("\0")[:-1]
        except OSError:
            continue
        pid = find(int(folder.name)) if arguments else None
        if pid:
            found.append((pid, tuple(arguments)))
    yield from sorted(found, key=lambda pair: pair[0].started_ticks)


def oldest_child(pid: Pid) -> Pid | None:
    found = [child for number in children(pid.number) if (child := find(number))]
    return min(found, key=lambda child: child.started_ticks, default=None)


def started_at(pid: Pid) -> float:
    """When it started, by the wall clock."""
    boot = next(
        int(line.split()[1])
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("btime ")
    )
    return boot + pid.started_ticks / os.sysconf("SC_CLK_TCK")


class MemoryFile:
    """A file in memory that other processes of the same user can read while its owner lives: the kernel shows
    it as an open file of its owner, under the name it was given. Raises OSError when it has none to give."""

    def __init__(self, name: str) -> None:
        self._file = os.memfd_create(name)
        self._written_bytes = 0

    def fileno(self) -> int:
        return self._file

    def replace(self, content: bytes) -> None:
        """Replace it in one system call, so that no reader sees half of it. NULs cover the rest of longer
        content."""
        os.pwrite(self._file, content.ljust(self._written_bytes, b"\0"), 0)
        self._written_bytes = max(self._written_bytes, len(content))

    def read(self) -> bytes:
        return os.pread(self._file, os.fstat(self._file).st_size, 0)

    def close(self) -> None:
        os.close(self._file)


def read_memory_file(owner: int, name: str, max_bytes: int) -> bytes:
    """Empty when the process has none of that name, or is another user's."""
    with suppress(OSError):
        for link in Path(f"/proc/{owner}/fd").iterdir():
            if str(link.readlink()).startswith(f"/memfd:{name} "):
                with link.open("rb") as file:
                    return file.read(max_bytes).rstrip(b"\0")
    return b""
