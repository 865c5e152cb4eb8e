"""`repair`: a checkpoint that was audited -> the same one without its mistakes.

`draft` has the checkpoint as it will be; `scales`, `config`, `graft`, `layout` and `shards` change a draft;
`write` puts it beside the old one or in its place, with an undo. What is not proved better is not written:
the result is audited before it gets its name.
"""

from firesteel.workshop.repair.repair import RepairOptions, RepairReport, repair, undo_repair

__all__ = ["RepairOptions", "RepairReport", "repair", "undo_repair"]
