"""firesteel as a library: what the commands can do, with values instead of text.

    import asyncio, firesteel

    best = firesteel.plan("gpt-oss-120b", host_name="gb10")[0]
    print(best.plan.memory.verdict, best.plan.speed)

    async def main() -> None:
        async for event in firesteel.up(firesteel.plan("smollm2")[0]):
            print(event)

Failures are FiresteelErrors: a sentence, and `next`, what to type.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from firesteel import reads, rules, run
from firesteel.catalog import Catalog, Images
from firesteel.edge.files.home import Home, find_home
from firesteel.facts import Host
from firesteel.launch import Ask
from firesteel.proposals import Proposal
from firesteel.reads import ReadLaunch, no_launch_error
from firesteel.rules import Finding, LintOptions
from firesteel.workspace import Workspace

if TYPE_CHECKING:  # loaded only by those who run something
    from firesteel.run import Event, RunOptions, Service


def home() -> Home:
    """Where firesteel keeps what it writes: FIRESTEEL_HOME, or the user's data folder."""
    return find_home()


def workspace() -> Workspace:
    """Everything known about this machine and its user."""
    return Workspace(home())


def catalog() -> Catalog:
    """The shipped catalog, with the user's own folder over it."""
    return workspace().catalog


def host(name: str | None = None) -> Host:
    """This machine, measured; or one from the hardware data (`gb10`), at rest."""
    return workspace().host(name)


def models(host_name: str | None = None) -> tuple[Proposal, ...]:
    """Every recipe, planned for a host, best first."""
    return propose(Ask(), host(host_name))


def plan(
    model: str, *, host_name: str | None = None, context: int | None = None, users: int | None = None
) -> tuple[Proposal, ...]:
    """The ways to serve a model, best first: a catalog name, a Hub id, a GGUF file, a folder."""
    return propose(Ask(model=model, context=context, users=users), host(host_name))


def propose(ask: Ask, on: Host) -> tuple[Proposal, ...]:
    """The ways to serve what was asked for on a host, best first."""
    return workspace().propose(ask, on)


def read(text: str, path: str = "text") -> tuple[ReadLaunch, ...]:
    """The launches in a `docker run` line or any text that has some."""
    return reads.read(text, path, images(text))


def check(text: str, *, path: str = "text", hardware_name: str | None = "gb10") -> tuple[Finding, ...]:
    """What the rules say of every launch in a text."""
    found = rules.lint(text, path, LintOptions(images(text), hardware_name))
    if not found.readings:
        raise found.problem or no_launch_error(path)
    return found.findings


def images(text: str | None = None) -> Images:
    """Known images, with those that `learn` added: all of them, or those that a text may name."""
    return workspace().images(text)


def docker(proposal: Proposal) -> str:
    """The proposal's launch as a `docker run` command to paste."""
    from firesteel import render  # every form, and only here

    return render.docker(proposal.plan.launch)


def up(proposal: Proposal, manner: RunOptions | None = None) -> AsyncIterator[Event]:
    """Launches and proves it. The last event is `Ready`, with the report."""
    return run.bring_up(proposal, home(), manner or run.RunOptions())


def down(service: Service) -> AsyncIterator[Event]:
    return run.stop(service)


def services() -> list[Service]:
    """What runs. A container whose keeper was killed gets another one first."""
    run.adopt_all(home())
    return run.all_services(home())
