"""Before a start: is the engine the same on every host, and are the weights complete on every node?

vLLM starts with another release or other weights on one rank and answers wrongly or hangs; it does not check.
"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

from firesteel.edge import ssh
from firesteel.edge.docker.containers import image_id
from firesteel.edge.home import Home
from firesteel.edge.model_reference import is_path
from firesteel.edge.programs.installed import release_questions
from firesteel.edge.ssh import SshTarget
from firesteel.errors import HostNotReady
from firesteel.hosts.cluster.joined import JoinedHosts
from firesteel.hosts.cluster.nodes import target_of
from firesteel.launch import EngineProgram, Launch
from firesteel.planner.propose import Proposal
from firesteel.run.weights import staged_files


async def require_equal_files(proposal: Proposal, home: Home, cluster: JoinedHosts) -> None:
    """llama.cpp's workers need neither: the head sends them their layers."""
    launch = proposal.plan.launch
    if launch.engine == "llamacpp":
        return
    if launch.container:
        await _require_image(launch.container.image, proposal.name, home, cluster)
    if launch.program:
        await asyncio.gather(
            *(_require_program(launch, launch.program, target_of(home, n), cluster) for n in cluster.nodes)
        )
    files = weight_files(proposal, home)
    lacks = await asyncio.gather(*(missing_files(files, target_of(home, n), cluster) for n in cluster.nodes))
    for node, missing in zip(cluster.nodes, lacks, strict=True):
        if missing:
            raise HostNotReady(
                f"{node.name} lacks {len(missing)} of {len(files)} files of the weights",
                next=f"firesteel cluster stage {proposal.name}",
            )


async def _require_image(image: str, name: str, home: Home, cluster: JoinedHosts) -> None:
    own = await image_id(image)
    command = f"docker image inspect --format {{{{.Id}}}} {shlex.quote(image)}"
    answers = await asyncio.gather(*(ssh.run(target_of(home, node), command) for node in cluster.nodes))
    for node, answer in zip(cluster.nodes, answers, strict=True):
        if answer.code:
            raise HostNotReady(f"{node.name} does not have {image}", next=f"firesteel cluster stage {name}")
        if answer.out.strip() != own:
            raise HostNotReady(
                f"{image} is another image on {node.name} ({answer.out.strip()[:19]}) than here "
                f"({(own or 'none')[:19]})",
                next=f"firesteel cluster stage {name}",
            )


async def _require_program(
    launch: Launch, program: EngineProgram, target: SshTarget, cluster: JoinedHosts
) -> None:
    path = cluster.on_node(program.argv[0], target.name)
    questions = [question for _, question in release_questions(launch.engine, program.argv[0])]
    asks = (shlex.join(cluster.on_node(word, target.name) for word in question) for question in questions)
    command = f"test -x {shlex.quote(path)} && {{ {' || '.join(f'{ask} 2>/dev/null' for ask in asks)}; }}"
    release = (await ssh.run(target, command)).out.strip().partition("+")[0]
    if release == program.version:
        return
    what = f"has {launch.engine} {release}, and this host {program.version}" if release else f"has no {path}"
    raise HostNotReady(
        f"{target.name} {what}: every host needs the same engine at the same path",
        next=f"firesteel --on {target.name} engine install {launch.engine}, or without --native",
    )


def weight_files(proposal: Proposal, home: Home) -> tuple[Path, ...]:
    """What every rank reads: of the store, or the files of a folder that was named."""
    folder = Path(proposal.asked or "")
    if proposal.asked and is_path(proposal.asked) and folder.is_dir():
        return tuple(sorted(path for path in folder.absolute().rglob("*") if path.is_file()))
    return staged_files(proposal, home)


async def missing_files(files: tuple[Path, ...], target: SshTarget, cluster: JoinedHosts) -> dict[Path, str]:
    """The files that a node lacks or has in another size, with their path there.

    A file of the Hub's cache is stored under its digest, so the same name has the same content.
    """
    if not files:
        return {}
    there = {path: cluster.on_node(str(path.resolve()), target.name) for path in files}
    listed = "\n".join(there.values())
    done = await ssh.run(
        target, 'while read -r f; do stat -c %s "$f" 2>/dev/null || echo -1; done', listed.encode() + b"\n"
    )
    sizes = [int(line) for line in done.out.split()]
    return {
        path: remote
        for (path, remote), size in zip(there.items(), sizes, strict=True)
        if size != path.stat().st_size
    }
