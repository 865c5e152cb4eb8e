"""What the surroundings do to the program: streams closed or full, a home of somebody else, odd names.

Each is a sentence with what to type, never a traceback.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.inside import inside
from tests.conftest import Firesteel, run_firesteel

ROOT = Path(__file__).parents[2]
FAULTS = ("Traceback", "internal error", "Exception ignored")
COMMANDS = [
    ["ps"], ["models"], ["plan", "smollm2"], ["up"], ["down", "--all"], ["logs"], ["pull", "smollm2"],
    ["bench", "list"], ["serve", "key", "list"], ["client", "opencode"], ["verify"], ["serve", "smollm2"], [],
]  # fmt: skip


def run(home: Path, redirect: str, *words: str) -> subprocess.CompletedProcess[str]:
    line = f'exec "$0" -m firesteel "$@" {redirect}'
    return subprocess.run(
        ["sh", "-c", line, sys.executable, *words],
        env={**os.environ, "FIRESTEEL_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("redirect", "code", "says"),
    [
        (">/dev/full", 1, "the output could not be written: No space left on device"),
        (">&-", 1, "stdout is closed"),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("| true", 0, ""),
    ],
)
@pytest.mark.parametrize("words", [["ps"], ["check", "--facts", "--json"]])
def test_streams(tmp_path: Path, words: list[str], redirect: str, code: int, says: str) -> None:
    ran = run(tmp_path, redirect, *words)
    assert ran.returncode == code and says in ran.stderr, ran
    assert not any(fault in ran.stderr for fault in FAULTS)
    assert "next: firesteel" in ran.stderr or not says


def test_a_pipe_that_closes_in_the_middle(tmp_path: Path) -> None:
    ran = run(tmp_path, "| head -1", "check", "--facts", "--json")
    assert ran.stdout and ran.stderr == ""


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root reads everybody's files by two capabilities; without them this thread is a user like others."""
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None)
    assert libc.capget(header, sets) == 0
    effective = sets[0]
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = effective
        assert libc.capset(header, sets) == 0


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "bare")
def test_a_home_that_sudo_left(
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "home"
    (home / "services").mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(home, 65534, 65534)
    home.chmod(0o700 if os.geteuid() == 0 else 0)
    with without_privileges():
        ran = inside(home, monkeypatch, capfd)(*words)
    home.chmod(0o700)
    assert ran.code in (1, 5), ran
    assert str(home) in ran.err and "next: " in ran.err and "Permission denied" in ran.err
    assert not any(fault in ran.err for fault in FAULTS)


def test_a_path_beyond_ascii_in_the_plain_locale(tmp_path: Path) -> None:
    (tmp_path / "clön").symlink_to(ROOT / "src")
    env = {"LC_ALL": "C", "PYTHONPATH": str(tmp_path / "clön"), "PYTHONUTF8": "0"}
    ran = run_firesteel(tmp_path / "höme", "ps", env=env)
    assert ran.code == 0 and ran.out + ran.err == "nothing is running; next: firesteel up\n", ran


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "bare")
def test_a_home_that_is_a_file(
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "home"
    home.touch()
    ran = inside(home, monkeypatch, capfd)(*words)
    assert ("internal error" not in ran.err and "next: " in ran.out + ran.err) or ran.code == 0


@pytest.mark.parametrize(
    "command", ["up", "pull", "plan", "down", "verify", "bench", "tune", "render", "logs"]
)
def test_an_empty_name(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = inside(tmp_path, monkeypatch, capfd)(command, "")
    assert (
        ran.code == 2 and "an argument is empty" in ran.err and f"next: firesteel {command} --help" in ran.err
    )


@pytest.mark.parametrize("name", ["a" * 5000, "a\u202eb", "a\nnext: rm -rf /", "a\x1b[2Jb", "a\x9b2J"])
@pytest.mark.parametrize("command", ["up", "pull", "plan", "down", "logs", "verify", "check"])
def test_an_odd_name(
    command: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ran = inside(tmp_path, monkeypatch, capfd)(command, name)
    assert ran.code in (1, 2, 5) and len(ran.err) < 1500 and "internal error" not in ran.err
    shown = ran.err.splitlines()
    assert all(line.isprintable() for line in shown) and shown[-1].startswith("next: "), shown
    assert not any(line.startswith("next: rm") for line in shown)


def test_a_folder_in_place_of_a_measurement(firesteel: Firesteel, tmp_path: Path) -> None:
    (tmp_path / "home" / "bandwidth.json" / "x").mkdir(parents=True)
    assert firesteel("plan", "smollm2").code == 0
    assert (tmp_path / "home" / "bandwidth.json.damaged-1" / "x").is_dir()


def test_a_package_without_its_metadata(tmp_path: Path) -> None:
    """As from a plain PYTHONPATH: the gateway's version does not come from an installation."""
    code = (
        "import importlib.metadata as m\n"
        "def missing(name): raise m.PackageNotFoundError(name)\n"
        "m.version = m.distribution = missing\n"
        "import firesteel.gateway.admin.api as api; print(api.VERSION)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stdout.strip(), ran.stderr


INTERRUPTS = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "NAME":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    "module", ["firesteel.cli", "click", "click.types", "firesteel.cli.output", "firesteel.cli.ps", "rich"]
)
def test_an_interrupt_while_modules_load(tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS.replace("NAME", module))
    path = f"{tmp_path}:{ROOT / 'src'}"
    ran = run_firesteel(tmp_path, "ps", env={"PYTHONPATH": path})
    assert ran.code in (130, -signal.SIGINT), ran
    assert ran.err.strip() in ("", "interrupted") and ran.out == ""


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """`nohup` ignores SIGHUP so that a closed terminal does not end what it runs."""
    code = (
        "import asyncio, os, signal\n"
        "from firesteel.edge.host.signals import cancel_on_signals, interrupted_by_signals\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "async def main():\n"
        "    cancel_on_signals(); os.kill(os.getpid(), signal.SIGHUP); await asyncio.sleep(0.05)\n"
        "with interrupted_by_signals(): os.kill(os.getpid(), signal.SIGHUP)\n"
        "asyncio.run(main()); print('went on')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout == "went on\n", ran.stderr
