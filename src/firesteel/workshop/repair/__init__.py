"""`repair`: a checkpoint that was audited -> the same one without its mistakes.

`draft` has the checkpoint as it will be, and writes it to a new folder or in place, with a backup to undo it;
`scales` and `config` change a draft; `repair` decides which changes the findings need. The result is audited
before it gets its name, and is not written if it is not better.
"""

from firesteel.workshop.repair.repair import RepairOptions, RepairReport, repair, undo_repair

__all__ = ["RepairOptions", "RepairReport", "repair", "undo_repair"]
