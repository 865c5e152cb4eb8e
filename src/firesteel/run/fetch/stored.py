"""The files of a launch that are in the store already."""

from __future__ import annotations

from pathlib import Path

from firesteel.edge.home import Home
from firesteel.edge.hub import cache
from firesteel.edge.hub.cache import Store, find_store
from firesteel.planner.propose import Proposal
from firesteel.run.fetch.weights import WeightsNeed, select_files, weights_needed


def staged_files(proposal: Proposal, home: Home) -> tuple[Path, ...]:
    """The files in the store that this launch will read."""
    store = find_store(home)
    return tuple(path for need in weights_needed(proposal) for path in _stored_files(need, store))


def pulled_gguf(need: WeightsNeed, home: Home) -> Path | None:
    """The path of a pulled GGUF, for llama.cpp."""
    return next((path for path in _stored_files(need, find_store(home)) if path.suffix == ".gguf"), None)


def _stored_files(need: WeightsNeed, store: Store) -> list[Path]:
    """As the Hub listed them; what is there, if another program fetched them and we never asked the Hub."""
    listing = cache.cached_listing(store, need.repository, need.revision) or cache.snapshot_listing(
        store, need.repository, need.revision
    )
    return [store.path(listing, file) for file in select_files(listing.files, need)] if listing else []
