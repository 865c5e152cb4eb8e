"""What is wrong with a launch in a text, and why an engine did not start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from firesteel import reads, rules
from firesteel.errors import UsageError
from firesteel.launch import EngineName
from firesteel.workspace import find_workspace

if TYPE_CHECKING:
    from firesteel.engines import Diagnosis
    from firesteel.reads import ReadLaunch
    from firesteel.rules import CompatibilityTable, Finding
    from firesteel.rules.fact_tables import FactTable


def compatibility(table: str = "sm121") -> CompatibilityTable:
    """What works on a machine, release by release, according to the rules."""
    return rules.compatibility(table)


def fact_tables() -> tuple[str, ...]:
    """The names of tables beside those of `compatibility`."""
    from firesteel.rules.fact_tables import TABLES

    return TABLES


def fact_table(name: str) -> FactTable:
    """What is known about a DGX Spark, with source and day; one of `fact_tables`."""
    from firesteel.rules import fact_tables as tables

    if name not in tables.TABLES:
        known = ", ".join(("sm121", *tables.TABLES))
        raise UsageError(
            f"there is no table `{name:.60}`; there are {known}", next="firesteel facts hardware"
        )
    return tables.fact_table(name)


def read(text: str, path: str = "text") -> tuple[ReadLaunch, ...]:
    """The launches in a `docker run` line or any text that has some."""
    return reads.read(text, path, find_workspace().images(text))


def check(text: str, *, path: str = "text", hardware_name: str | None = "stated") -> tuple[Finding, ...]:
    """What the rules say of every launch in a text: on the machine that it speaks of, on `gb10`, or (None)
    without what depends on the machine."""
    found = rules.lint(text, path, rules.LintOptions(find_workspace().images(text), hardware_name))
    if not found.readings:
        raise found.problem or reads.no_launch_error(path)
    return found.findings


def diagnose(log: Path | str, engine: EngineName | None = None) -> Diagnosis:
    """Why an engine did not start, from its log: a file, or its text."""
    from firesteel import engines  # the patterns of logs load with the first diagnosis

    if isinstance(log, str):
        return engines.diagnose(log, engine)
    from firesteel.edge.files.log_files import open_log

    with open_log(log, str(log)) as text:
        return engines.diagnose(text, engine)
