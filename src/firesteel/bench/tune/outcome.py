"""What the trials of a tune amount to: is the best setting really better, which start is fastest, the
recipe."""

from __future__ import annotations

from pathlib import Path

from firesteel.bench.compare.stats import FigureDifference, compare_values
from firesteel.bench.tune.journal import Journal
from firesteel.bench.tune.knobs import OFF, SPECULATION
from firesteel.bench.tune.points import goal_texts, goal_users
from firesteel.bench.tune.recipe import recipe_text, tuned_name
from firesteel.bench.tune.search import Search
from firesteel.bench.tune.space import SearchSpace, Setting
from firesteel.bench.tune.summary import DraftRow, compare_drafting
from firesteel.edge.home import Home, write_text
from firesteel.errors import UsageError

_FASTER_START = 0.9
"""A start must take less than this share of the other to be better; smaller differences are chance."""


def final_difference(journal: Journal, search: Search) -> FigureDifference:
    """The best setting, measured again, against the one before."""
    base = search.observations[0].values if search.observations else ()
    best = search.best.values if search.best else ()
    confirmed = journal.of("confirm")
    return compare_values(confirmed[-1].values if confirmed else best, base)


def drafting_rows(journal: Journal) -> tuple[DraftRow, ...]:
    confirm, twin = (next(iter(journal.of(role)), None) for role in ("confirm", "twin"))
    if confirm is None or twin is None or confirm.failed or twin.failed:
        return ()
    drafts = confirm.labels.get(SPECULATION) != OFF
    return compare_drafting(confirm, twin) if drafts else compare_drafting(twin, confirm)


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
        f"Runs: {', '.join(runs)}; see `firesteel history show RUN`."
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
