"""What a tune reports while it runs, and what its trials amount to: is the best setting really better, where
does drafting lose, which start is fastest; and the best setting as a recipe for the user's own catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from firesteel.bench.compare.stats import FigureDifference, compare_values
from firesteel.bench.load.measure import RunProgress
from firesteel.bench.tune.journal import Journal, Role, Trial, goal_texts, goal_users
from firesteel.bench.tune.knobs import OFF, SPECULATION
from firesteel.bench.tune.search import Search, SearchSpace, Setting
from firesteel.catalog.recipe import Recipe, dump_recipe
from firesteel.edge.home import Home, write_text
from firesteel.errors import UsageError
from firesteel.planner.propose import Proposal
from firesteel.planner.rendered import recipe_of_launch
from firesteel.run.events import Event as RunEvent
from firesteel.values import Value, replace

_TUNED_SUFFIX = "-tuned"
"""What the name of a tuned recipe ends with."""
_MIN_GAIN = 0.02
"""A smaller gain is not worth another measurement."""
_FASTER_START = 0.9
"""A start must take less than this share of the other to be better; smaller differences are chance."""


class DraftRow(Value):
    """How fast it is with and without drafting, for one kind of text and number of users."""

    text: str
    users: int
    drafting_tokens_per_s: float
    plain_tokens_per_s: float
    difference: FigureDifference


class SpacePlanned(Value):
    """It is known what can be tried."""

    space: SearchSpace
    refused: tuple[tuple[dict[str, str], str], ...]
    """Single changes that are never tried, with the reason."""


class TrialStarted(Value):
    """A setting is about to be started."""

    number: int
    role: Role
    changes: dict[str, str]


class TrialFinished(Value):
    """A setting was measured, or could not be."""

    number: int
    trial: Trial
    changes: dict[str, str]


class TuneResult(Value):
    """The last event."""

    journal: Journal
    space: SearchSpace
    changes: dict[str, str]
    """What the best setting changes in the one before."""
    is_better: bool
    difference: FigureDifference
    text: str
    drafts: tuple[DraftRow, ...] = ()
    advice: tuple[str, ...] = ()
    recipe: str | None = None
    """Its name in the catalog."""
    recipe_path: Path | None = None
    running: str | None = None
    notes: tuple[str, ...] = ()


Event = RunEvent | RunProgress | SpacePlanned | TrialStarted | TrialFinished | TuneResult
"""What a tune yields."""


# --- what the trials amount to ---


def final_difference(journal: Journal, search: Search) -> FigureDifference:
    """The best setting, measured again, against the one before."""
    base = search.observations[0].values if search.observations else ()
    best = search.best.values if search.best else ()
    confirmed = journal.of("confirm")
    return compare_values(confirmed[-1].values if confirmed else best, base)


def drafting_rows(journal: Journal) -> tuple[DraftRow, ...]:
    """The best setting against its twin; empty unless both were measured at the end."""
    confirm, twin = (next(iter(journal.of(role)), None) for role in ("confirm", "twin"))
    if confirm is None or twin is None or confirm.failed or twin.failed:
        return ()
    drafts = confirm.labels.get(SPECULATION) != OFF
    return compare_drafting(confirm, twin) if drafts else compare_drafting(twin, confirm)


def compare_drafting(drafting: Trial, plain: Trial) -> tuple[DraftRow, ...]:
    """A row for each kind of text and number of users that both trials measured."""
    plain_rates = {(text, users): rates for text, users, rates in plain.rows}
    rows = []
    for text, users, rates in drafting.rows:
        others = plain_rates.get((text, users))
        if rates and others:
            rows.append(DraftRow(text, users, fmean(rates), fmean(others), compare_values(rates, others)))
    return tuple(rows)


def fastest_start(journal: Journal, space: SearchSpace) -> tuple[Setting, str] | None:
    """The setting that starts clearly faster than the confirmed best, and a note about it."""
    usual_s = next((trial.start_s for trial in journal.of("confirm") if trial.start_s), None)
    starts = [(t.start_s, t.labels) for t in journal.of("start") if t.start_s and not t.failed]
    if usual_s is None or not starts:
        return None
    start_s, labels = min(starts, key=lambda start: start[0])
    if start_s >= _FASTER_START * usual_s:
        return None
    note = f"it starts in {start_s:.0f} s instead of {usual_s:.0f} s; each was started once"
    return space.setting(labels), note


# --- sentences ---


def verdict_text(compared: Sequence[tuple[Mapping[str, str], FigureDifference]]) -> str:
    """`compared`: what was changed, and how it did against the current setting. The best one comes first,
    measured again."""
    if not compared:
        return "only the current setting could be measured, so nothing is known about others"
    changes, best = compared[0]
    if best.verdict == "faster":
        return f"{_join_changes(changes)}: {_format_ratio(best)} as fast as before"
    open_ones = [(changes, found) for changes, found in compared if not _is_no_better(found)]
    if not open_ones:
        return "no setting that was tried is better than the current one; nothing was changed"
    changes, found = open_ones[0]
    others = len(open_ones) - 1
    more = f", nor about {others} {'other' if others == 1 else 'others'}" if others else ""
    return (
        f"cannot tell whether {_join_changes(changes)} is better: {_format_ratio(found)} as fast as "
        f"before{more}; nothing was changed. A larger --budget measures longer"
    )


def _is_no_better(found: FigureDifference) -> bool:
    """Slower, or surely not better by as much as would matter."""
    return found.verdict == "slower" or (found.verdict != "too few" and found.high < 1 + _MIN_GAIN)


def drafting_text(rows: Sequence[DraftRow]) -> tuple[str, ...]:
    """One sentence per kind of text: from how many users on it loses, or up to how many it gains."""
    texts = dict.fromkeys(row.text for row in rows)
    return tuple(_advise_for_text(text, [row for row in rows if row.text == text]) for text in texts)


def _advise_for_text(text: str, rows: Sequence[DraftRow]) -> str:
    ordered = sorted(rows, key=lambda row: row.users)
    loses = [row for row in ordered if row.difference.verdict == "slower"]
    gains = [row for row in ordered if row.difference.verdict == "faster"]
    if loses:
        first = loses[0]
        also = f", and gains up to {gains[-1].users}" if gains and gains[-1].users < first.users else ""
        ratio = f"{first.difference.ratio:.2f} x there"
        return f"{text}: drafting loses from {_count_users(first.users)} on ({ratio}){also}"
    if gains:
        ratios = [row.difference.ratio for row in gains]
        return (
            f"{text}: drafting gains up to {_count_users(ordered[-1].users)}, the most that were tried "
            f"({min(ratios):.2f} to {max(ratios):.2f} x)"
        )
    return f"{text}: no difference seen with drafting"


def _count_users(count: int) -> str:
    return "one user" if count == 1 else f"{count} users"


def _join_changes(changes: Mapping[str, str]) -> str:
    return ", ".join(f"{knob} {label}" for knob, label in changes.items())


def _format_ratio(found: FigureDifference) -> str:
    if found.verdict == "too few":
        return f"{found.ratio:.2f} x (measured {'once' if found.n == 1 else f'{found.n} times'})"
    return f"{found.ratio:.2f} x ({found.low:.2f} to {found.high:.2f})"


# --- the recipe ---


def write_recipe(
    home: Home, journal: Journal, space: SearchSpace, best: Setting, difference: FigureDifference
) -> tuple[str, Path]:
    """Write the setting into the user's catalog; returns its name and its file."""
    base, options = space.base.recipe, journal.options
    if base is None:
        raise UsageError("only a recipe of the catalog can be tuned", next="firesteel models")
    runs = [trial.run for trial in journal.trials if trial.run]
    gain = f"{difference.ratio:.2f} x ({difference.low:.2f} to {difference.high:.2f})"
    note = (
        f"Made from {base.name} by `firesteel tune` ({journal.id}), measured here: {gain} for "
        f"{options.goal}, {', '.join(goal_texts(options))}, {goal_users(options, space.base)} at once. "
        f"Runs: {', '.join(runs)}; see `firesteel bench show RUN`."
    )
    rows = zip(space.knobs, best, space.start, strict=True)
    why = {
        flag: f"tune {journal.id}: {gain} with all of its changes"
        for knob, choice, current in rows
        if choice != current
        for flag in knob.choices[choice].flags
    }
    name = tuned_name(base.name)
    path = home.catalog / "recipes" / f"{name}.yaml"
    write_text(path, recipe_text(base, space.proposal(best), why, note))
    return name, path


def recipe_text(base: Recipe, best: Proposal, why: Mapping[str, str], note: str) -> str:
    """The tuned recipe as YAML; `why` has the reason of each flag that was changed."""
    tuned = replace(
        recipe_of_launch(base, best, why),
        name=tuned_name(base.name),
        title=f"{base.title}, tuned here",
        status="measured",
        quality=(),
        corrects=(),
        note=note,
    )
    return dump_recipe(tuned)


def tuned_name(name: str) -> str:
    """A recipe that was tuned before keeps its name, and its file is overwritten."""
    return name if name.endswith(_TUNED_SUFFIX) else f"{name}{_TUNED_SUFFIX}"
