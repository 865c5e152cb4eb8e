"""Checks of the memory: what is really free, what was lost, who kills for it, what is set aside."""

from __future__ import annotations

import re

from firesteel.facts.host.host_facts import HostFacts
from firesteel.rules.host.check import CheckVerdict, Judge, bad, good, skipped, unknown
from firesteel.units import GIB, KIB, MIB, show_bytes

_TOTAL_BYTES = (119 * GIB, 122 * GIB)
_CACHE_BYTES = 20 * GIB
_LOST_BYTES = 6 * GIB
_DIRTY_BYTES = 4 * GIB
_ACCOUNTED = (
    "MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "KernelStack", "PageTables", "Percpu",
    "Hugetlb", "SecPageTables",
)  # fmt: skip
_KILLERS = ("earlyoom.service", "systemd-oomd.service", "nohang.service", "dgx-anti-oom.service")
_DESKTOP = re.compile(
    r"(?:gnome-shell|plasmashell|Xorg|Xwayland|firefox|xrdp|nxagent|rustdesk)\b.*"
    r"|chrome(?:_crashpad)?|code(?:-insiders)?|cursor"
)
"""Whole names, as `ps` prints them (`comm`): `opencode` and `cursor-agent` run in a terminal."""
_DESKTOP_BYTES = 2 * GIB
_ENGINES = re.compile(r"VLLM::|vllm|sglang|llama-server|rpc-server|trtllm|firesteel")
_ORPHAN_S = 60
_FAULTS: tuple[tuple[str, str, str], ...] = (
    (r"NVRM: Xid \(", "stop", "an Xid: the GPU reported a fault"),
    (r"AER: .*[Ff]atal", "stop", "a fatal PCIe error"),
    (r"soft lockup", "stop", "a soft lockup"),
    (r"nvme.*timeout", "warn", "a timeout of the disk"),
    (r"mlx5_core.*(?:health|fatal)", "warn", "the ConnectX-7 is not healthy"),
    (r"NV_ERR_NO_MEMORY", "warn", "the driver could not allocate memory"),
    (r"oom-kill:constraint=CONSTRAINT_NONE|Out of memory: Killed", "warn", "the kernel killed a process"),
    (r"DOE mailbox.*timeout", "warn", "a DOE mailbox timeout"),
)
_HARMLESS = re.compile(r"insufficient power on the PCIe slot")
"""Healthy hosts log it too. https://github.com/NVIDIA/dgx-spark-playbooks/pull/108, seen 2026-11-15"""
_CLEAN_END = re.compile(
    r"Reached target .*(?:Power-Off|Reboot|Shutdown|Halt)|systemd-shutdown|Journal stopped"
)


def memory_total(facts: HostFacts) -> CheckVerdict:
    if facts.memory is None:
        return unknown("needs /proc/meminfo")
    line = f"MemTotal: {show_bytes(facts.memory.total_bytes)}"
    if not facts.is_spark:
        return skipped("the size is known only for a GB10")
    low, high = _TOTAL_BYTES
    return good(line) if low <= facts.memory.total_bytes <= high else bad(line)


def page_cache(facts: HostFacts) -> CheckVerdict:
    memory = facts.memory
    if memory is None or memory.cached_bytes is None:
        return unknown("needs /proc/meminfo")
    cache = memory.cached_bytes - (memory.shmem_bytes or 0)
    line = (
        f"MemAvailable: {show_bytes(memory.available_bytes)}, MemFree: {show_bytes(memory.free_bytes)}, "
        f"page cache {show_bytes(cache)}"
    )
    if not facts.is_spark:
        return skipped("CPU and GPU share the memory only on a GB10")
    stuck = cache > _CACHE_BYTES and memory.free_bytes < memory.total_bytes // 10
    return bad(line, cache=show_bytes(cache), free=show_bytes(memory.free_bytes)) if stuck else good(line)


def dirty_pages(facts: HostFacts) -> CheckVerdict:
    sizes = [facts.meminfo.get(name) for name in ("Dirty", "Writeback")]
    if sizes[0] is None:
        return unknown("needs /proc/meminfo")
    if not facts.is_spark:
        return skipped("CPU and GPU share the memory only on a GB10")
    held = sum(size or 0 for size in sizes)
    line = f"Dirty: {show_bytes(sizes[0])}, Writeback: {show_bytes(sizes[1] or 0)}"
    return bad(line, held=show_bytes(held)) if held > _DIRTY_BYTES else good(line)


