"""Checks of what systemd, docker and the login do to an engine, and of the disk that holds the models."""

from __future__ import annotations

import json
import re
from typing import Literal

from firesteel.facts.host.host_facts import DiskUse, HostFacts
from firesteel.rules.host.check import CheckLevel, CheckVerdict, Judge, bad, good, skipped, unknown
from firesteel.units import GIB, show_bytes

SLEEP_TARGETS = ("sleep.target", "suspend.target", "hibernate.target", "hybrid-sleep.target")
_READ_AHEAD_KB = 4096
_DISK_BYTES_PER_S = 3e9
_LOW_FREE_BYTES = 100 * GIB
_NETWORK_DISKS = ("nfs", "cifs", "sshfs", "fuse", "9p", "smb")
_SLOW_MMAP = re.compile(r"6\.(?:11|14)\.")
_DEEP_IDLE_US = 200


def suspend(facts: HostFacts) -> CheckVerdict:
    masked = [name for name in SLEEP_TARGETS if facts.link(f"etc/systemd/system/{name}") == "/dev/null"]
    if len(masked) == len(SLEEP_TARGETS):
        return good("/etc/systemd/system/sleep.target -> /dev/null")
    if not facts.units and not facts.probe.text("default-target"):
        return unknown("needs systemctl")
    left = next(name for name in SLEEP_TARGETS if name not in masked)
    idle = facts.probe.text("idle-suspend")
    graphical = "graphical" in (
        facts.link("etc/systemd/system/default.target") or facts.probe.text("default-target")
    )
    line = f"{left} is not masked; {' '.join(idle.split()) or 'sleep-inactive-ac not readable'}"
    if not facts.is_spark:
        return bad(line, "note") if graphical and "suspend" in idle else good(line)
    return bad(line, "bad" if graphical else "note")


def remove_ipc(facts: HostFacts) -> CheckVerdict:
    user = facts.user or "the user"
    if facts.uid is not None and facts.uid <= 999:
        return good(f"uid {facts.uid}: logind keeps the semaphores of system users")
    names = facts.probe.lines("names")
    if f"var/lib/systemd/linger/{user}" in names:
        return good(f"/var/lib/systemd/linger/{user} exists")
    if "Linger=yes" in facts.probe.text("linger"):
        return good(f"loginctl show-user {user}: Linger=yes")
    if setting := facts.setting("logind", "RemoveIPC"):
        value, line = setting
        if value.lower() in ("no", "false", "0", "off"):
            return good(line)
        return bad(line, user=user)
    live = facts.probe.text("remove-ipc")
    if live.strip() == "b false":
        return good("busctl: RemoveIPC b false")
    if not live and not facts.probe.text("linger") and not facts.units:
        return unknown("needs systemd's logind")
    return bad(f"RemoveIPC {live.strip() or 'not set, so yes'}; Linger=no", user=user)


def docker(facts: HostFacts) -> CheckVerdict:
    section = facts.probe.sections.get("docker")
    user, undo = facts.user or "$USER", ""
    if section is not None and section.code == 0:
        return good(f"docker {' '.join(section.text.split('|')[:3])}")
    if section is None or section.code == 127:
        line, what = "docker: not found", "is not installed"
        do = "https://docs.docker.com/engine/install/ubuntu/"
    else:
        line = (section.text.splitlines() or ["docker info failed"])[-1]
        if "permission denied" not in section.text.lower():
            what, do = "does not answer", "sudo systemctl restart docker"
        elif is_in_group(facts, "docker"):
            what, do = f"lets {user} in only after a new login", "log out and in again"
        else:
            what, do = f"may not be used by {user}", f"sudo usermod -aG docker {user}, then log in again"
            undo = f"sudo gpasswd -d {user} docker"
    # Other machines have engines of their own (`--native`); without a GPU a model runs in no container.
    level: CheckLevel | Literal["bad"] = "bad" if facts.is_spark else "warn" if facts.gpu else "note"
    return bad(line, level, what=what, do=do, undo=undo)


