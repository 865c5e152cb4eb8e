"""Models that run on this host: fetched, started, listed, verified, stopped, upgraded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.edge.files.home import find_home

if TYPE_CHECKING:  # loaded only by those who use them
    from firesteel.proposals import Proposal
    from firesteel.run.events import Event
    from firesteel.run.fetch.prune import UnusedFile
    from firesteel.run.service import Service
    from firesteel.run.start.options import RunOptions
    from firesteel.run.verify.expected import Task
    from firesteel.run.verify.target import VerifyTarget
    from firesteel.run.verify.verify import Verification
    from firesteel.upgrade.result import UpgradeOptions
    from firesteel.upgrade.upgrade import UpgradeEvent


def pull(
    model: str,
    patterns: tuple[str, ...] = (),
    *,
    weights_only: bool = False,
    update: bool = False,
    reread: bool = False,
) -> AsyncIterator[Event]:
    """Downloads what a model needs to start offline; a `PhaseDone` for each thing that was not there."""
    from firesteel.run.fetch.pull_model import pull_model  # loads the Hub's client
    from firesteel.workspace import find_workspace  # the catalog

    here = find_workspace()
    return pull_model(here, model, patterns, weights_only=weights_only, update=update, reread=reread)


def unused_files(model: str | None = None) -> tuple[UnusedFile, ...]:
    """Files that nothing uses any more; with a model, its weights too. `remove_files` removes them."""
    from firesteel.run.fetch.prune import find_unused
    from firesteel.run.fetch.pull_model import repositories_of  # loads the Hub's client
    from firesteel.workspace import find_workspace

    here = find_workspace()
    repositories = repositories_of(here, model) if model else ()
    return find_unused(here.home, here.catalog, here.host(), repositories)


def remove_files(files: Iterable[UnusedFile]) -> tuple[UnusedFile, ...]:
    """Removes them, and returns those that could not be removed because they belong to another user."""
    from firesteel.run.fetch.prune import remove_unused

    return remove_unused(files)


def up(proposal: Proposal, options: RunOptions | None = None) -> AsyncIterator[Event]:
    """Launches and verifies it. The last event is `ServiceReady`, with the report."""
    from firesteel.run.start.options import RunOptions
    from firesteel.run.up import bring_up

    return bring_up(proposal, find_home(), options or RunOptions())


def down(service: Service) -> AsyncIterator[Event]:
    from firesteel.run.down import stop

    return stop(service)


def services() -> list[Service]:
    """What runs. A container whose supervisor was killed gets another one first."""
    from firesteel.run.service import all_services
    from firesteel.run.start.start import adopt_all

    adopt_all(find_home())
    return all_services(find_home())


async def verify(
    name: str | None = None, *, url: str | None = None, model: str | None = None, key: str | None = None
) -> AsyncGenerator[str | Verification]:
    """Asks questions with known answers; the last item is the `Verification`.

    Of a service (without a name, the only one), or of any OpenAI endpoint at `url`.
    """
    target = await verify_target(name, url=url, model=model, key=key)
    async for event in target.verify():
        yield event


async def verify_target(
    name: str | None = None, *, url: str | None = None, model: str | None = None, key: str | None = None,
    task: Task = "chat", takes: tuple[str, ...] = (),
) -> VerifyTarget:  # fmt: skip
    """What `verify` asks. Of an endpoint: what the server does, and what it takes beside text."""
    from firesteel.run.endpoints import base_url, running_service
    from firesteel.run.verify import target  # loads the HTTP client

    if url:
        return await target.target_at_url(base_url(url), model, key, task=task, takes=takes)
    return await target.target_of_service(find_home(), running_service(find_home(), name))


def log_file(name: str | None = None) -> Path:
    """The log of a service's engine; without a name, the one that was written to last."""
    from firesteel.run.logs import find_log

    return find_log(find_home(), name)


def logs(name: str | None = None, lines: int = 50) -> list[str]:
    """The last lines of a log."""
    from firesteel.run.service import last_lines

    return last_lines(log_file(name), lines)


def upgrade_model(model: str | None, options: UpgradeOptions) -> AsyncIterator[UpgradeEvent]:
    """Tries another release of its engine under a running model; the last event is `UpgradeResult`."""
    from firesteel.upgrade import upgrade as upgrades  # the client that measures

    return upgrades.upgrade(find_home(), model, options)


def roll_back_model(model: str | None) -> AsyncIterator[UpgradeEvent]:
    """Back to the release before the last upgrade; the last event is `UpgradeResult`."""
    from firesteel.upgrade import upgrade as upgrades

    return upgrades.rollback(find_home(), model)
