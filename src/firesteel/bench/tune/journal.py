"""The journal of a tune: its options, the load that follows from them, what ran before, and all finished
runs.

It is one JSON file (FIRESTEEL_HOME/tune/ID/journal.json), written as a whole after each run, so a tune that
was killed continues with the next run and repeats none: the finished ones are replayed to the search in their
order.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from firesteel.bench.measurements import Point
from firesteel.bench.tune.knobs import Goal
from firesteel.edge.home import Home, write_text
from firesteel.engines.engine import served_capacity
from firesteel.errors import UsageError
from firesteel.launch import Ask, Text
from firesteel.planner.propose import Proposal
from firesteel.run.service import up_arguments
from firesteel.values import Value, from_json, plain

FORM = 2
_MAX_BYTES = 16 * 2**20
_MAX_JOURNALS = 200
_FILE = "journal.json"
Role = Literal["search", "confirm", "twin", "start"]
"""search: find the best. confirm: measure the best again. twin: the same with or without drafting.
start: only how long it takes to start."""


class TuneOptions(Value):
    """What the user asked for."""

    goal: Goal = "latency"
    texts: tuple[Text, ...] = ()
    """Empty: code and prose for the goal, all kinds for the comparison of drafting."""
    users: int | None = None
    """None: one for latency, as many as are served for throughput."""
    budget_s: float = 7200.0
    max_runs: int = 40
    prompt_tokens: int = 512
    answer_tokens: int = 128
    seed: int = 0
    thinking: bool | None = None
    """None: the server's default."""
    only: tuple[str, ...] = ()
    """Names of the knobs to turn; empty: all."""


class RunningBefore(Value):
    """The service that ran when the tune began."""

    ask: Ask
    listen: str
    trusts_code: bool
    at_boot: bool
    service_file: str = ""

    @property
    def again(self) -> str:
        """The command that starts it, to print."""
        given = up_arguments(self.ask, self.listen, self.trusts_code, self.at_boot, self.service_file)
        return f"firesteel up {shlex.join(given)}"


class Trial(Value):
    """One finished run."""

    labels: Mapping[str, str]
    """By knob."""
    role: Role
    values: tuple[float, ...] = ()
    """Of the goal, one per round; empty: the candidate failed."""
    run: str | None = None
    """Its id in the history."""
    failed: str | None = None
    start_s: float | None = None
    was_beaten: bool = False
    """Given up after a short measurement, clearly below the best."""
    took_s: float = 0.0
    rows: tuple[tuple[str, int, tuple[float, ...]], ...] = ()
    """Tokens per second by kind of text and users, of a run that swept over them."""
    settled: Mapping[str, str] = {}
    """By knob that was left to the engine, the choice that it came to, by the engine's log."""
    same_as: int | None = None
    """The number of the run with the same setting under another name: its values are taken."""


class Journal(Struct):
    id: str
    began: str
    name: str
    """Of the service."""
    ask: Ask
    options: TuneOptions
    before: RunningBefore | None = None
    trials: list[Trial] = []
    spent_s: float = 0.0
    ended: str | None = None
    """How it ended; None: it is running, or was killed."""
    recipe: str | None = None
    is_restored: bool = False
    """It ended early and restored what ran before; a killed tune could not."""

    def of(self, role: Role) -> list[Trial]:
        return [trial for trial in self.trials if trial.role == role]


def tune_folder(home: Home) -> Path:
    return home.root / "tune"


def write_journal(home: Home, journal: Journal) -> None:
    text = json.dumps({"form": FORM, **plain(journal)}, indent=1)
    write_text(tune_folder(home) / journal.id / _FILE, text)


def read_journal(home: Home, id: str) -> Journal:
    path = tune_folder(home) / id / _FILE
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError("too large")
        document: Any = json.loads(path.read_text("utf-8"))
        form = document.pop("form", None) if isinstance(document, dict) else None
        if form != FORM:
            raise ValueError(f"in the form {str(form)[:20]}; this firesteel reads {FORM}")
        return from_json(Journal, document)
    except (OSError, ValueError, RecursionError) as error:
        why = str(error).splitlines()[0][:200]
        raise UsageError(
            f"{path} cannot be read: {why}", next=f"rm -r {path.parent}, then start a new tune"
        ) from error


def unfinished_journal(home: Home, name: str) -> Journal | None:
    """The newest tune of that service that did not end."""
    folders = sorted(tune_folder(home).iterdir(), reverse=True) if tune_folder(home).is_dir() else []
    for path in folders[:_MAX_JOURNALS]:
        if (path / _FILE).is_file():
            journal = read_journal(home, path.name)
            if journal.name == name and journal.ended is None:
                return journal
    return None


# --- the load ---
# That of the goal, and the sweep that judges drafting.

_GOAL_TEXTS: tuple[Text, ...] = ("code", "prose")
_ALL_TEXTS: tuple[Text, ...] = ("code", "prose", "json", "math")
_MAX_DOUBLINGS = 10


def goal_texts(options: TuneOptions) -> tuple[Text, ...]:
    return options.texts or _GOAL_TEXTS


def served_users(base: Proposal) -> int:
    return served_capacity(base.plan.launch).users or 1


def goal_users(options: TuneOptions, base: Proposal) -> int:
    """Users at once for the goal."""
    return options.users or (served_users(base) if options.goal == "throughput" else 1)


def goal_points(options: TuneOptions, base: Proposal) -> tuple[Point, ...]:
    users = goal_users(options, base)
    return tuple(_point(options, text, users) for text in goal_texts(options))


def sweep_points(options: TuneOptions, base: Proposal) -> tuple[Point, ...]:
    """The points of the goal first, then all texts with 1, 2, 4 and so on up to the largest number of
    users."""
    most = max(goal_users(options, base), served_users(base))
    counts = sorted({1, most, *(2**power for power in range(1, _MAX_DOUBLINGS + 1) if 2**power < most)})
    more = (_point(options, text, users) for text in (options.texts or _ALL_TEXTS) for users in counts)
    return tuple(dict.fromkeys((*goal_points(options, base), *more)))


def _point(options: TuneOptions, text: Text, users: int) -> Point:
    shape = "single" if users == 1 else "sweep"
    return Point(shape, text, users, options.prompt_tokens, options.answer_tokens)
