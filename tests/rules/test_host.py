"""Checks of a host over recorded hosts: each is bad once, and good on the good ones."""

from __future__ import annotations

import re

import pytest

from firesteel.edge.sim.host_files import host_faults, host_probe
from firesteel.facts.host.host_facts import HostFacts, HostMeasurement, measured_section
from firesteel.facts.host.probe import Probe, Section, probe_script
from firesteel.rules.host.check import host_checks
from firesteel.rules.host.findings import _ASKS, JUDGES, HostFinding, differences, judge, judge_one
from firesteel.rules.host.fixes import FIXERS, plan_fix
from firesteel.values import replace

COMPANIONS = {"load-mode": {"kernel-known"}}
"""An old kernel is found by both."""


def findings(probe: Probe) -> dict[str, HostFinding]:
    return {finding.check: finding for finding in judge(HostFacts.of(probe))}


def with_section(probe: Probe, name: str, text: str, code: int = 0) -> Probe:
    return replace(probe, sections={**probe.sections, name: Section(text, code)})


def test_every_check_has_data_a_judgement_and_a_bad_host() -> None:
    assert host_checks().keys() == JUDGES.keys() == host_faults().faults.keys()
    assert FIXERS.keys() <= JUDGES.keys()


@pytest.mark.parametrize("check", host_checks())
def test_a_check_finds_its_fault_and_nothing_else(check: str) -> None:
    found = findings(host_probe(check))
    bad = {name for name, finding in found.items() if finding.is_bad}
    assert bad == {check} | COMPANIONS.get(check, set())
    finding = found[check]
    assert finding.evidence and finding.costs and finding.do and finding.sources
    assert "{" not in f"{finding.says}{finding.costs}{finding.do}".replace("{{", ""), "a value is missing"
    other = {name for name, finding in findings(host_probe()).items() if finding.level == "good"}
    assert check in other | {"clock-under-load", "rails-bandwidth"}, "the good host has it good"


@pytest.mark.parametrize("host", host_faults().hosts)
def test_nothing_is_wrong_with_a_good_host(host: str) -> None:
    facts = HostFacts.of(host_probe(host=host))
    assert [finding.check for finding in judge(facts) if finding.is_bad] == []
    assert facts.is_spark == (host != "no-spark")


def test_an_idle_gpu_is_never_judged_by_its_clock() -> None:
    idle = findings(host_probe())["clock-under-load"]
    assert idle.level == "unknown" and "--measure" in idle.says
    assert findings(host_probe(host="busy"))["clock-under-load"].level == "good"


def test_the_last_measurement_counts_while_the_gpu_is_idle() -> None:
    slow = with_section(host_probe(), "measured", "gpu_clock_mhz|611|MHz|2026-11-10")
    assert findings(slow)["clock-under-load"].level == "stop"
    fast = with_section(host_probe(), "measured", "gpu_clock_mhz|2410|MHz|2026-11-10")
    assert findings(fast)["clock-under-load"].level == "good"


def meminfo_with(total: int, free: int) -> Probe:
    probe = host_probe()
    text = re.sub(r"CmaTotal: +\d+", f"CmaTotal: {total}", probe.sections["proc/meminfo"].text)
    return with_section(probe, "proc/meminfo", re.sub(r"CmaFree: +\d+", f"CmaFree: {free}", text))


@pytest.mark.parametrize(
    ("total", "free", "level"),
    [(0, 940604, "warn"), (0, 9_751_000, "warn"), (0, 0, "good"), (32768, 32768, "good"), (65536, 0, "good")],
)
def test_a_kexec_handover_shows_in_the_memory_of_cma(total: int, free: int, level: str) -> None:
    """As on two pairs of Sparks with kernel 7.0.0-1019, before and after `kho=off`."""
    finding = findings(meminfo_with(total, free))["kexec-handover"]
    assert finding.level == level
    if level == "warn":
        assert finding.do and "kho=off" in finding.do and "nvidia-spark-grub-kho" in finding.do


@pytest.mark.parametrize("kernel", ["7.0.0-1019-nvidia", "7.0.0-31-generic", "7.1.0-1002-nvidia"])
def test_a_kernel_that_nobody_tested_is_not_called_good(kernel: str) -> None:
    found = findings(with_section(host_probe(), "uname", f"Linux {kernel} aarch64"))["kernel-known"]
    assert found.level == "unknown" and "kho=off" in found.says


def test_the_advice_to_upgrade_names_what_the_new_kernel_needs() -> None:
    old = findings(with_section(host_probe(), "uname", "Linux 6.11.0-1016-nvidia aarch64"))["kernel-known"]
    assert old.is_bad and old.do and "kexec-handover" in old.do


