"""What is known about this machine and its user, assembled in one place.

    workspace = Workspace(find_home())
    best = workspace.propose(Ask("gpt-oss-120b"), workspace.host())[0]

The catalog with the user's own recipes over it, the host, the memory that earlier starts took here, the
user's own benchmark runs, checkpoints on disk and on the Hub. `plan`, `up`, `up -f`, `render`, `bench`,
`tune`, the gateway's loader and the library all propose through it, so that one Ask gives one plan whichever
way it comes in. It decides nothing: `planner.propose` does, from these values.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, get_args

from firesteel.catalog import catalog as recipes
from firesteel.catalog.catalog import Catalog, RefusedRecipe
from firesteel.catalog.image import Images, identify, with_inspections, with_learned
from firesteel.catalog.recipe import Recipe
from firesteel.edge.home import Home, find_home, is_path
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.facts.host.hardware import Host, hardware, idle_host
from firesteel.facts.model.architecture import Checkpoint
from firesteel.launch import AdapterReference, Ask, EngineName, EngineProgram, is_hub_id
from firesteel.values import Value, replace

if TYPE_CHECKING:  # loaded only to plan: `check` needs none of it
    from firesteel.edge.home import EngineRelease
    from firesteel.facts.host.memory import MeasuredMemory
    from firesteel.facts.model.adapter import Adapter
    from firesteel.planner.choose import Choice, Use
    from firesteel.planner.propose import MeasuredCalls, OpenedAdapters, Proposal
    from firesteel.planner.speed.own_runs import OwnRun
    from firesteel.rules.adapters import UnreadAdapter


class Workspace(Value, dict=True):
    """Not slotted: files are read when they are first needed, and then not again."""

    home: Home
    release: EngineRelease | None = None
    """Every model is proposed on this release; None: on what its recipe or `upgrade` says."""

    @property
    def catalog(self) -> Catalog:
        """The shipped catalog, with recipes by others and the user's own folder over it."""
        return self._recipes[0]

    @property
    def refused_recipes(self) -> tuple[RefusedRecipe, ...]:
        """Recipes by others that ask for more than flags."""
        return self._recipes[1]

    @cached_property
    def _recipes(self) -> tuple[Catalog, tuple[RefusedRecipe, ...]]:
        own = recipes.overlay(recipes.shipped(), self.home.catalog_files())
        if not (files := self.home.others_files()):
            return own, ()
        return recipes.with_shelf(own, files)

    @cached_property
    def measured_memory(self) -> Mapping[str, MeasuredMemory]:
        """What earlier starts took on this host, by launch key."""
        from firesteel.edge.measured_memory import read_measured_memory

        return read_measured_memory(self.home)

    @cached_property
    def own_runs(self) -> Mapping[str, tuple[OwnRun, ...]]:
        """What the user's own benchmarks measured on this host, by launch key."""
        from firesteel.edge.records import read_own_runs

        return read_own_runs(self.home)

    @cached_property
    def measured_calls(self) -> Mapping[str, MeasuredCalls]:
        """What `verify --agent` found on this host about tool calls, by launch key."""
        from firesteel.edge.records import read_measured_calls

        return read_measured_calls(self.home)

    def host(self, name: str | None = None) -> Host:
        """This machine as it is now, measured; or one from the hardware data (`gb10`), at rest."""
        if name is None or name == "local":
            from firesteel.edge.host.machine import local_host  # a named host is never measured

            return local_host(self.home)
        return idle_host(hardware(name))

    def images(self, text: str | None = None) -> Images:
        """Known images, with what `engine learn` and `image inspect` added: all, or those that a text names.

        A mistake in the user's own recipes does not stop the check of another command line.
        """
        try:
            known = self.catalog.images
        except UsageError:
            known = recipes.shipped().images
        if not self.home.learned.exists():
            return known
        from firesteel.edge import learned_engines  # loads the readers of engines' sources
        from firesteel.edge.records import read_inspections

        books = [
            book
            for engine in get_args(EngineName)
            for book in learned_engines.learned_releases(self.home, engine)
        ]
        known = with_learned(known, learned_engines.learned_images(self.home, among=text), books)
        return with_inspections(known, read_inspections(self.home))

    def propose(self, ask: Ask, host: Host) -> tuple[Proposal, ...]:
        """The ways to serve what was asked for on a host, best first.

        A path is read, a name is looked up, a Hub id is looked up and then read. What was measured here says
        nothing about a host from the hardware data.
        """
        from firesteel.planner.propose import propose, propose_checkpoint, with_calls

        if ask.version:
            from firesteel.rules.linter import release as known_release  # loads the readers of commands

            ask = replace(ask, version=known_release(ask.engine, ask.version))
        release = self.release if self.release else self._chosen_release(ask)
        programs = self._programs(ask, release)
        is_local = host.name == "local"
        memory = self.measured_memory if is_local else {}
        runs = self.own_runs if is_local else {}
        calls = self.measured_calls if is_local else {}
        if ask.model and self._is_checkpoint(ask.model):
            checkpoint = _open_checkpoint(ask.model, ask)
            images = _with_release(self.images(), release)
            proposal = propose_checkpoint(
                checkpoint, images, host, ask, memory, runs, programs, self._adapters(ask)
            )
            return (with_calls(_with_audit(proposal, ask.model), calls),)
        catalog = replace(self.catalog, images=_with_release(self.images(), release))
        proposals = propose(catalog, host, ask, memory, runs, programs, self._adapters(ask))
        return tuple(with_calls(proposal, calls) for proposal in proposals)

    def propose_joined(self, ask: Ask, host: Host) -> tuple[Proposal, ...]:
        """The same for several hosts together, as many as the ask says.

        llama.cpp serves as a program of this machine: its images are built without the RPC server.
        """
        host = replace(host, joined_hosts=ask.sparks or 1)
        try:
            return self.propose(ask, host)
        except UsageError as error:
            if ask.runtime == "native":
                raise
            try:
                return self.propose(replace(ask, runtime="native"), host)
            except HostNotReady as missing:
                raise HostNotReady(missing.what, next=missing.next) from error

    def choose(self, use: Use, host: Host) -> Choice:
        """The recipe of the catalog for a use."""
        from firesteel.planner.choose import choose

        if host.name != "local":
            return choose(self.catalog, host, use)
        return choose(self.catalog, host, use, self.measured_memory, self.own_runs, self.measured_calls)

    def _chosen_release(self, ask: Ask) -> EngineRelease | None:
        """What `upgrade` chose for the model, unless the user asks for a release."""
        from firesteel.edge.home import chosen_release

        if ask.version or ask.engine_path or not ask.model or not self.home.releases_path.exists():
            return None
        chosen = chosen_release(self.home, ask.name or ask.model)
        return chosen.current if chosen else None

    def _adapters(self, ask: Ask) -> OpenedAdapters:
        """What the ask and the recipes that it means name, read; most name none."""
        from firesteel.planner.propose import named_adapters

        found = self._found(ask.model) if ask.model else tuple(self.catalog.recipes.values())
        named = dict.fromkeys(each for recipe in (None, *found) for each in named_adapters(ask, recipe))
        if not named:
            return {}
        from firesteel.edge.checkpoints import open_adapter
        from firesteel.edge.hub.cache import find_store
        from firesteel.rules.adapters import UnreadAdapter

        def opened(each: AdapterReference) -> Adapter | UnreadAdapter:
            try:
                return open_adapter(each.name, each.reference, find_store(self.home))
            except FiresteelError as error:
                return UnreadAdapter(each.name, error)

        return {each: opened(each) for each in named}

    def _programs(self, ask: Ask, release: EngineRelease | None) -> Mapping[EngineName, EngineProgram] | None:
        """The engines that are installed here, where one of them is to serve; None: a container does."""
        if ask.runtime != "native":
            return None
        from firesteel.edge.programs.installed import find_program, find_programs

        path = ask.engine_path or (release.engine_path if release else None)
        if ask.engine:
            return {ask.engine: find_program(ask.engine, self.home, path)}
        return find_programs(self.home, path)

    def _is_checkpoint(self, model: str) -> bool:
        return is_path(model) or (is_hub_id(model) and not self._found(model))

    def _found(self, name: str) -> tuple[Recipe, ...]:
        try:
            return recipes.find_recipes(self.catalog, name)
        except UsageError:
            return ()