def docker_gpu(facts: HostFacts) -> CheckVerdict:
    fields = facts.probe.text("docker").strip().split("|")
    if len(fields) < 4:
        return unknown("needs docker; see the check `docker`")
    if not facts.gpu:
        return skipped("no GPU")
    has_runtime = "nvidia" in _json_keys(fields[3])
    files = [line for line in facts.probe.lines("names") if "/cdi/nvidia" in line]
    if has_runtime:
        return good(f"docker info: runtimes {', '.join(_json_keys(fields[3]))}")
    return (
        good(f"CDI: {files[0]}")
        if files
        else bad(f"docker info: runtimes {fields[3]}; no /etc/cdi/nvidia.yaml")
    )


def cdi_stale(facts: HostFacts) -> CheckVerdict:
    lines = facts.probe.lines("cdi-missing")
    files = [line.removeprefix("file ") for line in lines if line.startswith("file ")]
    missing = [line.removeprefix("missing ") for line in lines if line.startswith("missing ")]
    if not files:
        return skipped("no CDI file")
    if missing:
        return bad(f"{files[0]} names {missing[0]}, which does not exist", count=len(missing), file=files[0])
    return good(f"{files[0]}: every path in it exists")


def time_sync(facts: HostFacts) -> CheckVerdict:
    text = facts.probe.text("time")
    if not text:
        return unknown("needs timedatectl")
    line = " ".join(text.split())
    return good(line) if "NTPSynchronized=yes" in text else bad(line)


def memlock(facts: HostFacts) -> CheckVerdict:
    found = re.search(r"^memlock (\S+)", facts.probe.text("limits"), re.M)
    wide = re.search(r":\s*\S+\s+-\s+memlock\s+unlimited", facts.probe.text("limits-files"))
    if wide:
        return good(wide[0].lstrip(": "))
    if not found:
        return unknown("needs ulimit -l")
    if found[1] == "unlimited":
        return good("ulimit -l: unlimited")
    return bad(f"ulimit -l: {found[1]}", value=found[1])


def idle_states(facts: HostFacts) -> CheckVerdict:
    values = facts.probe.values("cpu")
    deep = []
    for path, latency in values.items():
        folder = path.removesuffix("/latency")
        is_on = values.get(f"{folder}/disable", "0") == "0"
        if path.endswith("/latency") and latency.isdigit() and int(latency) >= _DEEP_IDLE_US and is_on:
            deep.append(f"{values.get(f'{folder}/name', folder)} {latency} µs")
    if not any(path.endswith("/latency") for path in values):
        return unknown("the kernel shows no cpuidle")
    return (
        bad(", ".join(deep), names=", ".join(deep))
        if deep
        else good("no idle state slower than 200 µs is on")
    )


def ngc_login(facts: HostFacts) -> CheckVerdict:
    answer = facts.probe.text("ngc").strip()
    if not answer:
        return unknown("needs ~/.docker/config.json")
    return (
        good("~/.docker/config.json: nvcr.io")
        if answer == "yes"
        else bad("~/.docker/config.json: no nvcr.io")
    )


def driver_upgrades(facts: HostFacts) -> CheckVerdict:
    packages = [name for name in facts.packages if re.fullmatch(r"nvidia-driver-\d+\S*", name)]
    if not packages:
        return skipped("no driver package of Ubuntu is installed")
    held = facts.probe.lines("held")
    unattended = facts.units.get("unattended-upgrades.service")
    line = f"apt-mark showhold: {', '.join(held) or 'nothing'}"
    if unattended and unattended.active == "active" and not set(packages) & set(held):
        return bad(line, package=packages[0])
    return good(line)


def store_disk(facts: HostFacts) -> CheckVerdict:
    disk = _store(facts)
    if disk is None:
        return unknown("needs df")
    line = f"{disk.path} is on {disk.device} ({disk.kind})"
    if disk.kind.startswith(_NETWORK_DISKS):
        return bad(line, path=disk.path, what=f"a {disk.kind} mount")
    if facts.value(f"sys/block/{disk.block}/queue/rotational") == "1" and not disk.block.startswith("vd"):
        return bad(line, path=disk.path, what="a rotating disk")
    if disk.block.startswith(("sd", "mmcblk")) and facts.is_spark:
        return bad(line, path=disk.path, what="a USB disk or an SD card")
    if (measured := facts.measured.get("disk_read_bytes_per_s")) and facts.is_spark:
        line = f"{measured.value / 1e9:.1f} GB/s on {measured.day} (doctor --measure)"
        if measured.value < _DISK_BYTES_PER_S:
            return bad(
                line, "note", path=disk.path, what=f"a disk that reads {measured.value / 1e9:.1f} GB/s"
            )
    return good(line)


