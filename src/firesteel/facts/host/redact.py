"""Takes secrets, names and hardware addresses out of a probe, so that it can be shown to strangers. Pure.

Private network addresses stay: without them nobody can judge the rails of a cluster.
"""

from __future__ import annotations

import ipaddress
import re

from firesteel.facts.host.probe import Probe, Section, probe_script

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


def redact_probe(probe: Probe) -> Probe:
    """The user becomes `user`, other accounts `other`, the host `host`; public addresses are removed."""
    names = _names(probe)
    sections: dict[str, Section] = {}
    for name, section in probe.sections.items():
        text = redact(section.text)
        for old, new in names.items():
            text = re.sub(rf"(?<![\w.-]){re.escape(old)}(?![\w-])", new, text)
        if name not in _VERSIONED:
            text = _IPV4.sub(_public, text)
        sections[name] = Section(text, section.code)
    return Probe(sections)


def _names(probe: Probe) -> dict[str, str]:
    """Names of people and of the host -> what stands for them.

    A name that the probe itself uses stays: it says nothing about anybody, and a host called `vm` or a user
    called `nvidia` would take `/proc/sys/vm` and the driver out of what is judged. So does an account that is
    called like its own program (`postgres`).
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
