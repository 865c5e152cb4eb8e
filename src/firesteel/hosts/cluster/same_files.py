"""Before a start: is the image the same on every host, and are the weights complete on every node?

vLLM starts with another image or other weights on one rank and answers wrongly or hangs; it does not check.
"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

from firesteel.edge import ssh
from firesteel.edge.docker.containers import image_id
from firesteel.edge.files.home import Home
from firesteel.edge.ssh import SshTarget
from firesteel.errors import HostNotReady
from firesteel.hosts.cluster.joined import JoinedHosts
from firesteel.hosts.cluster.nodes import target_of
from firesteel.proposals import Proposal
from firesteel.run.fetch.stored import staged_files


async def require_equal_files(proposal: Proposal, home: Home, cluster: JoinedHosts) -> None:
    """llama.cpp's workers need neither: the head sends them their layers."""
    launch = proposal.plan.launch
    if launch.engine == "llamacpp":
        return
    if launch.container:
        await _require_image(launch.container.image, proposal.name, home, cluster)
    files = staged_files(proposal, home)
    await asyncio.gather(
        *(_require_weights(files, proposal.name, target_of(home, node), cluster) for node in cluster.nodes)
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


async def missing_files(files: tuple[Path, ...], target: SshTarget, cluster: JoinedHosts) -> dict[Path, str]:
    """The files that a node lacks or has in another size, with their path there.

    A file of the Hub's cache is stored under its digest, so the same name has the same content.
    """
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


async def _require_weights(
    files: tuple[Path, ...], name: str, target: SshTarget, cluster: JoinedHosts
) -> None:
    missing = await missing_files(files, target, cluster) if files else {}
    if missing:
        raise HostNotReady(
            f"{target.name} lacks {len(missing)} of {len(files)} files of the weights",
            next=f"firesteel cluster stage {name}",
        )
