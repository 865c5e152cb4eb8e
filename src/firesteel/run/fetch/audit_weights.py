"""Weights that were just pulled: audited from their headers and scales before an engine reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from firesteel.edge.contents import read_folder
from firesteel.edge.home import Home
from firesteel.edge.host.machine_files import sim_folder
from firesteel.edge.hub.cache import find_store, local_snapshot
from firesteel.errors import FiresteelError, Stopped
from firesteel.planner.propose import Proposal
from firesteel.rules.checkpoint.judge import judge
from firesteel.run.events import Event, PhaseDone
from firesteel.run.fetch.weights import weights_needed


async def audit_pulled(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    """Raises Stopped for a checkpoint without a recipe; with one, somebody has run it, so it is only told."""
    if sim_folder():  # the engines of a simulated Spark read no weights
        return
    need = next(iter(weights_needed(proposal)), None)
    folder = local_snapshot(find_store(home), need.repository, need.revision) if need else None
    if need is None or folder is None:  # on this disk already, in a wheel, or a GGUF
        return
    try:
        findings = judge(await asyncio.to_thread(read_folder, folder))
    except FiresteelError as error:
        yield PhaseDone("check", f"weights not audited: {error.what}")
        return
    wrong = [found for found in findings if found.level != "note"]
    command = f"firesteel audit {need.repository}"
    stops = [found for found in wrong if found.level == "stop"]
    if stops and not proposal.recipe:
        raise Stopped(f"audit-{stops[0].check}: {stops[0].says}: {stops[0].effect}", next=command)
    result = "nothing is wrong" if not wrong else f"{wrong[0].says} ({command} shows {len(wrong)} findings)"
    yield PhaseDone("check", f"weights audited from headers and scales: {result}")
