"""A unit for systemd: held against systemd's own checker, and enabled through a recording `systemctl`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import run_firesteel

from firesteel.edge.home import Home, write_text
from firesteel.errors import FiresteelError
from firesteel.run.service import all_services
from firesteel.run.supervise.boot import disable, unit_path, unit_text

RECORDER = '#!/bin/sh\necho "$(basename "$0") $*" >> "$RECORD"\n'


def test_the_unit_runs_the_same_command(tmp_path: Path) -> None:
    argv = ("/usr/bin/python3", "-P", "-m", "firesteel", "up", "my model", "--port", "8000")
    text = unit_text("one", argv, tmp_path / "50% home", is_root=True)
    assert 'ExecStart=/usr/bin/python3 -P -m firesteel up "my model" --port 8000' in text
    assert "50%% home" in text and "WantedBy=multi-user.target" in text
    assert "WantedBy=default.target" in unit_text("one", argv, tmp_path, is_root=False)
    assert unit_path("one", is_root=False, user_home=tmp_path).is_relative_to(tmp_path)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own checker")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    argv = (shutil.which("true") or "/bin/true", "up", "a b", "--port", "8000")
    unit = tmp_path / "firesteel-one.service"
    unit.write_text(unit_text("one", argv, tmp_path, is_root=True))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    warnings = [
        line for line in done.stderr.splitlines() if unit.name in line and "docker.service" not in line
    ]
    assert warnings == []


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """With a `systemctl` and a `loginctl` that only write their arguments to `tmp_path / "record"`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("systemctl", "loginctl"):
        (programs / name).write_text(RECORDER)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    record, units = str(tmp_path / "record"), str(tmp_path / "units")
    return {"HOME": str(tmp_path), "RECORD": record, "FIRESTEEL_UNITS": units}


@pytest.mark.real
def test_up_enables_the_unit_and_down_removes_it(
    quick_home: Home, free_port: int, tmp_path: Path, env: dict[str, str]
) -> None:
    record = tmp_path / "record"
    up = run_firesteel(quick_home.root, "up", "--port", str(free_port), "--boot", env=env)
    assert up.code == 0, up.err
    assert all_services(quick_home)[0].spec.at_boot
    assert "enable firesteel-smollm2.service" in record.read_text()
    unit = tmp_path / "units" / "firesteel-smollm2.service"
    assert f"firesteel up smollm2 --port {free_port} --boot" in unit.read_text()
    down = run_firesteel(quick_home.root, "down", env=env)
    assert down.code == 0 and "no longer starts when the machine boots" in down.err
    assert "disable firesteel-smollm2.service" in record.read_text() and not unit.exists()


@pytest.mark.real
def test_up_fails_before_the_start_where_systemd_does_not_run(
    quick_home: Home, free_port: int, tmp_path: Path, env: dict[str, str]
) -> None:
    """As in a container: systemctl is installed, and there is nothing that it could reach."""
    bus = "Failed to connect to bus: Host is down"
    (tmp_path / "bin" / "systemctl").write_text(f"#!/bin/sh\necho '{bus}' >&2\nexit 1\n")
    up = run_firesteel(quick_home.root, "up", "--port", str(free_port), "--boot", env=env)
    assert up.code == 5 and bus in up.err and "leave --boot out" in up.err, up.err
    assert "launch" not in up.err and not all_services(quick_home)


@pytest.mark.real
def test_up_enables_the_unit_of_a_service_that_is_already_up(
    quick_home: Home, free_port: int, tmp_path: Path, env: dict[str, str]
) -> None:
    record = tmp_path / "record"
    asked = ("up", "--port", str(free_port))
    assert run_firesteel(quick_home.root, *asked, env=env).code == 0
    try:
        assert not record.exists()
        up = run_firesteel(quick_home.root, *asked, "--boot", env=env)
        assert up.code == 0 and "is already up" in up.err, up.err
        assert "smollm2 starts when the machine boots" in up.err
        assert "enable firesteel-smollm2.service" in record.read_text()
        unit = tmp_path / "units" / "firesteel-smollm2.service"
        assert f"firesteel up smollm2 --port {free_port} --boot" in unit.read_text()
        record.unlink()
        again = run_firesteel(quick_home.root, *asked, "--boot", env=env)
        assert again.code == 0 and "boots" not in again.err and not record.exists()
    finally:
        down = run_firesteel(quick_home.root, "down", env=env)
    assert down.code == 0 and "no longer starts when the machine boots" in down.err
    assert not unit.exists()


async def test_a_unit_that_was_never_written_is_not_disabled(
    tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd refuses to disable what it does not know, and `down` would fail."""
    monkeypatch.setenv("FIRESTEEL_UNITS", env["FIRESTEEL_UNITS"])
    (tmp_path / "bin" / "systemctl").write_text("#!/bin/sh\nexit 1\n")
    await disable("smollm2")
    write_text(unit_path("smollm2", is_root=os.geteuid() == 0, user_home=tmp_path), "[Unit]\n")
    with pytest.raises(FiresteelError, match="systemd refused"):
        await disable("smollm2")


@pytest.mark.real
@pytest.mark.parametrize("first", [("--boot",), ()])
def test_an_up_that_continues_a_killed_one_enables_the_unit(
    quick_home: Home, free_port: int, tmp_path: Path, env: dict[str, str], first: tuple[str, ...]
) -> None:
    record = tmp_path / "record"
    with subprocess.Popen(
        [sys.executable, "-m", "firesteel", "up", "--port", str(free_port), *first],
        env={**os.environ, "FIRESTEEL_HOME": str(quick_home.root), **env},
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stderr is not None
        next(line for line in child.stderr if line.startswith("launch") and "loading" in line)
        child.kill()
    assert not record.exists() or "enable " not in record.read_text()
    again = run_firesteel(quick_home.root, "up", "--port", str(free_port), "--boot", env=env)
    assert again.code == 0 and "continuing from there" in again.err, again.err
    assert "enable firesteel-smollm2.service" in record.read_text()
    down = run_firesteel(quick_home.root, "down", env=env)
    assert down.code == 0 and "no longer starts when the machine boots" in down.err