def find_workspace() -> Workspace:
    """Everything known about this machine and its user."""
    return Workspace(find_home())


def _with_release(images: Images, release: EngineRelease | None) -> Images:
    """With this image, or package, in place of those that recipes name for its engine."""
    if release is None or release.engine_path:
        return images
    named = dict(images.named)
    for name, image in images.named.items():
        if image.engine != release.engine:
            continue
        if release.image and image.reference:
            other = replace(image, reference=release.image, version=release.version)
            named[name] = identify(release.image, images) or other
        elif release.package and image.package:
            named[name] = replace(image, package=release.package, version=release.version)
    return replace(images, named=named)


def _open_checkpoint(model: str, ask: Ask) -> Checkpoint:
    from firesteel.edge import checkpoints  # loads HTTP and TLS, which the catalog does without

    assume_llama = ask.weights_bytes is not None
    if is_path(model):
        return checkpoints.open_path(model, ask.quant, assume_llama=assume_llama)
    return checkpoints.open_hub(model, assume_llama=assume_llama)


def _with_audit(proposal: Proposal, model: str) -> Proposal:
    """With what the quick part of `audit` finds in a checkpoint that was never run here."""
    from firesteel.edge.contents import read_local  # with the readers of checkpoints
    from firesteel.planner.propose import with_audit
    from firesteel.rules.checkpoint.checks import CHECKS
    from firesteel.rules.checkpoint.judge import judge

    if unknown := [check for check in proposal.ask.despite if check not in CHECKS]:
        raise UsageError(
            f"`{unknown[0]}` is no check of an audit", next=f"firesteel audit {shlex.quote(model)}"
        )

    if is_path(model) and model.endswith(".json"):
        return proposal
    contents = read_local(model)
    return with_audit(proposal, model, judge(contents) if contents else None)
