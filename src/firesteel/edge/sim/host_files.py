"""What `doctor` reads on a simulated Spark: a recorded good host, and one for each check on which it is bad.

host_probe("jumbo-frames")      a probe of a Spark whose rails have MTU 1500
write_host(folder, probe)       the same as a folder in place of `/`
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from firesteel import shipped_data
from firesteel.edge.sim.spark import SimSpark
from firesteel.facts.host.probe import Probe, Section
from firesteel.values import FileValue

_LIVE = ("gpu", "gpu-processes", "containers", "kernel-log", "proc/meminfo", "proc/pressure/memory")
"""What the simulated Spark itself shows, unless a fault has it otherwise."""
_FOLDERS = ("commands", "recorded", "etc", "sys", "var", "proc/sys", "proc/driver")
_KERNEL, _DRIVER = "6.17.0-1032-nvidia", "580.173.02"


class SectionEdit(FileValue, kw_only=True):
    section: str
    find: str | None = None
    put: str
    code: int = 0


class HostFaultsSchema(FileValue, kw_only=True):
    faults: dict[str, tuple[SectionEdit, ...]]
    hosts: dict[str, tuple[SectionEdit, ...]]


@cache
def host_faults() -> HostFaultsSchema:
    return shipped_data.load("sim/host_faults.yaml", HostFaultsSchema)


def host_probe(fault: str = "", host: str = "spark-a") -> Probe:
    """A recorded host, with the fault that the check of this name finds."""
    edits = (*host_faults().hosts[host], *(host_faults().faults[fault] if fault else ()))
    sections = dict(Probe.parse(shipped_data.read_text("sim/host.txt")).sections)
    for edit in edits:
        old = sections.get(edit.section, Section(""))
        if edit.find is None:
            sections[edit.section] = Section(edit.put, edit.code)
        elif edit.find in f"{old.text}\n":
            text = f"{old.text}\n".replace(edit.find, edit.put).removesuffix("\n")
            sections[edit.section] = Section(text, old.code)
        else:
            raise ValueError(f"`{edit.find}` is not in the section {edit.section}")
    return Probe(sections)


def write_spark_host(folder: Path, spark: SimSpark) -> None:
    """The host around a simulated Spark; what the Spark shows itself comes from its own programs."""
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    sections = dict(host_probe(spark.host_fault).sections)
    changed = {edit.section for edit in host_faults().faults.get(spark.host_fault, ())}
    recorded: dict[str, Section] = {}
    for name in _LIVE:
        section = sections.pop(name)
        if name in changed:
            (recorded if name.startswith("proc/") else sections)[name] = section
    if "docker" not in changed:
        sections["docker"] = _docker(sections["docker"], spark)
    if "disks" not in changed:
        text = sections["disks"].text.replace(" 2736936832 ", f" {spark.disk_free_bytes // 1024} ")
        sections["disks"] = Section(text)
    for name, section in sections.items():
        text = section.text.replace(_KERNEL, spark.kernel).replace(_DRIVER, spark.driver)
        sections[name] = Section(text, section.code)
    write_host(folder, Probe(sections))
    for name, section in recorded.items():
        path = folder / "recorded" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{section.text}\n")


def _docker(good: Section, spark: SimSpark) -> Section:
    if spark.fault("no-docker"):
        return Section("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", 1)
    if spark.fault("no-gpu-in-docker"):
        return Section(good.text.replace('"nvidia":{"path":"nvidia-container-runtime"},', ""))
    return good


def write_host(folder: Path, probe: Probe) -> None:
    """Writes the files, links and recorded commands of a probe under a folder."""
    for name, content in probe.files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for line in probe.text("links").splitlines():
        name, _, target = line.partition(" -> ")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
