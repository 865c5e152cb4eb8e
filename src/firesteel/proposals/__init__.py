"""Ways to serve what was asked for: recipes -> launches -> plans -> findings, best first.

`propose` answers for the catalog, `propose_checkpoint` for a checkpoint without a recipe. Pure: what is known
about the host and its user comes in as values; `workspace` gathers them. Judging a launch is `rules`,
changing one is `launch_pipeline`.
"""

from firesteel.proposals.propose import (
    Proposal,
    compared_with_best,
    propose,
    propose_checkpoint,
    require_runnable,
)

__all__ = [
    "Proposal",
    "compared_with_best",
    "propose",
    "propose_checkpoint",
    "require_runnable",
]
