"""Checks of the GPU, the power supply, the driver and the firmware."""

from __future__ import annotations

import re

from firesteel.facts.host.gpus import ClockReason, GpuReading
from firesteel.facts.host.host_facts import HostFacts, busy_clock_mhz
from firesteel.rules.host.check import CheckVerdict, Judge, bad, good, skipped, unknown

_LATCHED_MHZ, _LATCHED_W, _LOW_MHZ = 1000, 30, 1900
_LATCH = "the negotiation with the USB-C power supply has latched a low limit"
_HOT_C = 85
_HARDWARE = {
    ClockReason.HW_SLOWDOWN: "hw_slowdown",
    ClockReason.HW_THERMAL: "hw_thermal_slowdown",
    ClockReason.HW_POWER_BRAKE: "hw_power_brake_slowdown",
}
_SOFTWARE = {ClockReason.SW_THERMAL: "sw_thermal_slowdown", ClockReason.SW_POWER_CAP: "sw_power_cap"}
_NO_GPU = "nvidia-smi is not installed here"
_CPU_FULL_KHZ, _CPU_STUCK_KHZ = 2_800_000, 1_700_000
_GOOD_KERNEL = (6, 17, 0, 1014)
_PANICS = (6, 17, 0, 1008)
_UNTESTED_KERNEL = (7,)
OTA_PACKAGE = "dgx-spark-ota-update-meta"
"""Brings a release of DGX OS: kernel, driver and firmware that NVIDIA tested together."""


def clock_under_load(facts: HostFacts) -> CheckVerdict:
    if not facts.gpu:
        return _no_gpu(facts)
    if not facts.is_spark:
        return skipped("the limits are known only for a GB10")
    clock = busy_clock_mhz(facts.busy)
    if clock is None:
        if measured := facts.measured.get("gpu_clock_mhz"):
            line = f"{measured.value:.0f} MHz under load on {measured.day} (doctor --measure)"
            latched = measured.value < _LATCHED_MHZ
            return bad(line, clock=f"{measured.value:.0f}", why=_LATCH) if latched else good(line)
        return unknown(
            "the GPU is idle, and an idle clock says nothing: firesteel doctor --measure, "
            "or run this while a model answers",
            facts.gpu[0].line,
        )
    power = max((reading.power_w or 0 for reading in facts.busy), default=0)
    line = facts.busy[0].line
    if clock >= _LOW_MHZ:
        return good(line)
    if any(_named(reading, _HARDWARE) for reading in facts.busy):
        return unknown("the hardware slows the GPU down: see the check `heat`", line)
    if clock < _LATCHED_MHZ and power < _LATCHED_W:
        return bad(line, clock=f"{clock:.0f}", why=_LATCH)
    return bad(line, "note", clock=f"{clock:.0f}", why="a limit that was set, or a light load")


def clock_locked(facts: HostFacts) -> CheckVerdict:
    units = facts.probe.lines("clock-units")
    if units:
        return bad(f"{units[0]}: sets nvidia-smi --lock-gpu-clocks", who=units[0])
    if not facts.gpu:
        return _no_gpu(facts)
    locked = next((row for row in facts.busy if (row.reasons or 0) & ClockReason.APPLICATION_CLOCKS), None)
    if locked:
        return bad(locked.line, who="`nvidia-smi -lgc` or `-ac`")
    return good("no unit sets the GPU's clocks")


def heat(facts: HostFacts) -> CheckVerdict:
    if not facts.gpu:
        return _no_gpu(facts)
    for reading in facts.gpu:
        hardware = _named(reading, _HARDWARE)
        if hardware:
            return bad(reading.line, "stop", what=hardware, degrees=_degrees(reading))
    hottest = max(facts.gpu, key=lambda reading: reading.temperature_c or 0)
    software = next((row for row in facts.gpu if _named(row, _SOFTWARE)), None)
    if (hottest.temperature_c or 0) >= _HOT_C:
        return bad(hottest.line, what=f"{_degrees(hottest)} °C", degrees=_degrees(hottest))
    if software and (software.use_percent or 0) >= 1:
        return bad(software.line, "note", what=_named(software, _SOFTWARE), degrees=_degrees(software))
    if hottest.temperature_c is None:
        return unknown("nvidia-smi reports no temperature", hottest.line)
    return good(f"{_degrees(hottest)} °C, no hardware slowdown")


