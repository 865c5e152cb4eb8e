"""Start a service again after a reboot: a systemd unit that runs the same `firesteel up`.

The unit is of type `oneshot`: it has started when `up` ends, and it stays active while the supervisor runs in
its control group. Stopping the unit, as a shutdown does, sends SIGTERM to the supervisor. Root gets a system
unit, any other user a unit of their own, which needs lingering to start before they log in.
"""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import sys
from pathlib import Path

from firesteel.edge.home import Home, write_text
from firesteel.edge.host import process
from firesteel.edge.host.machine_files import sim_folder
from firesteel.errors import FiresteelError, HostNotReady

UNITS = "FIRESTEEL_UNITS"
"""Environment variable with another folder for units, for tests and for unusual systemd set-ups."""
_RETRIES = 5
_TEMPLATE = """\
# Written by `firesteel up {name} --boot`; `firesteel down {name}` removes it.
[Unit]
Description=firesteel: {name}
Wants=network-online.target
After=network-online.target docker.service
StartLimitIntervalSec=1h
StartLimitBurst={retries}

[Service]
Type=oneshot
RemainAfterExit=yes
Environment="FIRESTEEL_HOME={home}"
ExecStart={command}
TimeoutStartSec=infinity
TimeoutStopSec=2min
Restart=on-failure
RestartSec=30

[Install]
WantedBy={target}
"""


async def require_systemd() -> None:
    """It is installed and responds; a container may have `systemctl` alone."""
    if sim_folder():
        raise HostNotReady("a simulated Spark does not boot", next="leave --boot out")
    if shutil.which("systemctl") is None:
        raise HostNotReady("--boot needs systemd, and there is no systemctl here", next="leave --boot out")
    code, output = await process.run(*_systemctl(os.geteuid() == 0), "show-environment")
    if code:
        why = output.strip()[-300:]
        raise HostNotReady(f"--boot needs systemd, which does not respond: {why}", next="leave --boot out")


async def enable(name: str, home: Home, up_arguments: tuple[str, ...]) -> None:
    """`up_arguments`: what follows `firesteel up`."""
    is_root = os.geteuid() == 0
    argv = (sys.executable, "-P", "-m", "firesteel", "up", *up_arguments)
    path = unit_path(name, is_root=is_root, user_home=Path.home())
    write_text(path, unit_text(name, argv, home.root, is_root=is_root))
    await _run(*_systemctl(is_root), "daemon-reload")
    await _run(*_systemctl(is_root), "enable", path.name)
    if not is_root:  # otherwise the user's units start only when the user logs in
        await _run("loginctl", "enable-linger", getpass.getuser())


async def disable(name: str) -> None:
    is_root = os.geteuid() == 0
    path = unit_path(name, is_root=is_root, user_home=Path.home())
    if path.exists():  # `up` may have ended before it wrote the unit
        await _run(*_systemctl(is_root), "disable", path.name)
        path.unlink(missing_ok=True)


async def _run(*argv: str) -> None:
    code, output = await process.run(*argv)
    if code:
        raise FiresteelError(f"systemd refused the unit: {output.strip()[-300:]}", next=shlex.join(argv))


def _systemctl(is_root: bool) -> tuple[str, ...]:
    return ("systemctl",) if is_root else ("systemctl", "--user")


def unit_path(name: str, *, is_root: bool, user_home: Path) -> Path:
    folder = Path("/etc/systemd/system") if is_root else user_home / ".config/systemd/user"
    return Path(os.environ.get(UNITS) or folder) / f"firesteel-{name}.service"


def unit_text(name: str, argv: tuple[str, ...], home: Path, *, is_root: bool) -> str:
    target = "multi-user.target" if is_root else "default.target"
    command = " ".join(_quoted(argument) for argument in argv)
    return _TEMPLATE.format(
        name=name, retries=_RETRIES, home=_escaped(str(home)), command=command, target=target
    )


def _quoted(argument: str) -> str:
    needs_quotes = any(character in argument for character in " \t\"'\\;$%")
    return f'"{_escaped(argument)}"' if needs_quotes else argument


def _escaped(text: str) -> str:
    """For systemd, `%` begins a specifier and `$` a variable."""
    for character, escaped in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        text = text.replace(character, escaped)
    return text
