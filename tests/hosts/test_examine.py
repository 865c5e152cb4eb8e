"""`doctor` on this machine, on folders that stand for hosts, on bundles and on simulated Sparks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from firesteel.edge.home import Home
from firesteel.edge.host.machine import read_probe
from firesteel.edge.sim.host_files import host_faults, host_probe, write_host
from firesteel.facts.host.host_facts import HostFacts
from firesteel.facts.host.probe import Probe, Section, probe_script, redact
from firesteel.hosts.doctor.bundle import write_bundle
from firesteel.hosts.doctor.examine import examine, examine_file, examine_probe
from firesteel.rules.host.check import host_checks
from firesteel.rules.host.findings import judge
from tests.conftest import Firesteel


def test_this_machine_is_read_and_nothing_is_left_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-s"], input=probe_script().encode(), capture_output=True, check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.endswith(b"@ end 0\n")
    assert list(tmp_path.iterdir()) == []
    examination = examine(Home(tmp_path / "home"))
    assert examination.facts.memory and examination.facts.kernel
    assert examination.facts.processes or not shutil.which("ps")
    assert {finding.check for finding in examination.findings} == host_checks().keys()


@pytest.mark.parametrize("check", ["", "jumbo-frames", "remove-ipc", "read-ahead", "suspend", "memory-lost"])
def test_a_folder_that_stands_for_a_host_is_judged_like_its_record(check: str, tmp_path: Path) -> None:
    probe = host_probe(check)
    write_host(tmp_path, probe)
    again = {finding.check: finding for finding in judge(HostFacts.of(read_probe(tmp_path)))}
    for finding in judge(HostFacts.of(probe)):
        assert again[finding.check].level == finding.level, finding.check
        assert again[finding.check].says == finding.says


def test_a_program_that_cannot_be_ended_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nvidia-smi` beside a driver in distress: it ignores every signal but the last."""
    (tmp_path / "pid").touch()
    stuck = tmp_path / "nvidia-smi"
    stuck.write_text(f'#!/bin/sh\ntrap "" TERM HUP INT\necho $$ >> {tmp_path}/pid\nexec sleep 300\n')
    stuck.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    try:
        probe = read_probe(only=("gpu", "proc/meminfo"))
        assert probe.is_complete and probe.sections["gpu"].code != 0 and probe.text("proc/meminfo")
    finally:
        for number in (tmp_path / "pid").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)


def test_only_the_sections_that_are_asked_for_are_read(tmp_path: Path) -> None:
    write_host(tmp_path, host_probe())
    assert read_probe(tmp_path, ("net", "proc/meminfo")).sections.keys() == {
        "probe",
        "net",
        "proc/meminfo",
        "end",
    }


def test_a_bundle_is_judged_like_the_host_and_has_no_secrets(tmp_path: Path) -> None:
    host = tmp_path / "host"
    probe = host_probe("jumbo-frames")
    secret = "hf_abcdefghijklmnopqrstuvwxyz"
    sections = {**probe.sections, "network": Section(f"etc/netplan/1.yaml:      password: hunter2\n{secret}")}
    write_host(host, Probe(sections))
    (host / "commands/network").write_text(f"password: hunter2 {secret}")
    file = tmp_path / "bundle.txt"
    write_bundle(file, Home(tmp_path / "home"), host)
    text = file.read_text()
    for word in ("hunter2", secret, "spark-a", "(spark)", "/home/spark/"):
        assert word not in text, word
    assert "192.168.100.10" in text, "without its addresses a rail cannot be judged"
    mine = {finding.check: finding.level for finding in examine(Home(tmp_path), root=host).findings}
    assert {finding.check: finding.level for finding in examine_file(file).findings} == mine


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=hf_abcdefghijklmnop", "Authorization: Bearer abcdefghijklmno", 'api_key: "sk-abcdefghijkl"',
        "https://me:abcdefghijkl@host/x", "wifi psk=abcdefghijkl", "export NGC_API_KEY=nvapi-abcdefghijkl",
        "serial number: abcdefghijkl", "-----BEGIN OPENSSH PRIVATE KEY-----\nabcdefghijkl\n-----END X-----",
        '{"auths": {"password": "abcdefghijkl"}}', "client_secret = 'abcdefghijkl'",
    ],
)  # fmt: skip
def test_secrets_are_removed(text: str) -> None:
    assert "abcdefghijkl" not in redact(text)


