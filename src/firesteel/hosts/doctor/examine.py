"""Examine a host: this one, a folder that stands for one, or a bundle from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from firesteel.edge import files
from firesteel.edge.home import Home
from firesteel.edge.host.machine import latest, read_probe
from firesteel.edge.host.machine_files import sim_folder
from firesteel.errors import UsageError
from firesteel.facts.host.host_facts import HostFacts, host_facts, measured_section
from firesteel.facts.host.probe import Probe, parse_probe
from firesteel.rules.host.check import CheckLevel
from firesteel.rules.host.findings import HostFinding, judge, worst
from firesteel.values import Value, replace

_MAX_BUNDLE_BYTES = 20 * 2**20


class Examination(Value):
    facts: HostFacts
    findings: tuple[HostFinding, ...]
    """The worst first."""

    @property
    def level(self) -> CheckLevel:
        return worst(self.findings)


def examine(
    home: Home, *, root: Path | None = None, only: Iterable[str] = (), sections: tuple[str, ...] = ()
) -> Examination:
    """This host, or the one whose files are under `root`. Needs no root rights, loads and changes nothing."""
    probe = read_probe(root, sections)
    if root is None and "measured" not in probe.sections:
        probe = with_measurements(probe, home)
    return examine_probe(probe, only)


def with_measurements(probe: Probe, home: Home) -> Probe:
    """The last figures of `doctor --measure` as one more section; a simulated Spark has none."""
    figures = {} if sim_folder() else latest(home)
    if not figures:
        return probe
    return replace(probe, sections={**probe.sections, "measured": measured_section(figures)})


def examine_file(path: Path, only: Iterable[str] = ()) -> Examination:
    """A bundle that `doctor --bundle` wrote, or the output of the probe."""
    text = files.read_text(path, next="firesteel doctor --bundle FILE, on the host in question")
    probe = parse_probe(text[:_MAX_BUNDLE_BYTES])
    if "probe" not in probe.sections:
        raise UsageError(
            f"{path} is no bundle of `firesteel doctor`", next="firesteel doctor --bundle FILE writes one"
        )
    return examine_probe(probe, only)


def examine_probe(probe: Probe, only: Iterable[str] = ()) -> Examination:
    facts = host_facts(probe)
    return Examination(facts, judge(facts, only))
