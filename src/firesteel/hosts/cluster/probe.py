"""The probe: reads a node, and tries its links. One file, the standard library alone, any Python from 3.8 on.

    probe.py facts                      what the node is, as one JSON document
    probe.py listen ADDRESS             print a port, then echo datagrams and swallow TCP until stdin ends
    probe.py reach ADDRESS PORT BYTES SECONDS
                                        try that port: round trip, a whole packet of BYTES, then lost packets
                                        and throughput

Nothing is changed, nothing needs root. A whole packet is a datagram that may not be fragmented: what
`ping -M do -s` tries, without needing ping.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
"""Not in Python's `socket`. PROBE: never fragment, and do not ask what was learned about the path."""
UDP_HEADERS = 28
TRIES = 3
PACKETS = 100


def facts() -> dict[str, Any]:
    return {
        "hostname": socket.gethostname(),
        "home": str(Path.home()),
        "time_s": time.time(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "driver": driver(),
        "bios": read("/sys/class/dmi/id/bios_version"),
        "product": read("/sys/class/dmi/id/product_name"),
        "docker": output("docker", "version", "--format", "{{.Server.Version}}"),
        "memory_total_bytes": meminfo("MemTotal"),
        "memory_available_bytes": meminfo("MemAvailable"),
        "disk_free_bytes": free_bytes(str(Path.home())),
        "cores": len(os.sched_getaffinity(0)),
        "interfaces": [interface(path) for path in sorted(Path("/sys/class/net").iterdir())],
        "rdma": [rdma(path) for path in children("/sys/class/infiniband")],
    }


def read(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def children(path: str) -> list[Path]:
    folder = Path(path)
    return sorted(folder.iterdir()) if folder.is_dir() else []


def output(*argv: str) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def driver() -> str | None:
    words = (read("/proc/driver/nvidia/version") or "").split()
    return next((word for word in words if word.count(".") >= 1 and word[0].isdigit()), None)


def meminfo(name: str) -> int:
    for line in (read("/proc/meminfo") or "").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def free_bytes(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def interface(path: Path) -> dict[str, Any]:
    device = path / "device"
    firmware = output("ethtool", "-i", path.name) if (device / "infiniband").is_dir() else None
    lines = (firmware or "").splitlines()
    return {
        "name": path.name,
        "is_wireless": (path / "wireless").is_dir(),
        "is_virtual": not device.exists(),
        "mtu": number(read(str(path / "mtu"))),
        "state": read(str(path / "operstate")),
        "has_carrier": read(str(path / "carrier")) == "1",
        "speed_mbps": number(read(str(path / "speed"))),
        "port": "/".join(read(str(path / part)) or "" for part in ("phys_switch_id", "phys_port_name")),
        "pcie": f"{read(str(device / 'current_link_speed'))} x{read(str(device / 'current_link_width'))}",
        "firmware": next((line.split(":", 1)[1].strip() for line in lines if "firmware" in line), None),
        "address": address(path.name, 0x8915),
        "netmask": address(path.name, 0x891B),
    }


def number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def address(name: str, request: int) -> str | None:
    """SIOCGIFADDR, SIOCGIFNETMASK: the first IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def rdma(path: Path) -> dict[str, Any]:
    port = path / "ports" / "1"
    return {
        "name": path.name,
        "state": read(str(port / "state")),
        "rate": read(str(port / "rate")),
        "interface": next((entry.name for entry in children(str(path / "device/net"))), None),
        "roce_v2_ipv4_gids": gids(port),
    }


def gids(port: Path) -> list[int]:
    """The indices whose GID is RoCE v2 over IPv4. Reported, never stored: they change when a link bounces."""
    found = []
    for entry in children(str(port / "gid_attrs/types")):
        gid = read(str(port / "gids" / entry.name)) or ""
        if read(str(entry)) == "RoCE v2" and gid.startswith("0000:0000:0000:0000:0000:ffff:"):
            found.append(int(entry.name))
    return sorted(found)


# --- links ---


def listen(where: str) -> int:
    server = socket.create_server((where, 0))
    port = server.getsockname()[1]
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.bind((where, port))
    never_fragment(echo)
    print(json.dumps({"port": port}), flush=True)
    threading.Thread(target=swallow, args=(server,), daemon=True).start()
    while True:
        ready, _, _ = select.select([echo, sys.stdin], [], [], 60)
        if sys.stdin in ready or not ready:
            return 0
        data, peer = echo.recvfrom(65536)
        try:
            echo.sendto(data, peer)  # as large as it came: the way back is tried, too
        except OSError:
            echo.sendto(b"too large", peer)


def swallow(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(ConnectionError):  # the next one is read in any case
            buffer = bytearray(2**20)
            while connection.recv_into(buffer):
                pass


def never_fragment(probe: socket.socket) -> None:
    probe.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)


def reach(where: str, port: int, size: int, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {"rtt_ms": None, "whole_packet": None, "gbit_per_s": None, "error": None}
    try:
        began = time.perf_counter()
        connection = socket.create_connection((where, port), timeout=5)
        found["rtt_ms"] = round(1000 * (time.perf_counter() - began), 3)
    except OSError as error:
        found["error"] = f"port: {error.strerror or error}"
    found["small_packet"] = echoed(where, port, 64)
    found["whole_packet"] = echoed(where, port, size) if size else None
    if found["rtt_ms"] is not None:
        with connection:
            if seconds:
                found["lost"] = lost(where, port)
                found["gbit_per_s"] = throughput(connection, seconds)
    return found


def echoed(where: str, port: int, size: int) -> str:
    """`ok`, `own mtu` when this host cannot send it, `lost` when no answer comes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        never_fragment(probe)
        probe.settimeout(0.5)
        for attempt in range(TRIES):
            data = bytes([attempt]) * (size - UDP_HEADERS)
            try:
                probe.sendto(data, (where, port))
                answer = probe.recv(65536)
            except OSError as error:
                if error.errno == 90:  # EMSGSIZE
                    return "own mtu"
                continue
            if len(answer) == len(data):
                return "ok"
        return "lost"


def lost(where: str, port: int, patience_s: float = 3.0) -> int:
    """How many of `PACKETS` small packets never came back."""
    seen: set[bytes] = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(patience_s)
        with contextlib.suppress(OSError):
            for number in range(PACKETS):
                probe.sendto(bytes([number]), (where, port))
            while len(seen) < PACKETS:
                seen.add(probe.recv(64))
    return PACKETS - len(seen)


def throughput(connection: socket.socket, seconds: float) -> float | None:
    block, sent, began = bytes(2**20), 0, time.perf_counter()
    connection.settimeout(5)
    try:
        while time.perf_counter() - began < seconds:
            sent += connection.send(block)
    except OSError:
        return None
    return round(8 * sent / (time.perf_counter() - began) / 1e9, 3)


# --- a simulated Spark ---


def simulated(argv: list[str], folder: Path) -> int:
    """What `firesteel --sim` wrote down: its rails are nowhere, so that nothing can be sent over them."""
    if argv[0] == "listen":
        print(json.dumps({"port": 9}), flush=True)
        sys.stdin.read()
    elif argv[0] == "reach":
        good = {"rtt_ms": 0.1, "small_packet": "ok", "whole_packet": "ok", "gbit_per_s": 96.0, "error": None}
        print(json.dumps(good))
    else:
        print(json.dumps({**json.loads((folder / "facts.json").read_text()), "time_s": time.time()}))
    return 0


def main(argv: list[str]) -> int:
    sim = Path(os.environ.get("FIRESTEEL_SIM", "/nonexistent"))
    if (sim / "facts.json").exists():
        return simulated(argv, sim)
    if argv[0] == "listen":
        return listen(argv[1])
    if argv[0] == "reach":
        print(json.dumps(reach(argv[1], int(argv[2]), int(argv[3]), float(argv[4]))))
    else:
        print(json.dumps(facts()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