def memory_lost(facts: HostFacts) -> CheckVerdict:
    if not facts.is_spark:
        return skipped("only on a GB10 the GPU's memory is the host's")
    if facts.memory is None or facts.gpu_processes is None:
        return unknown("needs /proc/meminfo and nvidia-smi")
    accounted = sum(facts.meminfo.get(name, 0) for name in _ACCOUNTED)
    lost = facts.memory.total_bytes - accounted
    line = f"{show_bytes(max(0, lost))} of {show_bytes(facts.memory.total_bytes)} belong to nobody"
    if facts.gpu_processes:
        return skipped(f"{facts.gpu_processes[0].name} uses the GPU, whose memory Linux does not count")
    return bad(line, lost=show_bytes(lost)) if lost > _LOST_BYTES else good(line)


def orphans(facts: HostFacts) -> CheckVerdict:
    if not facts.processes:
        return unknown("needs ps")
    engines = [row for row in facts.processes if row.name.startswith(("VLLM::", "sglang::"))]
    row = next((row for row in engines if row.parent == 1 and row.age_s > _ORPHAN_S), None)
    if row:
        line = f"{row.pid} {row.user} {row.name}, {show_bytes(row.resident_bytes)}"
        return bad(line, pid=row.pid, name=row.name)
    return good("no engine process without its server")


def gpu_processes(facts: HostFacts) -> CheckVerdict:
    if facts.gpu_processes is None:
        return unknown("needs nvidia-smi") if facts.is_spark else skipped("no NVIDIA GPU")
    others = [row for row in facts.gpu_processes if not _ENGINES.search(row.name)]
    if not others:
        return good(f"nvidia-smi: {', '.join(row.name for row in facts.gpu_processes) or 'no process'}")
    most = max(others, key=lambda row: row.used_bytes or 0)
    held = f" with {show_bytes(most.used_bytes)}" if most.used_bytes else ""
    return bad(f"nvidia-smi: {most.pid}, {most.name}{held}", pid=most.pid, name=most.name, held=held)


def kernel_faults(facts: HostFacts) -> CheckVerdict:
    section = facts.probe.sections.get("kernel-log")
    if section is None or section.code:
        return unknown("needs sudo, or the group adm: sudo usermod -aG adm $USER and a new login")
    lines = [line for line in section.text.splitlines() if not _HARMLESS.search(line)]
    for pattern, level, what in _FAULTS:
        found = [line for line in lines if re.search(pattern, line)]
        if found:
            return bad(found[-1], "stop" if level == "stop" else "warn", what=what, count=len(found))
    return good("nothing in the kernel log of this boot")


def last_boot(facts: HostFacts) -> CheckVerdict:
    lines = facts.probe.lines("last-boot")
    if not lines:
        return unknown("needs a kept journal of the boot before (sudo journalctl -b -1)")
    if any(_CLEAN_END.search(line) for line in lines):
        return good("the boot before ended with a shutdown")
    return bad(lines[-1])


def memory_killers(facts: HostFacts) -> CheckVerdict:
    if not facts.units:
        return unknown("needs systemctl")
    active = [name for name in _KILLERS if name in facts.units and facts.units[name].active == "active"]
    if not active:
        return good("no earlyoom, systemd-oomd, nohang or dgx-anti-oom is active")
    if "earlyoom.service" in active:
        arguments = re.search(r'EARLYOOM_ARGS="?([^"\n]*)', facts.probe.text("etc/default/earlyoom"))
        text = arguments[1] if arguments else ""
        percent = re.search(r"-m\s*(\d+)", text)
        if len(active) == 1 and percent and int(percent[1]) <= 2:
            return good(f'/etc/default/earlyoom: EARLYOOM_ARGS="{text}"')
        return bad(f'earlyoom is active, EARLYOOM_ARGS="{text}"', who=", ".join(active))
    if active == ["systemd-oomd.service"]:
        return bad("systemd-oomd.service is active", "note", who=active[0])
    return bad(f"{', '.join(active)}: active", who=", ".join(active))