def test_what_cannot_be_read_says_what_would_let_it() -> None:
    nothing = Probe({"probe": Section("1"), "dmi": Section("sys/class/dmi/id/product_name:NVIDIA_DGX_Spark")})
    found = findings(nothing)
    assert not [finding for finding in found.values() if finding.level == "stop" and finding.check != "docker"
                and finding.check != "driver-match"]  # fmt: skip
    unknown = [finding for finding in found.values() if finding.level == "unknown"]
    assert len(unknown) > 15
    assert all(finding.says for finding in unknown)


@pytest.mark.parametrize("section", host_probe().sections)
def test_garbage_in_a_section_never_raises(section: str) -> None:
    letters = re.sub(r"\d", "x", host_probe().sections[section].text)
    for text in ("", "\x00\xff,,,|||:::\n{[", "a" * 5000, "1 2 3 4 5 6 7\n-1", letters):
        for code in (0, 1):
            facts = HostFacts.of(with_section(host_probe(host="busy"), section, text, code))
            for finding in judge(facts):
                if finding.is_bad:
                    plan_fix(finding.check, facts)


def desktop_held_by(program: str) -> str:
    rows = f"  4 1 me {3 * 2**20} 60 {program}\n"
    return findings(with_section(host_probe(), "processes", rows))["desktop"].level


@pytest.mark.parametrize(
    "program", ["code", "code-insiders", "cursor", "gnome-shell-cal", "Xorg", "xrdp-sesman"]
)
def test_what_draws_a_desktop_holds_memory(program: str) -> None:
    assert desktop_held_by(program) not in ("good", "unknown")


@pytest.mark.parametrize(
    "program", ["opencode", "claude-code", "code-tunnel", "cursor-agent", "vscode-server"]
)
def test_what_runs_in_a_terminal_is_no_desktop_program(program: str) -> None:
    assert desktop_held_by(program) == "good"


def test_a_harmless_message_of_the_network_card_is_ignored() -> None:
    assert "insufficient power" in host_probe().text("kernel-log")
    assert findings(host_probe())["kernel-faults"].level == "good"


def test_a_rail_of_another_domain_is_the_twin_by_its_port() -> None:
    facts = HostFacts.of(host_probe())
    assert [rail.name for rail in facts.cabled_rails] == ["enp1s0f1np1", "enP2p1s0f1np1"]
    assert {rail.port for rail in facts.cabled_rails} == {"p1"}


def test_netplan_files_that_only_root_can_read_are_not_called_missing() -> None:
    probe = with_section(host_probe(), "connections", "")
    assert findings(probe)["address-owner"].level == "unknown"
    read = with_section(probe, "names", "etc/netplan/40-cx7.yaml")
    read = with_section(
        read, "network", "etc/netplan/40-cx7.yaml:    enp1s0f1np1: {addresses: [192.168.100.10/24]}"
    )
    assert findings(read)["address-owner"].level == "warn", "the second rail is in no file"


@pytest.mark.parametrize(
    ("route", "level"),
    [
        ("192.168.100.0/24 via 10.8.0.1 dev wg0 metric 50", "warn"),
        ("192.168.101.128/25 dev br-3f2 linkdown", "warn"),
        ("192.168.100.11 dev tailscale0 table 52", "warn"),
        ("192.168.0.0/16 via 10.8.0.1 dev wg0", "good"),  # wider: the rail's own route wins
        ("192.168.100.11 dev enp1s0f1np1", "good"),
        ("192.168.101.0/24 dev eth9 proto kernel scope link src 192.168.101.7", "good"),  # rails-subnets
        ("192.168.999.0/24 dev wg0", "good"),
        ("192.168.100.7/24 dev wg0", "good"),
    ],
)
def test_a_route_that_takes_a_rails_traffic(route: str, level: str) -> None:
    text = f"{host_probe().text('routes').rstrip()}\n{route}"
    found = findings(with_section(host_probe(), "routes", text))["rail-routes"]
    assert found.level == level, found
    assert level == "good" or (found.undo or "").startswith(f"sudo ip route add {route.split()[0]}")
    assert "linkdown" not in f"{found.do}"


def test_the_default_route_of_a_vpns_own_table_is_not_the_hosts() -> None:
    rows = "default dev wlP9s9 table 52\n" + host_probe().text("routes")
    assert findings(with_section(host_probe(), "routes", rows))["default-route"].level == "good"


