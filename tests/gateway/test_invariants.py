"""Each invariant of `gateway/DESIGN.md` by its name, over random walks; and bugs sown in, each to be found.

`scripts/explore-schedule` takes the same walks a hundred thousand times.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firesteel.gateway.scheduler import events, scheduler
from firesteel.gateway.scheduler.scheduler import Scheduler

from .walker import Broken, walk

WALKS = 300
INVARIANTS = (
    "never_over_the_ceiling",
    "busy_is_never_unloaded",
    "nothing_lost_nothing_doubled",
    "no_load_for_the_departed",
    "no_hang",
    "bounded_wait",
    "never_together_never_meet",
    "one_load_at_a_time",
    "pinned_stay",
    "dwell_is_kept",
    "room_is_left_to_strangers",
    "the_stale_serve_nobody_new",
    "a_failed_load_waits",
    "full_means_full",
    "no_polling_needed",
)


@dataclass(frozen=True)
class Walked:
    counts: Counter[str]
    broken: dict[str, str]


@pytest.fixture(scope="module")
def walked() -> Walked:
    counts: Counter[str] = Counter()
    broken: dict[str, str] = {}
    for seed in range(WALKS):
        try:
            counts.update(walk(random.Random(seed)).counts)
        except Broken as error:
            broken.setdefault(error.invariant, f"seed {seed}: {error}")
    return Walked(counts, broken)


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_holds(walked: Walked, invariant: str) -> None:
    assert walked.broken.get(invariant) is None


def test_walks_go_everywhere(walked: Walked) -> None:
    """An invariant that was never put to the test holds easily."""
    seldom = {what: walked.counts[what] for what in _SEEN if walked.counts[what] < 10}
    assert not seldom


_SEEN = (
    "Load", "Grant", "Crashed", "Failed", "Left", "Changed", "Memory", "Wanted",
    "unloaded: for another", "unloaded: idle too long", "unloaded: by name", "unloaded: the file changed",
    "unloaded: after a crash", "refused: unknown", "refused: full", "refused: too large", "refused: no room",
    "refused: failed",
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_walks_that_hypothesis_chooses(rnd: random.Random) -> None:
    """The same walk; what breaks is made short."""
    walk(rnd, steps=25)


# -- bugs sown in --

Edit = tuple[str, str, str]
"""File, what stands there, what is put in its place."""


@dataclass(frozen=True)
class Bug:
    name: str
    found_by: frozenset[str]
    """One of these sees it first."""
    edits: tuple[Edit, ...]


LOADS = "\ndef _loads(place):\n    return place.phase == 'loading' and not place.is_returning\n\n"
WISHES = "            place.wanted_s = now_s\n"
KEEPS_IT = "            self._where[request] = place\n"


def bug(name: str, found_by: str, *edits: Edit) -> Bug:
    return Bug(name, frozenset(found_by.split()), edits)


BUGS = (
    bug(
        "evicts the busy",
        "busy_is_never_unloaded",
        ("schedule", "if other.is_idle:", "if other.phase == 'ready':"),
    ),
    bug(
        "forgets the bytes of what is unloading",
        "never_over_the_ceiling",
        ("room", "in places if place.holds)", "in places if place.holds and place.phase != 'unloading')"),
    ),
    bug(
        "forgets the bytes of what is outside",
        "never_over_the_ceiling",
        ("place", "return self.is_outside or self.phase != ", "return self.phase != "),
    ),
    bug(
        "grants the departed",
        "nothing_lost_nothing_doubled",
        ("requests", "if request in place.waiting:", "if place.waiting.get(request):"),
        ("requests", "            del place.waiting[request]\n            self.waiting -= 1\n", KEEPS_IT),
    ),
    bug(
        "loads two at once",
        "one_load_at_a_time",
        ("schedule", 'if any(place.phase == "loading" ', 'if any(place.phase == "never" '),
    ),
    bug(
        "loads beside one that is coming back",
        "one_load_at_a_time",
        ("schedule", 'if any(place.phase == "loading" for', "if any(_loads(place) for"),
        ("schedule", "\nclass Schedule:", LOADS + "\nclass Schedule:"),
    ),
    bug(
        "drops the waiters of a load that failed",
        "nothing_lost_nothing_doubled",
        ("requests", "            out.append(Refuse(request, kind, why, retry_after_s))\n", ""),
    ),
    bug(
        "drops the waiters of one that crashed",
        "nothing_lost_nothing_doubled",
        ("requests", "place.busy.clear()", "place.busy.clear(), place.waiting.clear()"),
    ),
    bug(
        "ignores never_together",
        "never_together_never_meet",
        ("room", "one.name in group and other.name in group", "one is other"),
    ),
    bug(
        "ignores max_wait",
        "bounded_wait no_hang",
        ("schedule", "return overdue_s is not None and now_s >= overdue_s", "return False"),
    ),
    bug(
        "serves the young before the overdue",
        "bounded_wait no_hang",
        ("schedule", "-priority, first_s, place", "-priority, -first_s, place"),
    ),
    bug(
        "lets newcomers in where one is owed room",
        "no_hang",
        ("schedule", " and place not in self._way", ""),
    ),
    bug(
        "never tells those for whom there is no room",
        "no_hang",
        ("schedule", "            self._refuse_overdue(place, why, now_s, out)\n", ""),
    ),
    bug(
        "loses the dwell",
        "dwell_is_kept",
        ("room", "return is_free and self.now_s >= place.dwells_until_s(self.limits)", "return is_free"),
    ),
    bug(
        "evicts the pinned",
        "pinned_stay",
        ("room", "    return place.is_outside or place.is_pinned\n", "    return place.is_outside\n"),
    ),
    bug(
        "lets the pinned expire",
        "pinned_stay",
        ("place", "not self.is_idle or self.is_pinned or", "not self.is_idle or"),
    ),
    bug(
        "loads for one who left",
        "no_load_for_the_departed",
        ("schedule", "            self._requests.wait(", WISHES + "            self._requests.wait("),
    ),
    bug(
        "tries a failed load again at once",
        "a_failed_load_waits",
        ("place", "self.retry_s = now_s + _pause_s(self.fails)\n", "self.retry_s = now_s\n"),
    ),
    bug(
        "counts the departed as waiting",
        "full_means_full",
        ("requests", "            self.waiting -= 1\n            return place", "            return place"),
    ),
    bug(
        "serves from what the file no longer says",
        "the_stale_serve_nobody_new",
        ("schedule", 'place.phase == "ready" and not place.is_leaving and', 'place.phase == "ready" and'),
    ),
    bug(
        "does not look at the host's memory",
        "room_is_left_to_strangers",
        ("room", "return ceiling if self.host_bytes is None else", "return ceiling if True else"),
    ),
    bug(
        "counts twice what came back during a reading",
        "room_is_left_to_strangers",
        ("host", "            self._latest -= place.held_bytes\n", ""),
    ),
    bug(
        "forgets to ask for a tick when an idle one expires",
        "no_polling_needed",
        ("schedule", "        times += [each.expires_s() for each in self._places.values()]\n", ""),
    ),
    bug(
        "forgets to ask for a tick when a wait becomes too long",
        "no_polling_needed no_hang",
        ("schedule", "times = [self._overdue_s(each.waits_since_s)", "times = [self._overdue_s(None)"),
    ),
)
MOST_WALKS = 1000


@pytest.mark.parametrize("sown", BUGS, ids=lambda each: each.name.replace(" ", "_"))
def test_finds_a_bug(sown: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    make = _with_edits(sown.edits, monkeypatch)
    for seed in range(MOST_WALKS):
        try:
            walk(random.Random(seed), make=make)
        except Broken as error:
            assert error.invariant in sown.found_by, f"seed {seed}: {error}"
            return
    pytest.fail(f"{MOST_WALKS} walks did not find: {sown.name}")


def _with_edits(edits: tuple[Edit, ...], monkeypatch: pytest.MonkeyPatch) -> type[Scheduler]:
    """The schedule's own source with these edits, as modules of another package; its words stay the same."""
    folder, package = Path(scheduler.__file__).parent, "sown"
    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, f"{package}.schedule_words", events)
    made = ModuleType(package)
    for name in ("place", "requests", "room", "host", "admission", "schedule"):
        source = (folder / f"{name}.py").read_text()
        for _, old, new in (edit for edit in edits if edit[0] == name):
            assert source.count(old) == 1, f"{name}.py has `{old}` {source.count(old)} times"
            source = source.replace(old, new)
        made = ModuleType(f"{package}.{name}")
        made.__package__ = package
        monkeypatch.setitem(sys.modules, made.__name__, made)
        exec(compile(source, f"{name}.py, edited", "exec"), made.__dict__)
    edited: type[Scheduler] = made.__dict__["Schedule"]
    return edited
