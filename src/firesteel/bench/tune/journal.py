"""The journal of a tune: what was wished for, what ran before, every run that is over. One JSON file.

It is written whole after each run (FIRESTEEL_HOME/tune/ID/journal.json), so a tune that was killed goes on
with the next run and repeats none that was over: the search is told them again, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from firesteel.bench.tune.space import Goal
from firesteel.bench.values import Text
from firesteel.edge.files.home import Home, write_text
from firesteel.errors import UsageError
from firesteel.launch import Ask

FORM = 1
_MOST_BYTES = 16 * 2**20
_FILE = "journal.json"
Role = Literal["search", "confirm", "twin", "start"]
"""search: to find the best. confirm: the best again, afresh. twin: the same with or without drafting.
start: only how long it takes to come up."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What was typed."""

    goal: Goal = "latency"
    texts: tuple[Text, ...] = ()
    """Empty: code and prose for the goal, all kinds for what is said of drafting."""
    users: int | None = None
    """None: one for latency, as many as are served for throughput."""
    budget_s: float = 7200.0
    max_runs: int = 40
    prompt_tokens: int = 512
    answer_tokens: int = 128
    seed: int = 0
    thinking: bool | None = None
    """None: as the server has it."""
    only: tuple[str, ...] = ()
    """Names of the knobs to turn; empty: all."""


@dataclass(frozen=True, slots=True)
class RunningBefore:
    """What ran when it began."""

    words: tuple[str, ...]
    """What had been typed after `firesteel up`."""
    ask: Ask
    """What these words meant."""
    listen: str
    trusts_code: bool
    at_boot: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """One run that is over."""

    labels: Mapping[str, str]
    """By knob."""
    role: Role
    values: tuple[float, ...] = ()
    """Of the goal, one a round; empty: it failed."""
    run: str | None = None
    """In the history."""
    failed: str | None = None
    start_s: float | None = None
    was_beaten: bool = False
    """Given up after a short measurement, clearly below the best."""
    took_s: float = 0.0
    rows: tuple[tuple[str, int, tuple[float, ...]], ...] = ()
    """Tokens a second by kind of text and users, of a run that swept over them."""


@dataclass(slots=True)
class Journal:
    id: str
    began: str
    name: str
    """Of the service."""
    ask: Ask
    wish: TuneOptions
    before: RunningBefore | None = None
    trials: list[Trial] = field(default_factory=list)
    spent_s: float = 0.0
    ended: str | None = None
    """How it ended; None: it is under way, or was killed."""
    recipe: str | None = None
    is_restored: bool = False
    """It was told to end and put back what ran before; a killed one could not."""

    def of(self, role: Role) -> list[Trial]:
        return [each for each in self.trials if each.role == role]


def folder(home: Home) -> Path:
    return home.root / "tune"


def keep(home: Home, journal: Journal) -> None:
    text = json.dumps({"form": FORM, **asdict(journal)}, indent=1)
    write_text(folder(home) / journal.id / _FILE, text)


def read(home: Home, id: str) -> Journal:
    path = folder(home) / id / _FILE
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError("too large")
        said: Any = json.loads(path.read_text("utf-8"))
        form = said.pop("form", None) if isinstance(said, dict) else None
        if form != FORM:
            raise ValueError(f"in the form {str(form)[:20]}; this firesteel reads {FORM}")
        return TypeAdapter(Journal).validate_python(said)
    except (OSError, ValueError, RecursionError, ValidationError) as error:
        why = str(error).splitlines()[0][:200]
        raise UsageError(
            f"{path} cannot be read: {why}", next=f"rm -r {path.parent}, then tune anew"
        ) from error


def cut_off(home: Home, name: str) -> Journal | None:
    """The newest that did not end, of that service."""
    found = sorted(folder(home).iterdir(), reverse=True) if folder(home).is_dir() else []
    for each in found[:200]:
        if (each / _FILE).is_file():
            journal = read(home, each.name)
            if journal.name == name and journal.ended is None:
                return journal
    return None