def test_a_rail_in_the_subnet_of_another_network_needs_no_second_rail() -> None:
    probe = host_probe("rails-addressed")
    rows = probe.text("addresses").replace("192.168.1.20/24", "192.168.100.20/24")
    assert findings(with_section(probe, "addresses", rows))["rails-subnets"].level == "stop"


@pytest.mark.parametrize(
    ("scheduler", "level"),
    [("[none] mq-deadline", "good"), ("none", "good"), ("none [bfq]", "note"), ("kyber", "note")],
)
def test_the_scheduler_of_the_disk(scheduler: str, level: str) -> None:
    rows = host_probe().text("block").replace("[none] mq-deadline", scheduler)
    assert findings(with_section(host_probe(), "block", rows))["disk-scheduler"].level == level


def test_the_updates_of_dgx_os() -> None:
    held = with_section(host_probe(), "held", "nvidia-driver-580-open\ndgx-spark-ota-update-meta")
    finding = findings(held)["system-updates"]
    assert finding.level == "note" and "held at 26.08" in finding.says and "unhold" in (finding.do or "")
    assert findings(with_section(host_probe(), "packages", "", 127))["system-updates"].level == "unknown"
    old = with_section(host_probe(), "packages", "dgx-spark-ota-update-meta 26.02")
    two = {"a": HostFacts.of(host_probe()), "b": HostFacts.of(old)}
    assert "release of DGX OS" in {each.what for each in differences(two)}


def test_parity() -> None:
    one, two = HostFacts.of(host_probe()), HostFacts.of(host_probe(host="spark-b"))
    assert differences({"a": one, "b": two}) == ()
    odd = HostFacts.of(host_probe("driver-branch", host="asus"))
    assert {each.what for each in differences({"a": one, "b": odd})} == {"machine", "driver", "BIOS"}


def test_a_probe_survives_writing_and_reading() -> None:
    probe = host_probe()
    assert Probe.parse("Welcome to DGX OS\n" + probe.format()) == probe


def test_limits_of_the_power_supply() -> None:
    facts = HostFacts.of(host_probe("power-limits"))
    assert "pl1 20 W" in judge_one(facts, "power-limits").evidence


@pytest.mark.parametrize(
    ("text", "code", "undo"),
    [
        ("docker: not found", 127, None),
        ("Cannot connect to the Docker daemon", 1, None),
        ("permission denied while trying to connect", 1, "sudo gpasswd -d nvidia docker"),
    ],
)
def test_only_what_can_be_taken_back_has_an_undo(text: str, code: int, undo: str | None) -> None:
    probe = with_section(host_probe(), "user", "nvidia")
    found = findings(with_section(probe, "docker", text, code))["docker"]
    assert found.level == "stop" and found.undo == undo


def test_figures_of_any_size_are_judged() -> None:
    """A rate of 2 GB/s is written as 2e+09."""
    figure = HostMeasurement("disk_read_bytes_per_s", 2.0e9, "B/s", "2026-11-16")
    probe = host_probe()
    sections = {**probe.sections, "measured": measured_section({figure.name: figure})}
    facts = HostFacts.of(Probe(sections))
    assert facts.measured == {figure.name: figure}
    assert "2.0 GB/s on 2026-11-16" in judge_one(facts, "store-disk").evidence


def test_a_machine_with_another_gpu_needs_no_docker() -> None:
    gpu = "NVIDIA H200, 580.159.04, 9.0, 143771, 36, 78.0, 345, 1980, 0, P0, 0x0000000000000001"
    probe = with_section(with_section(host_probe(), "gpu", gpu), "dmi", "")
    facts = HostFacts.of(with_section(probe, "docker", "docker: not found", 127))
    assert judge_one(facts, "docker").level == "warn" and facts.product == "a machine with NVIDIA H200"


ASKED = sorted(set(re.findall(r"^ask (\S+) ", probe_script(), re.M)))


@pytest.mark.parametrize("section", ASKED)
@pytest.mark.parametrize("code", [124, 137])
def test_a_busy_host_is_not_a_broken_one(section: str, code: int) -> None:
    before, found = findings(host_probe()), findings(with_section(host_probe(), section, "", code))
    assert [name for name, finding in found.items() if finding.is_bad] == []
    new = [name for name in found if found[name].level == "unknown" != before[name].level]
    assert all("in time" in found[name].says for name in new), new


def test_what_a_program_did_not_answer_is_no_good_news_either() -> None:
    assert _ASKS.keys() <= set(ASKED)
    for section, (program, checks) in _ASKS.items():
        found = findings(with_section(host_probe(), section, "", 124))
        assert all(f"`{program}` did not answer" in found[check].says for check in checks), section
