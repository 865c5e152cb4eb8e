"""A host in one readable file: what was read on it, without secrets, for readers who cannot log in."""

from __future__ import annotations

from pathlib import Path

from firesteel import __version__
from firesteel.edge.home import Home
from firesteel.edge.host.machine import read_probe
from firesteel.errors import UsageError
from firesteel.facts.host.probe import Probe, Section
from firesteel.hosts.doctor.examine import with_measurements
from firesteel.run.service import all_services, last_lines

_HEAD = (
    "# A host as `firesteel doctor` read it. Judge it with: firesteel doctor --from FILE",
    "# `@ NAME CODE` begins a section, lines of text follow after `|`. Secrets, account and host names,",
    "# hardware addresses and public addresses were removed; look through it before you send it.",
    "",
)
_LOG_LINES = 60


def write_bundle(path: Path, home: Home, root: Path | None = None) -> Probe:
    """Writes the bundle; what was written is returned."""
    probe = read_probe(root)
    if root is None:
        probe = with_measurements(probe, home)
    sections = dict(probe.sections)
    end = sections.pop("end", Section(""))
    sections["firesteel"] = Section(__version__)
    for service in all_services(home):
        sections[f"service-{service.name}"] = Section(
            "\n".join([f"phase {service.phase}", *last_lines(service.log, _LOG_LINES)])
        )
    redacted = Probe({**sections, "end": end}).redacted()
    try:
        with path.open("x") as file:
            file.write("\n".join(_HEAD) + redacted.format())
    except FileExistsError:
        raise UsageError(
            f"{path} exists, and is not overwritten", next="firesteel doctor --bundle ANOTHER-FILE"
        ) from None
    return redacted
