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

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, get_args

from firesteel import catalog as catalog_room
from firesteel import reads, rules, run
from firesteel.catalog import Catalog, Images
from firesteel.edge.files.home import Home, catalog_files, find_home
from firesteel.edge.files.measured_memory import read_measured_memory
from firesteel.edge.files.own_runs import read_own_runs
from firesteel.edge.model_reference import is_hub_id, is_path
from firesteel.errors import UsageError
from firesteel.facts import Checkpoint, Host
from firesteel.facts.host.hardware import hardware, host_at_rest
from firesteel.launch import Ask, EngineName
from firesteel.planner import MeasuredMemory, OwnRun
from firesteel.reads import ReadLaunch, nothing_started
from firesteel.rules import Finding, Lint, Proposal

if TYPE_CHECKING:  # what runs is loaded by those who run something
    from firesteel.run import Event, RunOptions, Service


def home() -> Home:
    """Where firesteel keeps what it writes: FIRESTEEL_HOME, or the user's data folder."""
    return find_home()


def catalog() -> Catalog:
    """What ships, with the user's own folder over it."""
    return catalog_room.overlay(catalog_room.shipped(), catalog_files(home()))


def host(name: str | None = None) -> Host:
    """The machine at hand, measured; or one from the data (`gb10`), at rest."""
    if name is None or name == "local":
        from firesteel.edge.host.machine import local_host  # a named host needs no hands on this one

        return local_host(home())
    return host_at_rest(hardware(name))


def models(host_name: str | None = None) -> tuple[Proposal, ...]:
    """Every recipe, planned for a host, best first."""
    return propose(Ask(), host(host_name))


def plan(
    model: str, *, host_name: str | None = None, context: int | None = None, users: int | None = None
) -> tuple[Proposal, ...]:
    """The ways to serve a model, best first: a catalog name, a Hub id, a GGUF file, a folder."""
    return propose(Ask(model=model, context=context, users=users), host(host_name))


def propose(ask: Ask, on: Host) -> tuple[Proposal, ...]:
    """What the ask means: a path is read, a name looked up, a Hub id looked up and then read."""
    known, took, own = catalog(), _realised(on), _own_runs(on)
    if ask.model and (is_path(ask.model) or (is_hub_id(ask.model) and not _is_known(known, ask.model))):
        return (rules.propose_checkpoint(_opened(ask.model, ask.quant), known.images, on, ask, took, own),)
    return rules.propose(known, on, ask, took, own)


def _realised(on: Host) -> Mapping[str, MeasuredMemory]:
    """What earlier starts took here; of a machine from the data nothing is known."""
    return read_measured_memory(home()) if on.name == "local" else {}


def _own_runs(on: Host) -> Mapping[str, tuple[OwnRun, ...]]:
    """What the user's own benches came to here; they say nothing of a machine from the data."""
    return read_own_runs(home()) if on.name == "local" else {}


def _opened(model: str, quant: str | None) -> Checkpoint:
    from firesteel.edge.files import checkpoints  # carries HTTP and TLS, which the catalog does without

    return checkpoints.open_path(model, quant) if is_path(model) else checkpoints.open_hub(model)


def _is_known(known: Catalog, name: str) -> bool:
    try:
        return bool(catalog_room.find(known, name))
    except UsageError:
        return False


def read(text: str, path: str = "text") -> tuple[ReadLaunch, ...]:
    """The launches in a `docker run` line or any text that has some."""
    return reads.read(text, path, images(text))


def check(text: str, *, path: str = "text", hardware_name: str | None = "gb10") -> tuple[Finding, ...]:
    """What the rules say of every launch in a text."""
    found = rules.lint(text, path, Lint(images(text), hardware_name))
    if not found.readings:
        raise found.problem or nothing_started(path)
    return found.findings


def images(text: str | None = None) -> Images:
    """What is known of images, with what `learn` added: all of it, or what a text may speak of.

    A mistake in the user's own recipes is no reason not to look at somebody else's command line.
    """
    from firesteel.edge.files import learned_engines  # carries the readers of engines' sources

    try:
        known = catalog().images
    except UsageError:
        known = catalog_room.shipped().images
    books = [
        book for engine in get_args(EngineName) for book in learned_engines.learned_releases(home(), engine)
    ]
    return catalog_room.with_learned(known, learned_engines.learned_images(home(), among=text), books)


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
