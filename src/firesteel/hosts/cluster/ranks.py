"""Ranks: a launch over several hosts -> what runs on each of them. Pure, but for copying the RPC server.

vLLM      the same command on every host but for its rank; workers `--headless`
          (since 0.11.1, https://github.com/vllm-project/vllm/pull/23691; seen 2026-11-15)
SGLang    the same command on every host but for its rank; rank 0 has the port for clients
llama.cpp `ggml-rpc-server` on the workers (`rpc-server` before 2026-06-27, ggml-org/llama.cpp#25045), and
          their addresses in the head's `--rpc`. Layers are split, so memory adds up and speed does not

The runner loads this for as long as it lives: no planner.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from firesteel.catalog.launches import on_rank
from firesteel.edge import ssh
from firesteel.edge.ssh import SshTarget
from firesteel.errors import FiresteelError, HostNotReady, Stopped
from firesteel.hosts.cluster.nodes import NODE_FOLDER
from firesteel.hosts.cluster.topology import Link, NodeFacts, best_link
from firesteel.launch import EngineName, EngineProgram, FlagValue, Launch
from firesteel.values import Value

RPC_PORT = 50052
MASTER_PORT = 29501
LEASE_S = 30.0
NCCL_BY_TCP = "NET/Socket"
Transport = Literal["rdma", "tcp"]


class RankHost(Value):
    """A host's part in the cluster: its rank, and how the others reach it."""

    name: str
    rank: int
    address: str
    """Its address on the link that joins it to the head."""
    interface: str
    rails: tuple[str, ...]
    """Interfaces whose carrier is watched."""
    hcas: tuple[str, ...] = ()


class RankSpec(Value):
    """What the agent of one host runs. Of rank 0 only the environment: its command is the service's own."""

    host: str
    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    rails: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    listens: tuple[str, int] | None = None
    """An address that answers before the head is started."""
    peers: tuple[str, ...] = ()
    """The addresses of the other ranks: connections to them are watched."""
    floor_bytes: int = 0
    grace_s: float = 10.0
    lease_s: float = LEASE_S


class FallbackSpec(Value):
    """What this host serves alone, in the service's name, while a node does not answer."""

    recipe: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    stop: tuple[str, ...] = ()


class ClusterSpec(Value):
    """`ranks.json`: everything that the runner knows."""

    name: str
    engine: EngineName
    transport: Transport
    ranks: tuple[RankSpec, ...]
    """The head first. Workers are nodes by name."""
    time_share: float = 1.0
    fallback: FallbackSpec | None = None


def rank_hosts(head: str, facts: Mapping[str, NodeFacts], found: Sequence[Link]) -> tuple[RankHost, ...]:
    """The head first; every worker by the link that joins it to the head, a fast one where there is one."""
    workers = [name for name in facts if name != head]
    joins = {name: best_link(found, head, name) for name in workers}
    apart = [name for name, link in joins.items() if link is None]
    if apart:
        raise FiresteelError(
            f"{head} and {apart[0]} have no address in a common subnet", next="firesteel cluster check"
        )
    first = next(link for link in joins.values() if link)
    return tuple(
        _rank_host(name, rank, facts[name], found, link)
        for rank, (name, link) in enumerate([(head, first), *((name, joins[name]) for name in workers)])
        if link
    )


def _rank_host(name: str, rank: int, facts: NodeFacts, found: Sequence[Link], link: Link) -> RankHost:
    mine = link.interface_of(name)
    used = {
        joint.interface_of(name).name for joint in found if joint.is_fast and name in (joint.one, joint.other)
    }
    hcas = tuple(device.name for device in facts.hcas if device.interface in used)
    return RankHost(name, rank, mine.address or "", mine.name, tuple(sorted(used)) or (mine.name,), hcas)


def transport_of(members: Sequence[RankHost]) -> Transport:
    return "rdma" if all(member.hcas for member in members) else "tcp"


