"""Other hosts over OpenSSH's own client: commands, files, sessions, and what its failures mean.

The user's configuration, agent and known hosts apply. Commands to one host share a connection
(ControlMaster). Nothing here asks for a password: what needs one fails with what to type.

ssh ends with 255 when ssh itself failed and otherwise with the code of the command, so the two can be
distinguished: a host that cannot be reached is a HostNotReady, a command that failed is a `Finished` with its
code.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from firesteel.errors import FiresteelError, HostNotReady
from firesteel.values import Value

CONNECT_S = 5
_SSH_FAILED = 255
_PERSIST_S = 60
_PIPES_S = 15.0
_UNKNOWN_KEY = re.compile(r"Host key verification failed|No .{1,20}host key is known")
_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|[Oo]ffending .{1,20}key in",
        "{name} shows another host key than before: it was reinstalled, or the connection is intercepted",
        "if it was reinstalled: firesteel cluster remove {name}, ssh-keygen -R {host}, then "
        "firesteel cluster add {name}",
    ),
    (_UNKNOWN_KEY.pattern, "the host key of {name} is not known", "firesteel cluster add {name}"),
    (
        r"Permission denied",
        "{name} accepts none of your ssh keys for this user",
        "firesteel cluster add {name}, which creates a key for it",
    ),
    (r"Could not resolve hostname", "no host is called {host}", "firesteel cluster add NAME --host ADDRESS"),
    (r"Connection refused", "{name} runs no ssh server", "on {name}: sudo systemctl enable --now ssh"),
    (
        r"No route to host|timed out|Network is unreachable|banner exchange|Connection (?:closed|reset)|"
        r"lost connection|Broken pipe",
        "{name} does not answer",
        "check its power and cable: ping {host}",
    ),
)  # fmt: skip
"""What OpenSSH 8 to 9 print, what it means, and what to type. Tried in this order."""


class SshTarget(Value):
    """How to reach a host: what ssh gets in addition to the user's own configuration."""

    name: str
    host: str
    """A name that ssh's configuration or DNS knows, or an address."""
    user: str | None = None
    port: int | None = None
    folder: str = ""
    """Where this host's own key and its host key are kept."""
    via: str | None = None
    """An address of it to use in place of that of its name: a fast link."""


class Finished(Value):
    code: int
    out: str
    err: str


def ssh_argv(target: SshTarget, command: str, *options: str) -> list[str]:
    """One command on the host, over a connection that the next command shares."""
    # A node of the same name in another FIRESTEEL_HOME may be another host.
    home = hashlib.sha256(target.folder.encode()).hexdigest()[:8]
    shared = f"ControlPath={_socket_folder()}/{home}-%C"
    return _argv(
        target, command, "ControlMaster=auto", shared, f"ControlPersist={_PERSIST_S}",
        # A connection whose host lost its power would otherwise hold everything up that shares it.
        "ServerAliveInterval=4", "ServerAliveCountMax=2", *options,
    )  # fmt: skip


def session_argv(target: SshTarget, command: str) -> list[str]:
    """A session with its own connection: it does not end with the shared one."""
    alive = ("ServerAliveInterval=5", "ServerAliveCountMax=6", "ConnectTimeout=2", "ConnectionAttempts=1")
    return _argv(target, command, "ControlPath=none", *alive)


def _argv(target: SshTarget, command: str, *options: str) -> list[str]:
    own = (Path(target.folder) / "known_hosts", Path("~/.ssh/known_hosts").expanduser())
    identity = Path(target.folder) / "id_ed25519"
    settings = [
        # The first value of an option counts.
        *options, "BatchMode=yes", f"ConnectTimeout={CONNECT_S}", "LogLevel=ERROR",
        "UserKnownHostsFile=" + " ".join(f'"{path}"' for path in own),
    ]  # fmt: skip
    if not any(option.startswith("StrictHostKeyChecking") for option in options):
        settings.append("StrictHostKeyChecking=yes")
    if target.via:
        settings += [f"HostName={target.via}", f"HostKeyAlias={target.host}"]
    return [
        "ssh", "-T", *(word for setting in settings for word in ("-o", setting)),
        *(("-i", str(identity)) if identity.exists() else ()),
        *(("-l", target.user) if target.user else ()),
        *(("-p", str(target.port)) if target.port else ()),
        "--", target.host, command,
    ]  # fmt: skip