def test_public_and_hardware_addresses_are_removed() -> None:
    probe = Probe({"addresses": Section("inet 8.8.8.8/24 mac 4c:bb:47:01:02:03; 10.0.0.7/8")})
    assert probe.redacted().text("addresses") == "inet 192.0.2.1/24 mac 00:00:00:00:00:00; 10.0.0.7/8"


@pytest.mark.parametrize(("user", "host"), [("spark", "spark-a"), ("nvidia", "vm")])
@pytest.mark.parametrize("fault", sorted(host_faults().faults))
def test_a_redacted_host_is_judged_the_same(fault: str, user: str, host: str) -> None:
    probe = Probe({**host_probe(fault).sections, "user": Section(user), "host": Section(host)})
    before = {finding.check: finding.level for finding in examine_probe(probe).findings}
    after = examine_probe(probe.redacted()).findings
    assert {finding.check: finding.level for finding in after} == before


# --- the command ---


def test_json_and_exit_codes(firesteel: Firesteel, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text(host_probe().format())
    bad.write_text(host_probe("rails-up").format())
    ran = firesteel("doctor", "--from", str(good), "--json")
    assert ran.code == 0 and ran.json["level"] == "unknown" and ran.json["is_spark"]
    ran = firesteel("doctor", "--from", str(bad), "--json")
    first = ran.json["findings"][0]
    assert ran.code == 5 and first["check"] == "rails-up" and first["level"] == "stop"
    assert first["evidence"] and first["costs"] and first["do"] and first["sources"][0]["url"]
    ran = firesteel("doctor", "--from", str(bad))
    assert "rails-up" in ran.out and "costs" in ran.out and "seen" in ran.out
    assert "next:" not in ran.out, "that host is elsewhere"
    assert firesteel("doctor", "--from", str(bad), "nope").code == 2
    (tmp_path / "x").write_text("hello")
    ran = firesteel("doctor", "--from", str(tmp_path / "x"))
    assert ran.code == 2 and "is not a `firesteel doctor` bundle" in ran.err
    assert firesteel("doctor", "--fix", "--undo").code == 2


def test_a_simulated_spark(firesteel: Firesteel) -> None:
    ran = firesteel("--sim", "bad-page-cache", "doctor", "--json")
    assert ran.code == 0 and [row["check"] for row in ran.json["findings"] if row["level"] == "warn"] == [
        "page-cache"
    ]
    ran = firesteel("--sim", "no-docker", "doctor", "--json")
    assert ran.code == 5 and ran.json["findings"][0]["check"] == "docker"
    ran = firesteel("--sim", "idle", "doctor", "--json")
    assert {row["level"] for row in ran.json["findings"]} <= {"good", "unknown", "skipped"}


def test_watch_tells_which_check_raises_the_alarm(firesteel: Firesteel) -> None:
    ran = firesteel("--sim", "bad-heat", "doctor", "--watch", "--count", "2", "--every", "0.2")
    assert "ALARM heat" in ran.out and "93 °C" in ran.out and "hw_thermal_slowdown" in ran.out
    assert ran.out.count("stop  heat:") == 1, "said once, not with every reading"
    assert ran.code == 5
    ran = firesteel("--sim", "idle", "doctor", "--watch", "--count", "1", "--json")
    assert ran.code == 0 and ran.json["alarms"] == [] and ran.json["rails_up"] == 2
