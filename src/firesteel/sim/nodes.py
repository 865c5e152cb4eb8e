"""Several simulated Sparks, joined by both rails of one cable: their folders, and what a probe reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from firesteel.sim.spark import SimSpark

_RAILS = (("enp1s0f1np1", "rocep1s0f1", 100), ("enP2p1s0f1np1", "roceP2p1s0f1", 101))


def node_names(spark: SimSpark) -> list[str]:
    """Of the Sparks beside the first."""
    return [f"spark{number}" for number in range(2, spark.nodes + 1)]


def write_facts(folder: Path, spark: SimSpark, number: int, user: Path) -> None:
    (folder / "facts.json").write_text(json.dumps(_facts(spark, number, user), indent=1))


def write_node(home: Path, name: str) -> None:
    """As `cluster add` would."""
    (home / "cluster" / name).mkdir(parents=True, exist_ok=True)
    (home / "cluster" / name / "node.json").write_text(json.dumps({"name": name, "host": name}))


def _facts(spark: SimSpark, number: int, user: Path) -> dict[str, Any]:
    return {
        "hostname": f"spark{number}", "home": str(user), "time_s": 0.0, "kernel": spark.kernel,
        "python": "3.12.3", "machine": "aarch64", "driver": spark.driver, "bios": None,
        "product": "simulated Spark", "docker": "28.5.1", "memory_total_bytes": spark.memory_total_bytes,
        "memory_available_bytes": spark.memory_available_bytes, "disk_free_bytes": spark.disk_free_bytes,
        "cores": 20,
        "interfaces": [
            {"name": name, "mtu": 9000, "state": "up", "has_carrier": True, "speed_mbps": 200_000,
             "port": "sim/p1", "pcie": "32.0 GT/s PCIe x4", "firmware": "28.45.4028",
             "address": f"192.168.{subnet}.{9 + number}", "netmask": "255.255.255.0",
             "is_wireless": False, "is_virtual": False}
            for name, _, subnet in _RAILS
        ],
        "rdma": [
            {"name": device, "state": "4: ACTIVE", "rate": "200 Gb/sec (4X HDR)", "interface": name,
             "roce_v2_ipv4_gids": [3]}
            for name, device, _ in _RAILS
        ],
    }  # fmt: skip
