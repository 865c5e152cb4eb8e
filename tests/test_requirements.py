"""requirements/*.txt pin what pyproject.toml asks for, by version and hash and without an address."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PINS = {path.stem: path.read_text() for path in sorted((ROOT / "requirements").glob("*.txt"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ASKED = {
    "run": [
        *PROJECT["build-system"]["requires"],  # for the editable install of firesteel
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["workshop"],
        *PROJECT["project"]["optional-dependencies"]["images"],
    ],
    "dev": PROJECT["project"]["optional-dependencies"]["dev"],
}
ASKED["dev"] += ASKED["run"]


def pins(purpose: str) -> list[Requirement]:
    lines = re.findall(r"^([a-z0-9].*?) \\$", PINS[purpose], re.MULTILINE)
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("purpose", ASKED)
def test_every_pin_has_hashes_and_no_line_an_address(purpose: str) -> None:
    text = PINS[purpose]
    assert "://" not in text and not re.search(r"^\s*-", text.replace("    --hash=sha256:", ""), re.MULTILINE)
    blocks = re.split(r"\n(?=[a-z0-9])", text.strip())
    assert len(blocks) == len(pins(purpose)) > 30
    for block in blocks:
        assert re.match(r"[a-z0-9-]+==\S+.* \\\n    --hash=sha256:[0-9a-f]{64}", block), block[:100]


@pytest.mark.parametrize("purpose", ASKED)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_what_pyproject_asks_for_is_pinned_once(purpose: str, python: str, machine: str) -> None:
    environment = {
        **{key: str(value) for key, value in default_environment().items()},
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
    }
    pinned: dict[str, Requirement] = {}
    for pin in pins(purpose):
        if pin.marker is None or pin.marker.evaluate(environment):
            assert pin.name not in pinned
            pinned[canonicalize_name(pin.name)] = pin
    for asked in map(Requirement, ASKED[purpose]):
        if asked.marker is None or asked.marker.evaluate(environment):
            version = next(iter(pinned[canonicalize_name(asked.name)].specifier)).version
            assert asked.specifier.contains(version), f"{asked}: {version} is pinned"


def test_both_files_pin_the_same_versions() -> None:
    versions = {(pin.name, str(pin.specifier)) for pin in pins("dev")}
    only_in_run = {(pin.name, str(pin.specifier)) for pin in pins("run")} - versions
    assert not only_in_run
