"""`cluster stage`: weights and image to every node once, over the fast link, several files at a time.

An interrupted copy resumes where it left off. Every file is compared with its digest on the node before it
gets its name; a file of the Hub's cache has its digest as its name.

Before a start (`require_equal_files`): is the engine the same on every host, and are the weights complete on
every node? vLLM starts with another release or other weights on one rank and answers wrongly or hangs; it
does not check.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import re
import shlex
import tarfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from firesteel.edge import ssh
from firesteel.edge.docker.containers import image_id
from firesteel.edge.home import Home, is_path
from firesteel.edge.host import process
from firesteel.edge.programs.installed import release_questions
from firesteel.edge.ssh import SshTarget
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.hosts.cluster.check import JoinedHosts
from firesteel.hosts.cluster.nodes import Channel, target_of
from firesteel.hosts.cluster.ranks import find_rpc_program, stage_rpc
from firesteel.launch import EngineProgram, Launch
from firesteel.planner.propose import Proposal
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.weights import staged_files
from firesteel.units import show_bytes, show_seconds
from firesteel.values import replace

STREAMS = 4
BYTES_PER_S = 0.8e9
"""Parallel ssh streams over a rail: MiaAI-Lab v4.1 PR 3, 2026-09-13; one stream does 0.3 to 0.45 GB/s."""
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_CHUNK_BYTES = 2**20


async def stage(proposal: Proposal, home: Home, cluster: JoinedHosts) -> AsyncIterator[Event]:
    """What is on this host already, to all nodes."""
    launch = proposal.plan.launch
    if launch.engine == "llamacpp":
        assert launch.program is not None
        rpc = find_rpc_program(launch.program)
        for node in cluster.nodes:
            sent = await stage_rpc(target_of(home, node), rpc)
            what = f"{show_bytes(sent)} copied" if sent else "was there already"
            yield PhaseDone(
                "pull", f"{node.name}: llama.cpp's RPC server, {what}; the head sends the weights"
            )
        return
    targets = [await fast_target(target_of(home, node), cluster) for node in cluster.nodes]
    if launch.container:
        async for event in stage_image(launch.container.image, targets):
            yield event
    files = weight_files(proposal, home)
    lacks = [await missing_files(files, target, cluster) for target in targets]
    for target, missing in zip(targets, lacks, strict=True):
        size = sum(path.stat().st_size for path in missing)
        if size:
            about = f"{len(missing)} files, {show_bytes(size)}, about {show_seconds(size / BYTES_PER_S)}"
            yield PhaseProgress("pull", f"{target.name}: {about}")
    await asyncio.gather(
        *(stage_files(target, missing) for target, missing in zip(targets, lacks, strict=True))
    )
    for target, missing in zip(targets, lacks, strict=True):
        await _link_snapshots(files, target, cluster)
        what = f"{len(missing)} files copied, digests equal" if missing else "all there already"
        yield PhaseDone("pull", f"{target.name}: weights, {what}")


async def fast_target(target: SshTarget, cluster: JoinedHosts) -> SshTarget:
    """By the address of its rail, where ssh answers there."""
    address = next(member.address for member in cluster.rank_hosts if member.name == target.name)
    fast = replace(target, via=address)
    try:
        await ssh.run(fast, "true")
    except HostNotReady:
        return target
    return fast


async def stage_files(target: SshTarget, files: dict[Path, str]) -> int:
    """Local file -> path on the node. The bytes that were sent."""
    await Channel(target.name, target).prepare()
    slots = asyncio.Semaphore(STREAMS)

    async def one(path: Path, remote: str) -> int:
        async with slots:
            return await _send(target, path, remote)

    return sum(await asyncio.gather(*(one(path, remote) for path, remote in files.items())))


async def _send(target: SshTarget, path: Path, remote: str) -> int:
    real = path.resolve()
    digest = real.name if _DIGEST.match(real.name) else await asyncio.to_thread(_sha256, real)
    sent = 0
    for _ in range(2):  # a part that came from another file is thrown away, and the file sent whole
        size, is_equal = await _send_once(target, real, remote, digest)
        sent += size
        if is_equal:
            return sent
    raise FiresteelError(
        f"{path.name} differs on {target.name} after it was copied", next="firesteel pull --reread MODEL"
    )


async def _send_once(target: SshTarget, path: Path, remote: str, digest: str) -> tuple[int, bool]:
    argv = Channel(target.name, target).session_argv("agent", "receive", remote, digest)
    child = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert child.stdin and child.stdout and child.stderr
    try:
        line = await child.stdout.readline()
        if not line:
            raise ssh.failure(target, (await child.stderr.read()).decode(errors="replace"))
        sent = await _pump(path, json.loads(line)["offset"], child.stdin)
        answer = await child.stdout.readline()
        if not answer:
            raise ssh.failure(target, (await child.stderr.read()).decode(errors="replace"))
        return sent, bool(json.loads(answer)["is_equal"])
    finally:
        if child.returncode is None and not child.stdin.is_closing():
            child.kill()
        await child.wait()


async def _pump(path: Path, offset: int, stdin: asyncio.StreamWriter) -> int:
    sent = 0
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(_CHUNK_BYTES):
                stdin.write(chunk)
                await stdin.drain()
                sent += len(chunk)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the missing answer says that it failed
    stdin.close()
    return sent


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def _link_snapshots(files: tuple[Path, ...], target: SshTarget, cluster: JoinedHosts) -> None:
    """The names of the Hub's cache: links from snapshots to the files, and what branches stand for."""
    folders = {parent for path in files for parent in path.parents if parent.name.startswith("models--")}
    for folder in folders:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name in ("refs", "snapshots"):
                if (folder / name).exists():
                    tar.add(folder / name, name)
        there = shlex.quote(cluster.on_node(str(folder), target.name))
        done = await ssh.run(target, f"mkdir -p {there} && tar xf - -C {there}", archive.getvalue())
        if done.code:
            raise HostNotReady(f"{target.name}: {done.err.strip()[-200:]}", next="firesteel cluster check")


async def stage_image(image: str, targets: Sequence[SshTarget]) -> AsyncIterator[Event]:
    own = await image_id(image)
    for target in targets:
        asked = await ssh.run(target, f"docker image inspect --format {{{{.Id}}}} {shlex.quote(image)}")
        if asked.code == 0 and asked.out.strip() == own:
            yield PhaseDone("pull", f"{target.name}: {image} was there already")
            continue
        yield PhaseProgress("pull", f"{target.name}: copying {image}")
        load = shlex.join(ssh.session_argv(target, "docker load"))
        child = await asyncio.create_subprocess_shell(
            f"docker save {shlex.quote(image)} | {load}",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await child.communicate()
        if child.returncode:
            raise HostNotReady(
                f"{target.name}: {image} could not be loaded: {said.decode(errors='replace')[-200:]}",
                next=f"ssh {target.host} docker pull {image}",
            )
        # Daemons with different stores give one image different ids, and its layers the same digests.
        layers = f"docker image inspect --format {shlex.quote('{{.RootFS.Layers}}')} {shlex.quote(image)}"
        code, sent = await process.run("sh", "-c", layers)
        if code or (await ssh.run(target, layers)).out.strip() != sent.strip():
            raise HostNotReady(
                f"{target.name}: {image} arrived with other layers than it has here",
                next=f"ssh {target.host} docker image rm {image}, then firesteel cluster stage again",
            )
        yield PhaseDone("pull", f"{target.name}: {image} copied, digests equal")


# --- are they the same everywhere? ---


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