def _socket_folder() -> str:
    """A short path: the name of a socket has at most 108 characters. No other user may own it."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"firesteel-ssh-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise FiresteelError(f"{folder} belongs to another user", next=f"sudo rm -r {folder}")
    return str(folder)


async def run(
    target: SshTarget, command: str, stdin: bytes = b"", timeout_s: float = 60, *options: str
) -> Finished:
    """A command on the host. Raises HostNotReady if it cannot be reached in time."""
    child = await _start(ssh_argv(target, command, *options), asyncio.subprocess.PIPE)
    try:
        # The process of a new shared connection keeps stderr open: read until the command ends, not further.
        async with asyncio.timeout(timeout_s):
            out, err = await _communicate(child, stdin)
    except TimeoutError:
        raise HostNotReady(
            f"{target.name} did not answer within {timeout_s:.0f} s", next=f"ssh {target.host}"
        ) from None
    finally:
        if child.returncode is None:
            child.kill()
            # The shared connection has our pipes, and asyncio waits for these: it ends by itself in 12 s.
            with suppress(TimeoutError):
                async with asyncio.timeout(_PIPES_S):
                    await child.wait()
    code = child.returncode or 0
    if code == _SSH_FAILED:
        raise failure(target, err)
    return Finished(code, out, err)


async def _start(argv: Sequence[str], stderr: int) -> asyncio.subprocess.Process:
    """One of OpenSSH's programs, with pipes."""
    try:
        return await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stderr
        )
    except FileNotFoundError:
        what = f"{argv[0]} is not installed here"
        raise HostNotReady(what, next="sudo apt install openssh-client") from None


async def _communicate(child: asyncio.subprocess.Process, stdin: bytes) -> tuple[str, str]:
    assert child.stdin and child.stdout and child.stderr
    reading = asyncio.create_task(child.stderr.read())
    try:
        child.stdin.write(stdin)
        await child.stdin.drain()
        child.stdin.close()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it ended before it had read everything; its code and its words say why
    out = await child.stdout.read()
    await child.wait()
    try:
        async with asyncio.timeout(0.2):
            err = await reading
    except TimeoutError:  # which cancelled it
        err = b""
    return out.decode(errors="replace"), err.decode(errors="replace")


def failure(target: SshTarget, err: str) -> HostNotReady:
    words = {"name": target.name, "host": target.host}
    for pattern, what, hint in _FAILURES:
        if re.search(pattern, err):
            return HostNotReady(what.format(**words), next=hint.format(**words))
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    said = lines[-1][:200] if lines else "ssh ended without a word"
    return HostNotReady(f"{target.name} cannot be reached: {said}", next=f"ssh {target.host}")


async def fingerprint(target: SshTarget) -> tuple[str, str] | None:
    """The host key that it shows, as a line of known_hosts, and its fingerprint; None when it shows none."""
    port = ("-p", str(target.port)) if target.port else ()
    code, lines = await _local("ssh-keyscan", "-T", str(CONNECT_S), "-t", "ed25519", *port, target.host)
    line = next((line for line in lines.splitlines() if line and not line.startswith("#")), None)
    if code or line is None:
        return None
    _, shown = await _local("ssh-keygen", "-lf", "-", stdin=line)
    return line, shown.split()[1] if len(shown.split()) > 1 else shown.strip()


async def make_key(target: SshTarget) -> Path:
    """A key for this host alone; an existing one stays."""
    path = Path(target.folder) / "id_ed25519"
    if not path.exists():
        comment = f"firesteel for {target.name}"
        code, said = await _local(
            "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)
        )
        if code:
            raise HostNotReady(f"no key could be created: {said.strip()[:200]}", next="ssh-keygen -t ed25519")
    return path


async def send_files(target: SshTarget, files: dict[str, bytes], folder: str) -> None:
    """Small files into a folder of the host, relative to its home, each replaced in one step."""
    for name, content in files.items():
        path = shlex.quote(f"{folder}/{name}")
        done = await run(
            target,
            f"umask 077; mkdir -p {shlex.quote(folder)} && cat > {path}.new && mv {path}.new {path}",
            content,
        )
        if done.code:
            raise HostNotReady(
                f"{target.name}: {name} could not be written: {done.err.strip()[-200:]}",
                next=f"ssh {target.host} df -h '~'",
            )


async def forget(target: SshTarget) -> None:
    """Close the shared connection, if there is one."""
    argv = ssh_argv(target, "")
    await _local(*argv[: argv.index("--")], "-O", "exit", "--", target.host)


async def _local(*argv: str, stdin: str = "") -> tuple[int, str]:
    child = await _start(argv, asyncio.subprocess.DEVNULL)
    out, _ = await child.communicate(stdin.encode())
    return child.returncode or 0, out.decode(errors="replace")