def engine_environment(launch: Launch, member: RankHost, allows_tcp: bool) -> dict[str, str]:
    """Environment of a vLLM or SGLang rank: interfaces and devices differ from host to host.

    NCCL_IB_GID_INDEX stays unset: NCCL finds it, and a stored one is wrong after a link has bounced
    (tonyd2wild kit#38, 2026-08-21). NCCL_NET=IB makes a silent fall-back to TCP an error.
    """
    if launch.engine == "llamacpp":
        return {}
    sockets = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES")
    env = dict.fromkeys((*sockets, "OMPI_MCA_btl_tcp_if_include"), member.interface)
    env |= {"NCCL_IGNORE_CPU_AFFINITY": "1", "NCCL_DEBUG": "INFO"}
    if member.hcas:
        env |= {"NCCL_IB_HCA": ",".join(member.hcas), "NCCL_IB_DISABLE": "0"}
    if member.hcas and not allows_tcp:
        env["NCCL_NET"] = "IB"
    if launch.engine == "vllm":
        env["VLLM_HOST_IP"] = member.address
    return env


def rank_launch(launch: Launch, members: Sequence[RankHost], rank: int, allows_tcp: bool = False) -> Launch:
    """The launch as one host runs it."""
    flags = rank_flags(launch, members, rank)
    return on_rank(launch, flags, engine_environment(launch, members[rank], allows_tcp))


def rank_flags(launch: Launch, members: Sequence[RankHost], rank: int) -> dict[str, FlagValue]:
    if launch.engine == "llamacpp":
        workers = ",".join(f"{worker.address}:{RPC_PORT}" for worker in members[1:])
        return {} if rank else {"rpc": workers}
    flags: dict[str, FlagValue] = {"nnodes": str(len(members)), "node-rank": str(rank)}
    if launch.engine == "sglang":
        return {**flags, "dist-init-addr": f"{members[0].address}:{MASTER_PORT}"}
    backend = launch.flags.get("distributed-executor-backend", "mp")
    flags |= {
        "master-addr": members[0].address, "master-port": str(MASTER_PORT),
        "distributed-executor-backend": backend,
    }  # fmt: skip
    return {**flags, "headless": True} if rank and backend == "mp" else flags


def execute_timeout_s(prefill_s: float | None) -> int:
    """VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: bounds a step whose peer is gone, and must exceed the longest one.

    300 is vLLM's default, also where the speed is unknown. First-use compilation takes up to a minute.
    """
    if prefill_s is None:
        return 300
    return max(60, min(300, round(60 + 2 * prefill_s)))


def require_transport(log: str, hcas: Sequence[str], allows_tcp: bool) -> str:
    """What NCCL says that it uses, from the log of a rank; Stopped where that is TCP and was not allowed."""
    using = [line.strip() for line in log.splitlines() if "NET/IB : Using" in line]
    if using:
        used = set(re.findall(r"[\w.-]+", " ".join(using)))  # whole names: `mlx5_1` is in `mlx5_10`
        missing = [hca for hca in hcas if hca not in used]
        if missing and not allows_tcp:
            raise Stopped(
                f"NCCL uses RDMA without {', '.join(missing)}: half of the link",
                next="firesteel cluster check",
            )
        return "RDMA by " + ", ".join(hcas)
    sockets = NCCL_BY_TCP in log
    if allows_tcp:
        return "TCP" if sockets else "not known"
    what = "NCCL uses TCP sockets in place of RDMA" if sockets else "no log shows that NCCL uses RDMA"
    raise Stopped(what, next="firesteel cluster check, or --allow-tcp to serve slowly")


# --- llama.cpp's RPC server: its program and its libraries, copied to each node once ---

_RPC_PROGRAMS = ("ggml-rpc-server", "rpc-server")
"""The second is what builds before 2026-06-27 called it."""


class RpcProgram(Value):
    path: Path
    files: tuple[Path, ...]
    """The program and the libraries in its folder."""
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
    found = next((folder / name for name in _RPC_PROGRAMS if (folder / name).exists()), None)
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
