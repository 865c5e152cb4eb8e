"""`repair`: a checkpoint that was audited -> the same one without its mistakes.

`draft` has the checkpoint as it will be, and writes it beside the old one or in its place, with an undo;
`scales` and `config` change a draft; `repair` decides which changes the findings need. What is not proved
better is not written: the result is audited before it gets its name.
"""

from firesteel.workshop.repair.repair import RepairOptions, RepairReport, repair, undo_repair

__all__ = ["RepairOptions", "RepairReport", "repair", "undo_repair"]
