"""`render` of a launch over several hosts: a file for each, or a LeaderWorkerSet for Kubernetes. Pure.

The hosts are those of the cluster, or, where none were added, two to eight Sparks as NVIDIA's playbook joins
them (connect-two-sparks, 2026-07-21). llama.cpp has `llama-server --rpc` on the head and `ggml-rpc-server` on
the others: as programs in units of systemd, or in an image that has both, since upstream's are built without
RPC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from firesteel import render
from firesteel.catalog.image import Image, Images
from firesteel.catalog.launches import in_container, on_rank, openmp_environment
from firesteel.errors import UsageError
from firesteel.hosts.cluster.rank_specs import as_rank
from firesteel.hosts.cluster.ranks import RPC_PORT, RankHost
from firesteel.launch import Launch, container_name
from firesteel.planner.propose import Proposal
from firesteel.planner.rendered import launch_facts
from firesteel.render import Cluster, LaunchFacts
from firesteel.render.docker import quote
from firesteel.render.kubernetes import LEADER_ADDRESS, WORKER_INDEX, leader_worker_set
from firesteel.render.launch_facts import comments, rank_alone
from firesteel.render.systemd import INSTALL_SECTION, install_notes, native_unit, unit_line, unit_word
from firesteel.render.yaml_text import Explained, document
from firesteel.values import Value, replace

_FORMS = {
    "docker": (render.docker, "sh"),
    "compose": (render.compose, "compose.yaml"),
    "systemd": (render.systemd, "service"),
    "quadlet": (render.quadlet, "container"),
}
BY_NODE = tuple(_FORMS)
_RANK_FLAGS = ("nnodes", "node-rank", "master-addr", "dist-init-addr")


class NodeFile(Value):
    host: str
    rank: int
    file: str
    """`spark1.compose.yaml`"""
    text: str


def usual_hosts(count: int) -> tuple[RankHost, ...]:
    rail, hcas = "enp1s0f1np1", ("rocep1s0f1", "roceP2p1s0f1")
    return tuple(
        RankHost(f"spark{rank + 1}", rank, f"192.168.100.{10 + rank}", rail, (rail,), hcas)
        for rank in range(count)
    )


def render_by_node(
    proposal: Proposal, hosts: Sequence[RankHost], form: str, images: Images, rpc_program: str = ""
) -> tuple[NodeFile, ...]:
    """The head first; it is started last. `rpc_program`: llama.cpp's, on the nodes."""
    is_rpc = proposal.plan.launch.engine == "llamacpp"
    if is_rpc and form not in RPC_FORMS:
        raise UsageError(
            f"llama.cpp over several hosts is not written as {form}", next=f"--as {' or '.join(RPC_FORMS)}"
        )
    write, suffix = _FORMS[form]
    facts = _facts(proposal, images)
    files = []
    for host in hosts:
        launch = rank_alone(as_rank(proposal, hosts, host.rank).plan.launch)
        if not is_rpc:
            text = write(launch, facts)
        elif host.rank:
            text = worker_file(launch, host, form, images, rpc_program)
        else:
            text = head_file(launch, facts, form, images)
        text = _on_host(host, len(hosts), is_rpc) + text
        files.append(NodeFile(host.name, host.rank, f"{host.name}.{suffix}", text))
    return tuple(files)


def render_for_kubernetes(
    proposal: Proposal, hosts: Sequence[RankHost], images: Images, cluster: Cluster | None = None
) -> str:
    if proposal.plan.launch.engine == "llamacpp":
        raise UsageError(
            "llama.cpp over several hosts is not written for Kubernetes",
            next=f"--as {' or '.join(RPC_FORMS)}",
        )
    pods = [replace(host, address=LEADER_ADDRESS) for host in hosts]
    leader, worker = (as_rank(proposal, pods, rank).plan.launch for rank in (0, 1))
    worker = on_rank(worker, {"node-rank": WORKER_INDEX}, {})
    return leader_worker_set(leader, worker, _facts(proposal, images), len(hosts), cluster or Cluster())