def cpu_clock(facts: HostFacts) -> CheckVerdict:
    values = facts.probe.values("cpu")
    maxima = [int(v) for p, v in values.items() if p.endswith("cpuinfo_max_freq") and v.isdigit()]
    load = re.match(r"([\d.]+)", facts.probe.text("proc/loadavg"))
    current = {p: int(v) for p, v in values.items() if p.endswith("scaling_cur_freq") and v.isdigit()}
    if not facts.is_spark:
        return skipped("the limits are known only for a GB10")
    if not current:
        return unknown("the kernel shows no cpufreq")
    fastest = max(current, key=lambda path: current[path])
    line = f"{fastest}: {current[fastest]}"
    if current[fastest] >= _CPU_FULL_KHZ or not maxima:
        return good(line)
    if load and float(load[1]) < 2:
        return unknown("the CPU is idle, and an idle clock says nothing: run this under load", line)
    if current[fastest] <= _CPU_STUCK_KHZ:
        return bad(line, ghz=f"{current[fastest] / 1e6:.1f}")
    return good(line)


def power_limits(facts: HostFacts) -> CheckVerdict:
    values = facts.probe.values("sensors")
    chip = next((path for path, name in values.items() if path.endswith("/name") and name == "spbm"), None)
    if chip is None:
        if not facts.is_spark:
            return skipped("only a GB10 has it")
        return unknown("needs the out-of-tree driver spark_hwmon, which shows the limits of the power supply")
    folder = chip.removesuffix("/name")
    limits = {
        label: int(limit) / 1e6
        for path, label in values.items()
        if path.startswith(f"{folder}/power") and path.endswith("_label")
        if (limit := values.get(path.replace("_label", "_cap"), "")).isdigit()
    }
    prochot = values.get(f"{folder}/prochot", "0")
    line = ", ".join(f"{name} {watts:.0f} W" for name, watts in limits.items()) + f", prochot {prochot}"
    low = limits.get("pl1", 140) < 100 or limits.get("syspl1", 231) < 150
    return bad(f"{folder}: {line}", what=line) if low or prochot != "0" else good(f"{folder}: {line}")


def driver_match(facts: HostFacts) -> CheckVerdict:
    section = facts.probe.sections.get("gpu")
    if section and section.code and "mismatch" in section.text:
        return bad(section.text, loaded=facts.loaded_driver or "?", installed="another")
    if section and section.code not in (0, 127):
        return bad(section.text or "nvidia-smi failed", loaded=facts.loaded_driver or "none", installed="?")
    loaded, installed = facts.loaded_driver, facts.probe.text("module-version").strip()
    if loaded is None:
        if facts.is_spark:
            return bad("/proc/driver/nvidia/version: no such file", loaded="none", installed=installed or "?")
        return skipped("no NVIDIA driver is loaded")
    if installed and installed != loaded:
        return bad(
            f"/proc/driver/nvidia/version: {loaded}; modinfo: {installed}", loaded=loaded, installed=installed
        )
    if facts.gpu and facts.gpu[0].driver != loaded:
        return bad(
            f"loaded {loaded}; NVML {facts.gpu[0].driver}", loaded=loaded, installed=facts.gpu[0].driver
        )
    return good(f"/proc/driver/nvidia/version: {loaded}" + (f" = modinfo: {installed}" if installed else ""))


def driver_flavour(facts: HostFacts) -> CheckVerdict:
    text = facts.probe.text("proc/driver/nvidia/version")
    licence = facts.probe.text("module-license").strip()
    if not facts.is_spark:
        return skipped("other GPUs run with the closed module too")
    if not text and not licence:
        return unknown("the driver is not loaded")
    line = text.splitlines()[0] if text else f"modinfo: {licence}"
    is_open = "Open Kernel Module" in text or "MIT" in licence
    return good(line) if is_open else bad(line)


def driver_branch(facts: HostFacts) -> CheckVerdict:
    driver = facts.driver
    if driver is None:
        return _no_gpu(facts)
    if not facts.is_spark:
        return skipped("the table is for a GB10")
    line = facts.gpu[0].line if facts.gpu else driver
    numbers = tuple(map(int, re.findall(r"\d+", driver)))
    if not numbers:
        return unknown("nvidia-smi prints no driver version", line)
    if numbers[0] >= 590:
        return bad(line, driver=driver, why="driver 590 deadlocked with CUDA graphs on a GB10")
    if numbers < (580, 142):
        return bad(line, "note", driver=driver, why="is older than what was tested here (580.142 and newer)")
    return good(f"driver {driver}")


