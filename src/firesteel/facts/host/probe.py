"""What was read on a host, with or without its secrets. Pure.

    script = probe_script()            run it by `sh` on any host, here or over ssh
    probe = Probe.parse(output)        its output, or a bundle that `doctor --bundle` wrote
    facts = HostFacts.of(probe)          firesteel.facts.host.host_facts

A remote host needs only `sh`, `grep` and `sed` for it. Because a probe is text, a recorded host, a simulated
one and a real one are judged by the same code.

`Probe.redacted` removes secrets, names and hardware addresses, so that a probe can be shown to strangers.
Private network addresses stay: without them the rails of a cluster cannot be judged.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Mapping

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

    @classmethod
    def parse(cls, output: str) -> Probe:
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
        return cls(sections)

    @property
    def is_complete(self) -> bool:
        return "end" in self.sections

    def format(self) -> str:
        """The text that `parse` reads."""
        parts: list[str] = []
        for name, section in self.sections.items():
            parts.append(f"@ {name} {section.code}")
            parts += [f"|{line}" for line in section.text.splitlines()]
        return "\n".join(parts) + "\n"

    def files(self) -> dict[str, str]:
        """The probe as the files of a folder that can take the place of `/`: path -> content.

        Commands become recorded outputs under `commands/`; links are not files and have to be made by the
        caller (section `links`).
        """
        files: dict[str, str] = {}
        for name, section in self.sections.items():
            if name in _VALUES:
                files |= {path: f"{value}\n" for path, value in self.values(name).items()}
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

    def redacted(self) -> Probe:
        """The user becomes `user`, other accounts `other`, the host `host`; public addresses are removed."""
        names = _names(self)
        sections: dict[str, Section] = {}
        for name, section in self.sections.items():
            text = redact(section.text)
            for old, new in names.items():
                text = re.sub(rf"(?<![\w.-]){re.escape(old)}(?![\w-])", new, text)
            if name not in _VERSIONED:
                text = _IPV4.sub(_public, text)
            sections[name] = Section(text, section.code)
        return Probe(sections)


def probe_script(only: tuple[str, ...] = (), root: str = "") -> str:
    """The text of a shell script; `root` is a folder that takes the place of `/`.

    Without one, a simulated Spark is read where the script runs on it: here, or over its simulated ssh.
    """
    head = f"ONLY={shlex.quote(' '.join(only))}\nROOT={shlex.quote(root) if root else _SIM_ROOT}\n"
    return head + shipped_data.read_text("checks/probe.sh")


_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|nvapi-[\w-]{8,}|sk-[\w-]{8,}|fs-[\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{12,}|AKIA[0-9A-Z]{12,}|xox[abpr]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.?[\w-]*)"
)
_NAMED = re.compile(
    r"(?i)((?:[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|psk|private[_-]?key|authorization"
    r"|credential)[\w.-]*)\"?\s*[:=]\s*)(\"[^\"\n]*\"|'[^'\n]*'|(?:Bearer |Basic )?[^\s,;}]+)"
)
_BEARER = re.compile(r"(?i)\b(Bearer|Basic) [\w.~+/=-]{8,}")
_URL_USER = re.compile(r"(\w+://)[^\s/@:]+(?::[^\s/@]*)?@")
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I)
_UUID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.I)
_IPV4 = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
_SERIAL = re.compile(r"(?i)(serial[\w ]*[:=]\s*)\S+")
_KEY_BLOCK = re.compile(r"-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END [^-]*-----|\Z)", re.S)
_VERSIONED = ("packages", "updates", "gpu", "docker")
"""Sections with four-part version numbers, which look like addresses."""
REDACTED = "<removed>"


def redact(text: str) -> str:
    """Keys, passwords, tokens, hardware addresses, serial numbers and public addresses."""
    text = _KEY_BLOCK.sub(REDACTED, text)
    text = _URL_USER.sub(rf"\1{REDACTED}@", text)
    text = _NAMED.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    text = _TOKENS.sub(REDACTED, text)
    text = _SERIAL.sub(rf"\1{REDACTED}", text)
    text = _UUID.sub("00000000-0000-0000-0000-000000000000", text)
    return _MAC.sub("00:00:00:00:00:00", text)


def _names(probe: Probe) -> dict[str, str]:
    """Names of people and of the host -> what stands for them.

    A name that the probe itself uses stays: it identifies no one, and without the names `vm` or `nvidia` the
    checks would not find `/proc/sys/vm` and the driver. An account with the name of its program (`postgres`)
    also stays.
    """
    user, host = probe.text("user").strip(), probe.text("host").strip()
    rows = [row.split() for row in probe.lines("processes")]
    accounts = {row[2] for row in rows if len(row) > 5 and re.fullmatch(r"[a-z_][\w.-]*", row[2])}
    programs = {row[5] for row in rows if len(row) > 5}
    names = dict.fromkeys(accounts - programs - _SYSTEM, "other") | {user: "user", host: "host"}
    known = {"", "root", *re.findall(r"[\w-]+", probe_script())}
    return {old: new for old, new in names.items() if old not in known}


_SYSTEM = frozenset((
    "avahi", "colord", "daemon", "kernoops", "messagebus", "nobody", "nvidia-persistenced", "polkitd",
    "rtkit", "syslog", "systemd-network", "systemd-oom", "systemd-resolve", "systemd-timesync", "uuidd",
    "whoopsie", "_rpc", "_chrony", "gdm", "dnsmasq", "statd", "tss",
))  # fmt: skip


def _public(match: re.Match[str]) -> str:
    try:
        address = ipaddress.IPv4Address(match[0])
    except ValueError:
        return match[0]
    return "192.0.2.1" if address.is_global else match[0]