def swap(facts: HostFacts) -> CheckVerdict:
    value = facts.value("proc/sys/vm/swappiness")
    swaps = facts.probe.lines("proc/swaps")[1:]
    if value is None or not value.isdigit():
        return unknown("needs /proc/sys/vm/swappiness")
    line = f"/proc/sys/vm/swappiness: {value}; {len(swaps)} swap areas"
    if not facts.is_spark:
        return skipped("the advice is for memory that a GPU shares")
    return bad(line, value=value) if swaps and int(value) > 10 else good(line)


def reserved_memory(facts: HostFacts) -> CheckVerdict:
    minimum, huge = facts.value("proc/sys/vm/min_free_kbytes"), facts.value("proc/sys/vm/nr_hugepages")
    if minimum is None or not minimum.isdigit() or facts.memory is None:
        return unknown("needs /proc/sys/vm/min_free_kbytes")
    line = f"vm.min_free_kbytes: {minimum}; vm.nr_hugepages: {huge}"
    if huge and huge.isdigit() and int(huge):
        held = int(huge) * facts.meminfo.get("Hugepagesize", 2 * MIB)
        return bad(line, what=f"{huge} huge pages ({show_bytes(held)}), which CUDA cannot use")
    if int(minimum) * 1024 > facts.memory.total_bytes // 100 and int(minimum) > 512 * 1024:
        held = int(minimum) * 1024
        return bad(line, what=f"{show_bytes(held)} for the kernel alone, more than a hundredth of the memory")
    return good(line)


def kexec_handover(facts: HostFacts) -> CheckVerdict:
    """The kernel gives what it sets aside for a handover back as memory of CMA, outside of any area that it
    counts: more of it is free then than there is. No page can be pinned there, as RDMA has to."""
    total, free = facts.meminfo.get("CmaTotal"), facts.meminfo.get("CmaFree")
    if total is None or free is None:
        return skipped("this kernel has no CMA") if facts.meminfo else unknown("needs /proc/meminfo")
    line = f"CmaTotal: {total // KIB} kB; CmaFree: {free // KIB} kB; uname -r: {facts.kernel}"
    return bad(line, free=show_bytes(free)) if free > total else good(line)


def huge_page_mode(facts: HostFacts) -> CheckVerdict:
    value = facts.value("sys/kernel/mm/transparent_hugepage/enabled")
    if value is None:
        return unknown("needs /sys/kernel/mm/transparent_hugepage/enabled")
    line = f"transparent_hugepage/enabled: {value}"
    chosen = re.search(r"\[(\w+)\]", value)
    return bad(line) if (chosen[1] if chosen else value) == "never" else good(line)


def desktop(facts: HostFacts) -> CheckVerdict:
    if not facts.processes:
        return unknown("needs ps")
    rows = [row for row in facts.processes if _DESKTOP.fullmatch(row.name)]
    held = sum(row.resident_bytes for row in rows)
    target = facts.link("etc/systemd/system/default.target") or facts.probe.text("default-target").strip()
    if held < _DESKTOP_BYTES:
        return good(f"desktop programs hold {show_bytes(held)}; default target {target or 'unknown'}")
    biggest = max(rows, key=lambda row: row.resident_bytes)
    line = (
        f"{biggest.name} (pid {biggest.pid}) {show_bytes(biggest.resident_bytes)}; {len(rows)} such programs"
    )
    return bad(line, held=show_bytes(held))


def memory_pressure(facts: HostFacts) -> CheckVerdict:
    if facts.pressure is None:
        return unknown("needs a kernel with PSI: /proc/pressure/memory")
    line = f"/proc/pressure/memory: some avg10={facts.pressure.some_avg10:.2f}"
    return (
        bad(line, share=f"{facts.pressure.some_avg10:.0f}") if facts.pressure.some_avg10 >= 10 else good(line)
    )


JUDGES: dict[str, Judge] = {
    "memory-total": memory_total,
    "page-cache": page_cache,
    "dirty-pages": dirty_pages,
    "memory-lost": memory_lost,
    "memory-pressure": memory_pressure,
    "orphans": orphans,
    "gpu-processes": gpu_processes,
    "kernel-faults": kernel_faults,
    "last-boot": last_boot,
    "memory-killers": memory_killers,
    "swap": swap,
    "reserved-memory": reserved_memory,
    "kexec-handover": kexec_handover,
    "huge-page-mode": huge_page_mode,
    "desktop": desktop,
}
