"""What is wrong with a checkpoint, judged from its headers, its scales and its small files.

`judge` takes what `edge/files/contents.py` read and returns findings, the most severe first. Pure: `audit`
shows them, `plan` and `up` use them before anything starts, `repair` mends those that it can prove better.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.rules.checkpoint_checks.checks import CHECKS, CheckpointCheck, CheckpointFinding, Mend
    from firesteel.rules.checkpoint_checks.judge import judge
    from firesteel.rules.checkpoint_checks.summary import CheckpointSummary, summarize_checkpoint
else:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(__name__)
