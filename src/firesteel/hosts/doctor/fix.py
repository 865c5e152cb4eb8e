"""`doctor --fix` and `--undo`: which fixes, applied and verified one by one; which of them, taken back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from firesteel.edge.home import Home
from firesteel.edge.host.machine_files import sim_folder
from firesteel.errors import HostNotReady, UsageError
from firesteel.hosts.doctor import apply, journal
from firesteel.hosts.doctor.apply import Undone
from firesteel.hosts.doctor.examine import Examination, examine
from firesteel.hosts.doctor.journal import JournalEntry
from firesteel.rules.host.check import host_check
from firesteel.rules.host.fixes import FIXERS, ONLY_BY_NAME, FixPlan, plan_fix
from firesteel.values import Value


class Fixed(Value):
    check: str
    verified: bool
    says: str
    """What was read afterwards, or when it will take effect."""


def root_of(root: Path | None) -> Path:
    """What stands for `/`: a simulated Spark has a folder of its own."""
    return root or sim_folder() or Path("/")


def plan_fixes(examination: Examination, names: Sequence[str] = ()) -> tuple[FixPlan, ...]:
    """For what is wrong: of the named checks, or of all that have a fix without a price."""
    for name in names:
        host_check(name)
    bad = {finding.check: finding for finding in examination.findings if finding.is_bad}
    chosen = names or [name for name in bad if name in FIXERS and name not in ONLY_BY_NAME]
    return tuple(plan_fix(name, examination.facts) for name in chosen if name in bad)


def fixable(examination: Examination) -> frozenset[str]:
    """The checks that found something which `--fix` can change here."""
    bad = (finding.check for finding in examination.findings if finding.is_bad)
    return frozenset(name for name in bad if not plan_fix(name, examination.facts).refused)


def require_root(root: Path, again: str) -> None:
    if root == Path("/") and os.geteuid() != 0:
        raise HostNotReady("changing the host needs root", next=f"sudo {again}")


def apply_fix(plan: FixPlan, home: Home, root: Path | None = None) -> Fixed:
    """Applies one fix and judges the host again; a fix that does not help is taken back."""
    base = root_of(root)
    with apply.exclusive(base):
        entry = apply.apply(base, plan)
        problems = f"; {entry.result}" if entry.result else ""
        finding = examine(home, root=root, only=(plan.check,)).findings[0]
        if not finding.is_bad:
            return Fixed(plan.check, True, f"{finding.evidence}{problems}")
        if plan.later:
            return Fixed(plan.check, True, f"takes effect {plan.later}{problems}")
        if base != Path("/") and _has_unrun_commands(base, plan):
            return Fixed(plan.check, True, f"its files are written; its commands do not run under {base}")
        apply.undo(base, entry)
        return Fixed(
            plan.check, False, f"it did not help ({finding.evidence}), so it was taken back{problems}"
        )


def _has_unrun_commands(root: Path, plan: FixPlan) -> bool:
    commands = [change.command for change in plan.changes if change.command]
    return any(not (root / "bin" / command[0]).exists() for command in commands)


def half_done(root: Path | None) -> list[str]:
    """The checks whose fix or undo was killed on the way, as far as the journal can be read."""
    return [entry.check for entry in journal.open_entries(root_of(root)) if entry.state == "applying"]


def to_undo(root: Path | None, names: Iterable[str] = ()) -> list[JournalEntry]:
    """What would be taken back, the newest first."""
    base, wanted = root_of(root), set(names)
    folder = base / journal.FOLDER
    if folder.exists() and not os.access(folder, os.R_OK | os.X_OK):
        raise HostNotReady("the journal can be read only by root", next="sudo firesteel doctor --undo")
    found = [entry for entry in journal.open_entries(base) if not wanted or entry.check in wanted]
    missing = wanted - {entry.check for entry in found}
    if missing:
        raise UsageError(
            f"`{min(missing)}` was not changed here by firesteel, or is taken back already",
            next="firesteel doctor --undo, which lists what was changed",
        )
    return found


def undo_fix(entry: JournalEntry, root: Path | None = None) -> Undone:
    base = root_of(root)
    with apply.exclusive(base):
        return apply.undo(base, entry)