def store_free(facts: HostFacts) -> CheckVerdict:
    disks = {disk.mount: disk for disk in facts.disks if disk.purpose in ("hf", "own", "docker")}
    if not disks:
        return unknown("needs df")
    least = min(disks.values(), key=lambda disk: disk.free_bytes)
    line = f"df {least.path}: {show_bytes(least.free_bytes)} free of {show_bytes(least.total_bytes)}"
    limit = _LOW_FREE_BYTES if facts.is_spark else 10 * GIB
    return (
        good(line)
        if least.free_bytes >= limit
        else bad(line, path=least.path, free=show_bytes(least.free_bytes))
    )


def read_ahead(facts: HostFacts) -> CheckVerdict:
    disk = _store(facts)
    value = facts.value(f"sys/block/{disk.block}/queue/read_ahead_kb") if disk else None
    if disk is None or value is None or not value.isdigit():
        return unknown("needs /sys/block of the disk that holds the models")
    line = f"/sys/block/{disk.block}/queue/read_ahead_kb: {value}"
    if not facts.is_spark:
        return skipped("the advice is for DGX OS")
    return bad(line, value=value, block=disk.block) if int(value) < _READ_AHEAD_KB else good(line)


def disk_scheduler(facts: HostFacts) -> CheckVerdict:
    disk = _store(facts)
    value = facts.value(f"sys/block/{disk.block}/queue/scheduler") if disk else None
    if disk is None or value is None:
        return unknown("needs /sys/block of the disk that holds the models")
    if not facts.is_spark or not disk.block.startswith("nvme"):
        return skipped("the advice is for the NVMe disk of a GB10")
    line = f"/sys/block/{disk.block}/queue/scheduler: {value}"
    chosen = re.search(r"\[(\S+)\]", value)
    name = chosen[1] if chosen else value
    return good(line) if name == "none" else bad(line, value=name, block=disk.block)


def load_mode(facts: HostFacts) -> CheckVerdict:
    if not facts.is_spark:
        return skipped("the advice is for DGX OS")
    line = f"uname -r: {facts.kernel}"
    return bad(line, kernel=facts.kernel) if _SLOW_MMAP.match(facts.kernel) else good(line)


def nvme_health(facts: HostFacts) -> CheckVerdict:
    section = facts.probe.sections.get("smart")
    if section is None or section.code == 127:
        return unknown("needs sudo apt install nvme-cli, then sudo firesteel doctor")
    warning = re.search(r"critical_warning\s*:\s*(\S+)", section.text)
    used = re.search(r"percentage_used\s*:\s*(\d+)", section.text)
    if not warning:
        return unknown("needs sudo firesteel doctor (nvme smart-log needs root)", section.text.strip())
    line = f"nvme smart-log: critical_warning {warning[1]}, percentage_used {used[1] if used else '?'}"
    is_bad = warning[1] not in ("0", "0x0", "0x00") or (used is not None and int(used[1]) >= 90)
    return bad(line) if is_bad else good(line)


def _store(facts: HostFacts) -> DiskUse | None:
    return facts.disk("hf") or facts.disk("own") or facts.disk("root")


def is_in_group(facts: HostFacts, group: str) -> bool:
    """By `/etc/group`, which counts from the next login on."""
    members = re.search(rf"^{group}:[^:]*:[^:]*:(.*)$", facts.probe.text("groups"), re.M)
    return members is not None and facts.user in members[1].split(",")


def _json_keys(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return sorted(value) if isinstance(value, dict) else []


JUDGES: dict[str, Judge] = {
    "suspend": suspend,
    "remove-ipc": remove_ipc,
    "docker": docker,
    "docker-gpu": docker_gpu,
    "cdi-stale": cdi_stale,
    "time-sync": time_sync,
    "memlock": memlock,
    "idle-states": idle_states,
    "ngc-login": ngc_login,
    "driver-upgrades": driver_upgrades,
    "store-disk": store_disk,
    "store-free": store_free,
    "read-ahead": read_ahead,
    "disk-scheduler": disk_scheduler,
    "load-mode": load_mode,
    "nvme-health": nvme_health,
}
