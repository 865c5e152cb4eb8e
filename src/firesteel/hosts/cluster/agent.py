"""The agent: what runs on a node. One file, the standard library alone, any Python from 3.8 on.

    agent.py start DIR        start the rank that DIR/rank.json describes, detached; its state on stdout
    agent.py hold DIR [PID]   be its holder; with PID, end when that process is no longer the parent
    agent.py watch DIR BYTES  for each line on stdin: renew the lease, print a report (JSON) with
                              what the log has beyond BYTES
    agent.py stop DIR SECONDS end the rank, wait until its processes are gone, print the memory of the host
    agent.py receive FILE SHA256
                              print how much of it is here, append what comes on stdin, compare the digest

The holder has the lock of DIR for as long as it lives, and is the parent of a reaper, which is the parent of
the engine. The lease is the mtime of DIR/lease on the clock since boot: nothing needs to be written to renew
it, so a full disk does not end a rank, and setting the wall clock does not either.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

POLL_S = 0.25
MAX_LOG_BYTES = 64 * 2**20
MAX_CHUNK_BYTES = 256 * 1024
RETRANSMITS = 4
PARTS_S = 2.0
FLOOR_SAMPLES = 4
"""So many samples in a row below the memory floor end the rank."""
SIM = os.environ.get("FIRESTEEL_SIM", "")  # the folder of a simulated Spark, which has memory of its own


def boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def renew(folder: Path) -> None:
    os.utime(folder / "lease", (boot_s(), boot_s()))


def available_bytes() -> int:
    for line in Path(f"{SIM}/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def write_json(path: Path, document: dict[str, Any]) -> None:
    """A full disk is not a reason to abandon the engine."""
    temporary = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps(document))
        temporary.replace(path)


def is_held(folder: Path) -> bool:
    try:
        with (folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


# --- start, hold ---


def start(folder: Path) -> dict[str, Any]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = sys.stdin.read()
    if is_held(folder):
        return {"error": "a rank of this service runs here already"}
    try:
        (folder / "rank.json").write_text(text)
        for name in ("state.json", "stop"):
            (folder / name).unlink(missing_ok=True)
        (folder / "engine.log").write_text("")
        (folder / "lease").touch(mode=0o600)
    except OSError as error:
        return {"error": f"{folder}: {error.strerror}"}
    renew(folder)
    subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "hold", str(folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, cwd="/",
    )  # fmt: skip
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if state := read_json(folder / "state.json"):
            return state
        time.sleep(0.02)
    return {"error": "the rank was not started within 10 s"}


def hold(folder: Path, parent: int) -> int:
    """Start the engine of a rank, keep it until a reason to end it, and write its state; return the exit
    code."""
    lock = (folder / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 1
    rank = read_json(folder / "rank.json")
    stopping: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.append("it was told to stop"))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    reaper = Path(__file__).resolve().parent / rank["reaper"]
    program = Path(rank["argv"][0]).expanduser()
    log = (folder / "engine.log").open("ab")
    try:
        engine = subprocess.Popen(
            [sys.executable, "-I", "-S", str(reaper), str(program), *rank["argv"][1:]],
            env={**os.environ, **rank.get("env", {})}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    except OSError as error:
        write_json(folder / "state.json", {"exit": 127, "why": str(error)})
        return 127
    state = {"holder": os.getpid(), "engine": engine.pid, "exit": None, "why": None}
    write_json(folder / "state.json", state)
    why = wait_for_end(folder, rank, engine, stopping, parent)
    write_json(folder / "state.json", {**state, "why": why, "stopping": True})
    code = end(rank, engine)
    if code == 127 and why is None and shutil.which(str(program)) is None:
        why = f"{program} is not on this host; `firesteel up` copies what it needs"
    write_json(folder / "state.json", {**state, "why": why, "exit": code})
    return code


def wait_for_end(
    folder: Path, rank: dict[str, Any], engine: subprocess.Popen[bytes], stopping: list[str], parent: int
) -> str | None:
    """Why it has to end; None: it ended by itself."""
    parts: dict[int, str] = {}
    low, next_look = 0, 0.0
    while engine.poll() is None:
        if time.monotonic() > next_look:
            before, parts = parts, engine_parts(first_process(folder, rank, engine.pid))
            if lost := [name for number, name in before.items() if number not in parts]:
                return f"its process {lost[0]} was lost"
            next_look = time.monotonic() + PARTS_S
        if stopping or (folder / "stop").exists():
            return "it was told to stop"
        if parent and os.getppid() != parent:
            return "the process that started it is gone"
        age = boot_s() - (folder / "lease").stat().st_mtime
        if age > rank["lease_s"]:
            return f"its lease ran out: it was not renewed for {age:.0f} s"
        low = low + 1 if available_bytes() < rank.get("floor_bytes", 0) else 0
        if low >= FLOOR_SAMPLES:
            return f"the memory guard: {available_bytes() / 2**30:.1f} GiB are available on this host"
        bound_log(folder / "engine.log")
        time.sleep(POLL_S)
    return None


def first_process(folder: Path, rank: dict[str, Any], engine: int) -> int:
    """Of the rank: in its container, or the engine; written down where it has changed."""
    number, state = container_pid(rank) or engine, read_json(folder / "state.json")
    if state.get("first") != number:
        write_json(folder / "state.json", {**state, "first": number})
    return number


def engine_parts(first: int) -> dict[int, str]:
    """The processes that vLLM and SGLang name after their work. They live as long as the engine, and what
    started them may take half a minute to notice that one was killed."""
    found = {}
    for number in descendants(first):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{number}/cmdline").read_bytes().partition(b"\0")[0].decode(errors="replace")
            if name.startswith(("VLLM::", "sglang::")):
                found[number] = name.strip()
    return found


def container_pid(rank: dict[str, Any]) -> int:
    """Of the first process in the rank's container, as this host numbers it; 0: there is none."""
    if not rank.get("stop"):
        return 0
    inspect = ["docker", "inspect", "--format", "{{.State.Pid}}", rank["stop"][-1]]
    with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
        return int(subprocess.run(inspect, capture_output=True, timeout=10, check=False).stdout)
    return 0


