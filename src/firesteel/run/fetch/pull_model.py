"""`pull MODEL`: everything that a catalog model needs, or the files of any other repository on the Hub."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator

from firesteel.catalog.catalog import Catalog
from firesteel.launch import Ask, is_hub_id
from firesteel.run.events import Event
from firesteel.run.fetch.pull import pull_launch, pull_weights
from firesteel.run.fetch.stored import pulled_gguf
from firesteel.run.fetch.weights import parse_name, weights_needed
from firesteel.workspace import Workspace


def pull_model(
    workspace: Workspace,
    model: str,
    patterns: tuple[str, ...] = (),
    *,
    weights_only: bool = False,
    update: bool = False,
    reread: bool = False,
) -> AsyncIterator[Event]:
    """Yields no PhaseDone if everything was there already. With `patterns`, only those files of a Hub id."""
    home = workspace.home
    if patterns or is_only_on_hub(workspace.catalog, model):
        return pull_weights([parse_name(model, patterns)], home, update=update, reread=reread)
    best = workspace.propose(Ask(model), workspace.host())[0]
    weights_only = weights_only or update or reread
    return pull_launch(best, home, weights_only=weights_only, update=update, reread=reread)


def repositories_of(workspace: Workspace, model: str) -> list[str]:
    """The repositories with the weights that any recipe of the model needs."""
    if is_only_on_hub(workspace.catalog, model):
        return [parse_name(model, ()).repository]
    proposals = workspace.propose(Ask(model), workspace.host())
    return sorted({want.repository for proposal in proposals for want in weights_needed(proposal)})


def next_command(workspace: Workspace, model: str, patterns: tuple[str, ...] = ()) -> str:
    """What to type after the pull."""
    if not is_only_on_hub(workspace.catalog, model):
        return f"firesteel up {model}"
    path = pulled_gguf(parse_name(model, patterns), workspace.home)
    # A GGUF without a recipe is served by its path.
    return f"firesteel up {shlex.quote(str(path))}" if path else f"firesteel plan {model.partition('@')[0]}"


def is_only_on_hub(catalog: Catalog, model: str) -> bool:
    """A Hub id that is not in the catalog."""
    ids = [known.lower() for known in catalog.models]
    is_known = model.lower() in {*ids, *(known.partition(":")[0] for known in ids)}
    return not is_known and is_hub_id(model.partition(":")[0].partition("@")[0])
