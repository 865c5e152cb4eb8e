"""What was read on a host: named texts, from files and commands. Pure.

    script = probe_script()            run it by `sh` on any host, here or over ssh
    probe = parse_probe(output)        its output, or a bundle that `doctor --bundle` wrote
    facts = host_facts(probe)          firesteel.facts.host.host_facts

A remote host needs only `sh`, `grep` and `sed` for it. Because a probe is text, a recorded host, a simulated
one and a real one are judged by the same code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache

from firesteel import shipped_data
from firesteel.values import Value

WATCHED = (
    "gpu", "gpu-processes", "proc/meminfo", "proc/pressure/memory", "net", "kernel-log", "sensors", "uname",
    "dmi",
)  # fmt: skip
"""The sections that change from second to second and are cheap to read."""
_HEAD = re.compile(r"@ (\S{1,100}) (\d{1,5})")
_FILE_PREFIXES = ("proc/", "sys/", "etc/", "var/")
_VALUES = ("net", "rdma", "cpu", "block", "kernel", "dmi", "sensors")
_SETTINGS = ("logind", "sysctl", "limits-files", "udev", "network")
NOT_FOUND = 127
_SIM_ROOT = '"${FIRESTEEL_SIM:-}"'


class Section(Value):
    text: str
    code: int = 0
    """Of the command; of a file: 0 when it was read, 2 when there is none, else it may not be read."""

    @property
    def timed_out(self) -> bool:
        """The codes of `timeout`, and of what it had to kill. That says nothing about what was asked."""
        return self.code in (124, 137)


class Probe(Value):
    sections: Mapping[str, Section]

    def text(self, name: str) -> str:
        """Empty when it was not read, or the command failed."""
        section = self.sections.get(name)
        return section.text if section and section.code == 0 else ""

    def lines(self, name: str) -> list[str]:
        return [line for line in self.text(name).splitlines() if line.strip()]

    def values(self, name: str) -> dict[str, str]:
        """A section of `PATH:VALUE` lines."""
        pairs = (line.partition(":") for line in self.text(name).splitlines())
        return {path: value.strip() for path, colon, value in pairs if colon}

    def lacks(self, name: str) -> bool:
        """The program for it is not installed, or it was not asked for."""
        section = self.sections.get(name)
        return section is None or section.code == NOT_FOUND

    @property
    def is_complete(self) -> bool:
        return "end" in self.sections


@cache
def _script() -> str:
    return shipped_data.read_text("checks/probe.sh")


def probe_script(only: tuple[str, ...] = (), root: str = "") -> str:
    """The text of a shell script; `root` is a folder that takes the place of `/`.

    Without one, a simulated Spark is read where the script runs on it: here, or over its simulated ssh.
    """
    head = f"ONLY={shlex.quote(' '.join(only))}\nROOT={shlex.quote(root) if root else _SIM_ROOT}\n"
    return head + _script()


def parse_probe(output: str) -> Probe:
    """Lines that belong to no section are ignored: a login may print a greeting first."""
    sections: dict[str, Section] = {}
    name, code, lines = "", 0, list[str]()
    for line in output.splitlines():
        if head := _HEAD.fullmatch(line):
            if name:
                sections[name] = Section("\n".join(lines), code)
            name, code, lines = head[1], int(head[2]), []
        elif line.startswith("|") and name:
            lines.append(line[1:])
    if name:
        sections[name] = Section("\n".join(lines), code)
    return Probe(sections)


def format_probe(probe: Probe) -> str:
    """The text that `parse_probe` reads."""
    parts: list[str] = []
    for name, section in probe.sections.items():
        parts.append(f"@ {name} {section.code}")
        parts += [f"|{line}" for line in section.text.splitlines()]
    return "\n".join(parts) + "\n"


def probe_files(probe: Probe) -> dict[str, str]:
    """A probe as the files of a folder that can take the place of `/`: path -> content.

    Commands become recorded outputs under `commands/`; links are not files and have to be made by the caller
    (section `links`).
    """
    files: dict[str, str] = {}
    for name, section in probe.sections.items():
        if name in _VALUES:
            files |= {path: f"{value}\n" for path, value in probe.values(name).items()}
        elif name in _SETTINGS:
            for line in section.text.splitlines():
                path, _, setting = line.partition(":")
                files[path] = files.get(path, "") + f"{setting}\n"
        elif name.startswith(_FILE_PREFIXES):
            if section.code == 0:
                files[name] = f"{section.text}\n"
        elif name == "names":
            for path in section.text.splitlines():
                files.setdefault(path, "")
        elif name == "groups":
            files["etc/group"] = f"{section.text}\n"
        elif name not in ("links", "probe", "end"):
            files[f"commands/{name}"] = f"{section.text}\n" if section.text else ""
            if section.code:
                files[f"commands/{name}.code"] = f"{section.code}\n"
    return files
