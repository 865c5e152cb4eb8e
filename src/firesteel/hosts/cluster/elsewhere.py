"""`--on NODE`: the same command on a node, with this firesteel, over ssh.

The node needs Python 3.11 and nothing else: this firesteel's files are copied to it once. Its packages are
installed there, as the launcher in the checkout does, unless its Python has them. The user's own
recipes go along. Input, output, colours and the exit code are those of the command.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import os
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

from firesteel.edge import ssh
from firesteel.edge.home import Home
from firesteel.edge.host.signals import interrupted_by_signals
from firesteel.edge.ssh import SshTarget
from firesteel.errors import HostNotReady, UsageError
from firesteel.hosts.cluster.nodes import NODE_FOLDER, find_node, local_name, target_of

PARTS = (
    "firesteel",
    "pyproject.toml",
    "hatch_build.py",
    "README.md",
    "LICENSE",
    "requirements/run.txt",
    "scripts/make-venv",
    "src",
)
_PACKAGES = "aiohttp, click, msgspec, rich, yaml"
SSH_FAILED = 255


def run_elsewhere(home: Home, name: str, argv: list[str]) -> int:
    target = target_of(home, find_node(home, name))
    folder = asyncio.run(prepare_node(target, home))
    words, files = _with_files(argv, folder)
    for path, content in files.items():
        asyncio.run(ssh.send_files(target, {Path(path).name: content}, str(Path(path).parent)))
    pid_file = f"{folder}/pid-{local_name()}-{os.getpid()}"
    there = f"echo $$ > {pid_file}; {command_on_node(folder, words, f'firesteel --on {name}')}"
    command = ssh.session_argv(target, there)
    if sys.stdin.isatty() and sys.stdout.isatty():
        command[1] = "-t"
    try:
        with interrupted_by_signals():
            code = subprocess.run(command, check=False).returncode
    except KeyboardInterrupt:  # without a terminal it gets no signal, and a gateway would stay
        asyncio.run(ssh.run(target, f"kill -TERM $(cat {pid_file})"))
        raise
    if code == SSH_FAILED:
        raise HostNotReady(f"the connection to {name} was lost", next=f"firesteel --on {name} ps")
    return code


def command_on_node(folder: str, words: list[str], called: str = "firesteel") -> str:
    """`python3 -P`: nothing in the folder that happens to be current may replace our modules. `called`: what
    its hints begin with."""
    arguments = shlex.join(words)
    return (
        f'cd && d="$PWD/{folder}" && export FIRESTEEL_COMMAND={shlex.quote(called)} && '
        f"if python3 -P -c 'import {_PACKAGES}' 2>/dev/null; then "
        f'PYTHONPATH="$d/src" exec python3 -P -m firesteel {arguments}; '
        f'else exec "$d/firesteel" {arguments}; fi'
    )


async def prepare_node(target: SshTarget, home: Home) -> str:
    root = Path(__file__).resolve().parents[4]
    if not (root / "scripts/make-venv").exists():
        hint = "firesteel --help"
        raise UsageError("--on needs firesteel from a checkout, to copy it to the node", next=hint)
    archive = await asyncio.to_thread(_archive, root, home)
    folder = f"{NODE_FOLDER}/on/{hashlib.sha256(archive).hexdigest()[:12]}"
    catalog = "${FIRESTEEL_HOME:-${XDG_DATA_HOME:-$HOME/.local/share}/firesteel}/catalog"
    recipes = f"{catalog}/from-{local_name()}"
    if (await ssh.run(target, f"test -e {folder}/complete")).code == 0:
        return folder
    done = await ssh.run(
        target,
        f"rm -rf {folder} && mkdir -p {folder} && tar xzf - -C {folder} && "
        f'{{ rm -rf "{recipes}"; [ ! -d {folder}/catalog ] || '
        f'{{ mkdir -p "{recipes}" && cp -r {folder}/catalog/. "{recipes}"; }}; }} && touch {folder}/complete',
        archive,
        timeout_s=600,
    )
    if done.code:
        raise HostNotReady(f"{target.name}: {done.err.strip()[-200:]}", next=f"ssh {target.host} df -h '~'")
    return folder


def _archive(root: Path, home: Home) -> bytes:
    """The same bytes for the same files, so that they are sent once."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for part in PARTS:
            if (root / part).exists():
                tar.add(root / part, part, filter=_plain)
        if home.catalog.is_dir():
            tar.add(home.catalog, "catalog", filter=_plain)
    return gzip.compress(data.getvalue(), 1, mtime=0)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "__pycache__" in member.name or member.name.endswith(".egg-info"):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def _with_files(argv: list[str], folder: str) -> tuple[list[str], dict[str, bytes]]:
    """A service file is on this host: it is sent along, and named where it then is."""
    words, files = list(argv), {}
    for index, word in enumerate(words[:-1]):
        path = Path(words[index + 1])
        if word in ("-f", "--file") and path.is_file():
            remote = f"{folder}/files/{path.name}"
            files[remote] = path.read_bytes()
            words[index + 1] = remote
    return words, files