def end(rank: dict[str, Any], engine: subprocess.Popen[bytes]) -> int:
    was_alive = engine.poll() is None
    if was_alive:
        stop_container(rank)
        engine.terminate()
    try:
        code = engine.wait(timeout=rank["grace_s"])
    except subprocess.TimeoutExpired:
        for number in [*descendants(engine.pid), engine.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        code = engine.wait()
    if was_alive:  # again: a container that was being created was not there to be stopped
        stop_container(rank)
    return code


def stop_container(rank: dict[str, Any]) -> None:
    if rank.get("stop"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(rank["stop"], timeout=rank["grace_s"] + 30, capture_output=True, check=False)


def bound_log(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.stat().st_size > MAX_LOG_BYTES:
            os.truncate(path, 0)


def descendants(number: int) -> list[int]:
    numbers = [number]
    for parent in numbers:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                numbers += [int(child) for child in path.read_text().split()]
    return numbers[1:]


# --- watch, stop ---


def watch(folder: Path, offset: int) -> int:
    while sys.stdin.readline():
        alive = is_held(folder)
        if alive:
            with contextlib.suppress(OSError):
                renew(folder)
        text, offset = log_after(folder / "engine.log", offset)
        print(json.dumps({**report(folder, alive), "log": text, "offset": offset}), flush=True)
    return 0


def report(folder: Path, alive: bool) -> dict[str, Any]:
    state, rank = read_json(folder / "state.json"), read_json(folder / "rank.json")
    rails = [] if SIM else rank.get("rails", [])  # simulated rails are nowhere
    why = state.get("why")
    if not alive and state.get("exit") is None and why is None:
        why = "its holder was killed" if state else "there is no rank here"
    first = state.get("first") or state.get("engine")
    numbers = [first, *descendants(first)] if alive and first else []
    return {
        "is_alive": alive and state.get("exit") is None and not state.get("stopping"),
        "exit": state.get("exit"), "why": why, "pid": numbers[-1] if numbers else None,
        "resident_bytes": sum(resident_bytes(number) for number in numbers),
        "available_bytes": available_bytes(),
        "carrier": {name: link_value(name, "carrier") == 1 for name in rails},
        "mtu": {name: link_value(name, "mtu") for name in rails},
        "stuck": stuck_connection(rank.get("peers", [])),
    }  # fmt: skip


def resident_bytes(number: int) -> int:
    try:
        if SIM:
            return sum(int(path.read_text()) for path in Path(SIM, "memory").glob(f"{number}-*"))
        return int(Path(f"/proc/{number}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def link_value(name: str, what: str) -> int:
    """0 where it cannot be read: an interface that is down has no readable carrier."""
    try:
        return int(Path(f"/sys/class/net/{name}/{what}").read_text())
    except (OSError, ValueError):
        return 0


def stuck_connection(peers: list[str], table: str = "/proc/net/tcp") -> str | None:
    """`10.77.0.2:50052` where the kernel sends to a peer again and again and hears nothing.

    /proc/net/tcp: local, remote, state (1: established), queues, timer (1: sends again), retransmits so far.
    The fifth is sent about 3 s after the first: a firewall or a smaller MTU on the way is seen like that, and
    only there. What a killed engine left is being closed, which may take minutes, and is not counted. Neither
    is ssh (port 22), which is not a connection between ranks.
    """
    try:
        rows = Path(table).read_text().splitlines()[1:]
    except OSError:
        return None
    for fields in (row.split() for row in rows):
        host, _, port = fields[2].partition(":")
        address = ".".join(str(byte) for byte in reversed(bytes.fromhex(host)))
        if (
            address in peers
            and port != "0016"
            and fields[3] == "01"
            and fields[5][:2] == "01"
            and int(fields[6], 16) >= RETRANSMITS
        ):
            return f"{address}:{int(port, 16)}"
    return None


def log_after(path: Path, offset: int) -> tuple[str, int]:
    try:
        with path.open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            offset = offset if offset <= size else 0  # it was cut because it had grown too large
            log.seek(offset)
            chunk = log.read(MAX_CHUNK_BYTES)
    except OSError:
        return "", offset
    return chunk.decode(errors="replace"), offset + len(chunk)


def stop(folder: Path, limit_s: float) -> dict[str, Any]:
    """Also what outlived a holder that was killed: its reaper ends it within seconds."""
    state, rank = read_json(folder / "state.json"), read_json(folder / "rank.json")
    before = available_bytes()
    with contextlib.suppress(OSError):
        (folder / "stop").touch()
    if is_held(folder) and state.get("holder"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(state["holder"], signal.SIGTERM)  # where a full disk has no room for the file
    deadline = time.monotonic() + limit_s
    while (is_held(folder) or left(state)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if rank.get("stop") and not is_held(folder):  # a container outlives a holder that was killed
        stop_container(rank)
    return {
        "is_stopped": not (is_held(folder) or left(state)), "was": bool(state),
        "available_bytes": available_bytes(), "before_bytes": before,
    }  # fmt: skip


def left(state: dict[str, Any]) -> bool:
    """Whether the reaper of a killed holder is still at it."""
    with contextlib.suppress(OSError):
        return b"reaper" in Path(f"/proc/{state.get('engine') or 'none'}/cmdline").read_bytes()
    return False


# --- receive ---


def receive(path: Path, digest: str) -> int:
    """What came so far stays in `.part`, so an interrupted copy resumes; a wrong digest starts it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("ab") as file:
        print(json.dumps({"offset": file.tell()}), flush=True)
        while chunk := os.read(0, 2**20):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    found = hashlib.sha256()
    with part.open("rb") as file:
        while chunk := file.read(2**20):
            found.update(chunk)
    is_equal = found.hexdigest() == digest
    if is_equal:
        part.replace(path)
    else:
        part.unlink()
    print(json.dumps({"is_equal": is_equal, "sha256": found.hexdigest()}), flush=True)
    return 0


def main(argv: list[str]) -> int:
    os.umask(0o077)
    verb, folder = argv[0], Path(argv[1]).absolute()
    if verb == "hold":
        return hold(folder, int(argv[2]) if len(argv) > 2 else 0)
    if verb == "receive":
        return receive(folder, argv[2])
    if verb == "watch":
        return watch(folder, int(argv[2]))
    print(json.dumps(start(folder) if verb == "start" else stop(folder, float(argv[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
