"""Ways to serve what was asked for: recipes -> launches -> plans -> findings, best first.

`propose` answers for the catalog, `propose_checkpoint` for a checkpoint without a recipe. Pure: what is known
about the host and its user comes in as values; `workspace` gathers them. Judging a launch is `rules`,
changing one is `catalog.launches`.
"""

from firesteel.proposals.advice import (
    alternative,
    has_weights,
    how_to_fit,
    require_runnable,
    require_weights,
    services_to_stop,
)
from firesteel.proposals.propose import (
    Proposal,
    compared_with_best,
    propose,
    propose_checkpoint,
    service_name,
    with_audit,
)

__all__ = [
    "Proposal",
    "alternative",
    "compared_with_best",
    "has_weights",
    "how_to_fit",
    "propose",
    "propose_checkpoint",
    "require_runnable",
    "require_weights",
    "service_name",
    "services_to_stop",
    "with_audit",
]