def kernel_known(facts: HostFacts) -> CheckVerdict:
    if not facts.is_spark:
        return skipped("the table is for DGX OS")
    line = f"uname -r: {facts.kernel}; BIOS {facts.bios or 'not readable'}"
    match = re.match(r"(\d+)\.(\d+)\.(\d+)-(\d+)", facts.kernel)
    if not match:
        return unknown("this is not a kernel of DGX OS, so nothing is known about it", line)
    version = tuple(map(int, match.groups()))
    if version >= _UNTESTED_KERNEL:
        needs = (
            "only 1014 to 1032 of 6.17 were tested; kernel 7.0 needs `kho=off`, see the check kexec-handover"
        )
        return unknown(needs, line)
    if version == _PANICS:
        return bad(
            line, kernel=facts.kernel, why="panics and misses the GPU at boot on some hosts (disputed)"
        )
    if version < _GOOD_KERNEL:
        return bad(
            line, "note", kernel=facts.kernel, why="is older than those that were tested (1014 to 1032)"
        )
    if version < (6, 17, 0, 1032) and (facts.driver or "").startswith(("580.142", "580.159")):
        return bad(
            line, "note", kernel=facts.kernel,
            why="was seen in a hidden slow state with driver 580.142 and 580.159, and never as 1032 with "
            "580.173.02 and BIOS ACUM027",
        )  # fmt: skip
    return good(line)


def system_updates(facts: HostFacts) -> CheckVerdict:
    if not facts.is_spark:
        return skipped("only DGX OS has it")
    if not facts.packages:
        return unknown("needs dpkg-query")
    version = facts.packages.get(OTA_PACKAGE)
    if version is None:
        do = f"sudo apt install {OTA_PACKAGE}"
        return bad(f"dpkg-query: no {OTA_PACKAGE}", what="is not installed", do=do)
    if OTA_PACKAGE in facts.probe.lines("held"):
        do = f"sudo apt-mark unhold {OTA_PACKAGE}; hold the driver alone (see driver-upgrades)"
        return bad(f"apt-mark showhold: {OTA_PACKAGE}", what=f"is held at {version}", do=do)
    return good(f"{OTA_PACKAGE} {version}")


def firmware_updates(facts: HostFacts) -> CheckVerdict:
    section = facts.probe.sections.get("updates")
    if section is None or section.code == 127:
        return unknown("needs fwupdmgr (sudo apt install fwupd)")
    if section.code == 2 or "No upd" in section.text or "No updatable" in section.text:
        return good("fwupdmgr get-updates: none")
    if section.code == 0 and section.text.strip():
        named = re.search(r"^[\s│├└─•]*([A-Z][^\n:│]{3,60}):?\s*$", section.text, re.M)
        return bad(section.text.strip().splitlines()[0], what=named[1].strip() if named else "an update")
    return unknown("needs sudo fwupdmgr get-updates", section.text.strip())


def reboot_required(facts: HostFacts) -> CheckVerdict:
    section = facts.probe.sections.get("var/run/reboot-required")
    if section is None or section.code == 2:
        return good("/var/run/reboot-required: no such file")
    packages = ", ".join(facts.probe.lines("var/run/reboot-required.pkgs")[:4])
    return bad(f"/var/run/reboot-required: {section.text.strip()} {packages}", what=packages or "a package")


def _named(reading: GpuReading, bits: dict[ClockReason, str]) -> str:
    return ", ".join(name for bit, name in bits.items() if (reading.reasons or 0) & bit)


def _degrees(reading: GpuReading) -> str:
    return "?" if reading.temperature_c is None else f"{reading.temperature_c:.0f}"


def _no_gpu(facts: HostFacts) -> CheckVerdict:
    section = facts.probe.sections.get("gpu")
    if section and section.code not in (0, 127):
        return unknown("nvidia-smi does not work; see driver-match", section.text)
    return unknown(_NO_GPU) if facts.is_spark else skipped(_NO_GPU)


JUDGES: dict[str, Judge] = {
    "clock-under-load": clock_under_load,
    "clock-locked": clock_locked,
    "heat": heat,
    "cpu-clock": cpu_clock,
    "power-limits": power_limits,
    "driver-match": driver_match,
    "driver-flavour": driver_flavour,
    "driver-branch": driver_branch,
    "kernel-known": kernel_known,
    "system-updates": system_updates,
    "firmware-updates": firmware_updates,
    "reboot-required": reboot_required,
}