def _facts(proposal: Proposal, images: Images) -> LaunchFacts:
    """A recipe's words about ranks are about the launch before it had any."""
    facts = launch_facts(proposal, images)
    reasons = {name: why for name, why in facts.flag_reasons.items() if name not in _RANK_FLAGS}
    return replace(facts, flag_reasons=reasons)


def _on_host(host: RankHost, count: int, is_rpc: bool) -> str:
    order = "last, when all others run" if host.rank == 0 else "before the head"
    where = f"On {host.name} ({host.address} on {host.interface})"
    lines = [f"{where}: rank {host.rank} of {count}; start it {order}"]
    if not is_rpc:
        lines += ["A lost rank hangs the others: stop and start all then, as `firesteel up --cluster` does"]
    return "".join(f"{line}\n" for line in comments(lines))


# --- llama.cpp ---

RPC_FORMS = ("docker", "compose", "systemd")
_RPC_IMAGES = ("llamacpp-gb10", "llamacpp-here")
_RPC_WARNING = "It does not ask for a password: any host that reaches it can use this host's memory and GPU"


def head_file(launch: Launch, facts: LaunchFacts, form: str, images: Images) -> str:
    if form == "systemd":
        return native_unit(launch, facts)
    write = {"docker": render.docker, "compose": render.compose}[form]
    return write(in_container(launch, rpc_image(images)), facts)


def worker_file(launch: Launch, host: RankHost, form: str, images: Images, program: str) -> str:
    """`program`: where `cluster stage` puts it on a node, below the user's home."""
    name, words = container_name(f"{launch.name}-rpc"), ("-H", host.address, "-p", str(RPC_PORT), "-c")
    env = openmp_environment(launch)
    if form == "systemd":
        return _rpc_unit(name, [f"~/{program}", *words], env)
    image = rpc_image(images)
    entrypoint = str(PurePosixPath((image.entrypoint or ("",))[0]).with_name("ggml-rpc-server"))
    if form == "compose":
        return _rpc_compose(name, image, entrypoint, words, env)
    options = ["--restart", "on-failure:3", "--name", name, "--network", "host"]
    options += ["--gpus", "all"] if image.gpu else []
    options += [word for key, value in env.items() for word in ("-e", f"{key}={value}")]
    argv = ["docker", "run", "--detach", *options, "--entrypoint", entrypoint, image.reference or "", *words]
    return f"# {_RPC_WARNING}\n{' '.join(map(quote, argv))}\n"


def rpc_image(images: Images) -> Image:
    found = [images.named[name] for name in _RPC_IMAGES if name in images.named]
    if not found:
        raise UsageError(
            "no image here has llama.cpp's RPC server: upstream's are built without it",
            next="firesteel image build llamacpp-here (on a Spark: llamacpp-gb10), or --as systemd",
        )
    return found[0]


def _rpc_compose(
    name: str, image: Image, entrypoint: str, words: Sequence[str], env: Mapping[str, str]
) -> str:
    service: dict[str, object] = {
        "image": image.reference,
        "container_name": name,
        "network_mode": "host",
        "restart": Explained("on-failure:3", "the head ends when it is lost, and finds it again"),
        "entrypoint": [entrypoint],
        "command": list(words),
    }
    if image.gpu:
        gpu = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [gpu]}}}
    if env:
        service["environment"] = dict(env)
    return document({"services": {name: service}}, [_RPC_WARNING])


def _rpc_unit(name: str, argv: Sequence[str], env: Mapping[str, str]) -> str:
    notes = [
        _RPC_WARNING,
        "The program: firesteel cluster stage MODEL --native, on the head",
        *install_notes(f"~/.config/systemd/user/{name}.service", name),
    ]
    lines = [
        *(f"# {note}" for note in notes), "[Unit]", "Description=llama.cpp RPC server", "",
        "[Service]", "Type=exec",
        *(f"Environment={unit_word(f'{key}={value}')}" for key, value in env.items()),
        unit_line("ExecStart", [tuple(argv)]), "Restart=on-failure", "RestartSec=5", "", *INSTALL_SECTION,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
