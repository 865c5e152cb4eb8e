"""What is wrong with this host, what fixes it, how fast it is; commands on other hosts. Imports little."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firesteel.edge import home
from firesteel.edge.home import find_home
from firesteel.hosts.doctor.measure import MeasureEvent, Measuring, NotMeasured, measure
from firesteel.values import Value

if TYPE_CHECKING:
    from firesteel.hosts.doctor.examine import Examination, WatchReading
    from firesteel.hosts.doctor.fix import Fixed, JournalEntry, Undone
    from firesteel.hosts.doctor.nodes import ClusterExamination
    from firesteel.rules.host.fixes import FixPlan

__all__ = ["Measuring", "NotMeasured"]  # events of `measure_host`, in addition to its figures


class PlannedFix(Value):
    plan: FixPlan
    diff: str
    """Of the files that it changes."""


def home_folder() -> Path:
    """Where firesteel keeps what it writes, also where that cannot be read."""
    return home.home_folder()


def doctor(
    checks: Iterable[str] = (), *, root: Path | None = None, source: Path | None = None
) -> Examination:
    """What is wrong with this host, with a folder that stands for one, or with one in a bundle."""
    from firesteel.hosts.doctor.examine import examine, examine_file

    return examine_file(source, checks) if source else examine(find_home(), root=root, only=checks)


async def doctor_cluster(checks: Sequence[str] = ()) -> ClusterExamination:
    """The same of this host and every node of the cluster, and what differs between them."""
    from firesteel.hosts.doctor.nodes import examine_cluster  # ssh

    return await examine_cluster(find_home(), checks)


def write_bundle(path: Path, root: Path | None = None) -> tuple[str, ...]:
    """What `doctor` reads, without secrets, as one file; the names of its sections."""
    from firesteel.hosts.doctor import bundle

    return tuple(bundle.write_bundle(path, find_home(), root).sections)


def watch_host(every_s: float, count: int | None = None, root: Path | None = None) -> Iterator[WatchReading]:
    """The state of the host every few seconds, and what is wrong then."""
    from firesteel.hosts.doctor.examine import watch

    return watch(find_home(), every_s, count, root)


def measure_host() -> Iterator[MeasureEvent]:
    """What is measured, then its figures, or why there is none."""
    from firesteel.hosts.doctor.measure_rails import measure_rails  # ssh

    yield from measure(find_home())
    yield Measuring("links to other hosts")
    yield from measure_rails(find_home())


# --- fixes ---


def half_done(root: Path | None = None) -> list[str]:
    """Fixes that were interrupted."""
    from firesteel.hosts.doctor import fix

    return fix.half_done(root)


def plan_fixes(
    examination: Examination, names: Sequence[str] = (), root: Path | None = None
) -> tuple[PlannedFix, ...]:
    """What would be changed; a plan may be refused, with the reason."""
    from firesteel.hosts.doctor import fix

    base = fix.root_of(root)
    return tuple(PlannedFix(plan, fix.diff(base, plan)) for plan in fix.plan_fixes(examination, names))


def require_root(again: str, root: Path | None = None) -> None:
    """Raises unless this user may change the host; `again` is what to type as root."""
    from firesteel.hosts.doctor import fix

    fix.require_root(fix.root_of(root), again)


def apply_fixes(fixes: Iterable[PlannedFix], root: Path | None = None) -> Iterator[Fixed]:
    """Change the host, check each change again, and write down how to take it back."""
    from firesteel.hosts.doctor import fix

    for each in fixes:
        yield fix.apply_fix(each.plan, find_home(), root)


def fixes_to_undo(names: Iterable[str] = (), root: Path | None = None) -> list[JournalEntry]:
    """What `apply_fixes` changed and was not taken back, the newest first."""
    from firesteel.hosts.doctor import fix

    return fix.to_undo(root, names)


def undo_fix(entry: JournalEntry, root: Path | None = None) -> Undone:
    """Take it back; what others have changed since stays, and is listed."""
    from firesteel.hosts.doctor import fix

    return fix.undo_fix(entry, root)


# --- other hosts, and simulated ones ---


def run_on_node(node: str, argv: list[str]) -> int:
    """A command on a node, over ssh; its exit code."""
    from firesteel.hosts.cluster import elsewhere  # ssh

    return elsewhere.run_elsewhere(find_home(), node, argv)


class Simulation(Value):
    scenario: str
    """Empty: none."""
    faster: float
    reads_faster: float


def scenarios() -> dict[str, str]:
    """Of the simulated Spark, by name: what is so about it."""
    from firesteel.edge.sim import setup

    return dict(setup.scenarios())


def enter_simulation(name: str) -> Simulation:
    """From here on this process, and what it starts, runs on a simulated Spark."""
    import os

    from firesteel.edge.sim.setup import enter
    from firesteel.edge.sim.spark import read_spark

    spark = read_spark(enter(name or None, os.environ))
    return Simulation(spark.name or "", spark.faster, spark.reads_faster)
