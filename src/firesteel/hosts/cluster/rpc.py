"""llama.cpp's RPC server on a node: its program and its libraries, copied there once."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

from firesteel.edge import ssh
from firesteel.edge.ssh import SshTarget
from firesteel.errors import HostNotReady, Stopped
from firesteel.hosts.cluster.channel import NODE_FOLDER
from firesteel.launch import EngineProgram
from firesteel.values import Value

_NAMES = ("ggml-rpc-server", "rpc-server")
"""The second is what builds before 2026-06-27 called it."""


class RpcProgram(Value):
    path: Path
    files: tuple[Path, ...]
    """It and the libraries beside it."""
    digest: str

    @property
    def node_folder(self) -> str:
        return f"{NODE_FOLDER}/engines/rpc-{self.digest}"

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files if not path.is_symlink())


def find_rpc_program(program: EngineProgram) -> RpcProgram:
    """The one that was built with the llama-server of this machine: both must be of one build."""
    folder = Path(program.argv[0]).resolve().parent
    found = next((folder / name for name in _NAMES if (folder / name).exists()), None)
    if found is None:
        raise Stopped(
            f"the llama.cpp in {folder} was built without RPC, which it needs over several hosts",
            next="firesteel engine build llamacpp, which builds it with RPC",
        )
    libraries = sorted(path for path in folder.glob("libggml*.so*"))
    digest = hashlib.sha256()
    for path in (found, *libraries):
        if not path.is_symlink():
            digest.update(path.name.encode() + path.read_bytes())
    return RpcProgram(found, (found, *libraries), digest.hexdigest()[:12])


async def stage_rpc(target: SshTarget, program: RpcProgram) -> int:
    """Copy it to a node that does not have it; the number of bytes that were sent."""
    folder = program.node_folder
    if (await ssh.run(target, f"test -e {folder}/complete")).code == 0:
        return 0
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
        for path in program.files:
            tar.add(path, path.name)
    done = await ssh.run(
        target,
        f"umask 077; rm -rf {folder} && mkdir -p {folder} && tar xzf - -C {folder} && "
        f"touch {folder}/complete",
        archive.getvalue(),
        timeout_s=600,
    )
    if done.code:
        raise HostNotReady(
            f"{target.name}: llama.cpp's RPC server could not be copied: {done.err.strip()[-200:]}",
            next=f"ssh {target.host} df -h '~'",
        )
    return len(archive.getvalue())
