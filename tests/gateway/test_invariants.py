"""Each invariant of `gateway/DESIGN.md` by its name, over random walks; and mutations of the
scheduler that the walks must find.

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

from .scheduler_invariants import Broken
from .walker import walk

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
    "fair_shares",
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
    "LoadModel", "GrantRequest", "ModelCrashed", "LoadFailed", "RequestAbandoned", "ConfigChanged",
    "MemoryReading", "LoadRequested",
    "unloaded: for another", "unloaded: idle too long", "unloaded: by name", "unloaded: the file changed",
    "unloaded: after a crash", "unloaded: cancelled", "rejected: cancelled",
    "rejected: unknown", "rejected: full", "rejected: too large",
    "rejected: no memory", "rejected: failed",
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False))
def test_walks_that_hypothesis_chooses(rnd: random.Random) -> None:
    """The same walk; what breaks is made short."""
    walk(rnd, steps=25)


# -- mutations --

Edit = tuple[str, str, str]
"""File, what stands there, what is put in its place."""


@dataclass(frozen=True)
class Mutation:
    name: str
    found_by: frozenset[str]
    """The invariants that may catch it."""
    edits: tuple[Edit, ...]


REQUESTS_IT = "            state.requested_s = now_s\n"
KEEPS_IT = "            self._states[request] = state\n            return state\n"
REMOVES_IT = "            self._dequeue(state, request)\n            self.waiting += 1\n"


def mutation(name: str, found_by: str, *edits: Edit) -> Mutation:
    return Mutation(name, frozenset(found_by.split()), edits)


MUTATIONS = (
    mutation(
        "evicts a busy model",
        "busy_is_never_unloaded",
        ("scheduler", "if other.is_idle:", "if other.phase == 'ready':"),
    ),
    mutation(
        "forgets the bytes of an unloading model",
        "never_over_the_ceiling",
        (
            "capacity",
            "self.used_bytes += state.need_bytes if is_outside else state.held_bytes\n",
            "self.used_bytes += state.held_bytes if phase != 'unloading' else 0\n",
        ),
    ),
    mutation(
        "forgets the bytes of an outside model",
        "never_over_the_ceiling",
        ("capacity", 'if phase == "off" and not is_outside:', 'if phase == "off" or state.is_outside:'),
    ),
    mutation(
        "grants a request that left",
        "nothing_lost_nothing_doubled",
        ("scheduler", "if request in state.waiting:", "if state.waiting.get(request):"),
        ("scheduler", "            self._dequeue(state, request)\n            return state\n", KEEPS_IT),
    ),
    mutation(
        "loads two at once",
        "one_load_at_a_time",
        ("scheduler", "if self._capacity.is_loading:", "if False:"),
    ),
    mutation(
        "loads beside a model that restarts",
        "one_load_at_a_time",
        ("capacity", "self.is_loading = True", "self.is_loading = not state.is_returning"),
    ),
    mutation(
        "drops the waiting requests of a failed load",
        "nothing_lost_nothing_doubled",
        ("scheduler", "out.append(RejectRequest(request, kind, why, retry_after_s))", "pass"),
    ),
    mutation(
        "drops the waiting requests of a crashed model",
        "nothing_lost_nothing_doubled",
        ("scheduler", "state.busy.clear()", "state.busy.clear(), self._dequeue_all(state)"),
    ),
    mutation(
        "ignores never_together",
        "never_together_never_meet",
        ("capacity", "other is not state and any(other.name in g for g in groups)", "other is None"),
    ),
    mutation(
        "ignores max_wait",
        "bounded_wait no_hang",
        ("capacity", "max_wait_s = self.limits.max_wait_s", "max_wait_s = 1e9"),
    ),
    mutation(
        "serves new requests before overdue ones",
        "bounded_wait no_hang",
        ("capacity", "(state.requested_since_s(now_s), ", "(-(state.requested_since_s(now_s) or 0), "),
    ),
    mutation(
        "serves new requests in the way of an overdue model",
        "no_hang",
        ("scheduler", ", *self._blocking}", "}"),
    ),
    mutation(
        "never rejects requests for which there is no memory",
        "bounded_wait no_hang",
        (
            "scheduler",
            "\n            self._requests.reject_overdue(state, why, self.limits.max_wait_s, now_s, out)\n",
            "\n",
        ),
    ),
    mutation(
        "ignores the minimum dwell",
        "dwell_is_kept",
        (
            "capacity",
            " and now_s >= state.dwell_ends_s(limits)",
            "",
        ),
    ),
    mutation(
        "evicts a pinned model",
        "pinned_stay",
        ("capacity", " and (not s.is_pinned or s.is_leaving)]", "]"),
    ),
    mutation(
        "lets a pinned model expire",
        "pinned_stay",
        ("model_state", "not self.is_idle or self.is_pinned or", "not self.is_idle or"),
    ),
    mutation(
        "loads for a request that left",
        "no_load_for_the_departed",
        (
            "scheduler",
            "            self._requests.enqueue(",
            REQUESTS_IT + "            self._requests.enqueue(",
        ),
    ),
    mutation(
        "tries a failed load again at once",
        "a_failed_load_waits",
        (
            "model_state",
            "self.retry_s = now_s + min(_LAST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self.fails - 1, 10))\n",
            "self.retry_s = now_s\n",
        ),
    ),
    mutation(
        "loads a pinned model again whose load was cancelled",
        "no_load_for_the_departed",
        ("model_state", "elif self.is_pinned and not was_cancelled:", "elif self.is_pinned:"),
    ),
    mutation(
        "keeps those waiting whose load was cancelled",
        "no_hang bounded_wait no_load_for_the_departed nothing_lost_nothing_doubled",
        (
            "scheduler",
            '            self._requests.reject(state, "cancelled", why, None, out)\n',
            "            state.waiting.clear()\n",
        ),
    ),
    mutation(
        "takes the memory of a cancelled load for free",
        "never_over_the_ceiling one_load_at_a_time nothing_lost_nothing_doubled busy_is_never_unloaded",
        (
            "scheduler",
            "            self._start_unload(state, now_s, out)\n            return\n",
            "            out.append(UnloadModel(state.name)), state.set_off(now_s)\n"
            "            self._current_capacity = None\n            return\n",
        ),
    ),
    mutation(
        "lets one key fill the queue",
        "fair_shares",
        (
            "scheduler",
            "last = self._requests.last_of_most(self._states.values(), state, event.key)",
            "last = None",
        ),
    ),
    mutation(
        "lets the requests for one model fill the queue",
        "fair_shares",
        ("scheduler", "crowded.keys.get(key, 0) < state.keys.get(key, 0) + 2", "True"),
    ),
    mutation(
        "keeps the share of requests that were served",
        "fair_shares",
        ("scheduler", "            _subtract(self._by_key, key, count)\n", "            pass\n"),
    ),
    mutation(
        "counts a request that left as waiting",
        "full_means_full",
        (
            "scheduler",
            "            self._dequeue(state, request)\n            return",
            REMOVES_IT + "            return",
        ),
    ),
    mutation(
        "serves from a stale model",
        "the_stale_serve_nobody_new",
        ("scheduler", "{*self._capacity.leaving, ", "{"),
    ),
    mutation(
        "ignores the memory readings",
        "room_is_left_to_strangers",
        ("capacity", "return ceiling if budget_bytes is None else", "return ceiling if True else"),
    ),
    mutation(
        "counts freed memory twice",
        "room_is_left_to_strangers",
        ("capacity", "            self._latest -= state.held_bytes\n", ""),
    ),
    mutation(
        "sets no timer for an idle model that expires",
        "no_polling_needed",
        ("scheduler", "    times += [state.expires_s() for state in capacity.expiring]\n", ""),
    ),
    mutation(
        "sets no timer for an overdue request",
        "no_polling_needed no_hang",
        ("scheduler", "        if state.oldest is not None:\n", "        if False:\n"),
    ),
)
MOST_WALKS = 1000
MODULES = ("model_state", "capacity", "scheduler")
"""In the order of their imports."""


@pytest.mark.parametrize("mutant", MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "_"))
def test_a_walk_finds(mutant: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    make = _with_edits(mutant.edits, monkeypatch)
    for seed in range(MOST_WALKS):
        try:
            walk(random.Random(seed), make=make)
        except Broken as error:
            assert error.invariant in mutant.found_by, f"seed {seed}: {error}"
            return
    pytest.fail(f"{MOST_WALKS} walks did not find: {mutant.name}")


def _with_edits(edits: tuple[Edit, ...], monkeypatch: pytest.MonkeyPatch) -> type[Scheduler]:
    """The scheduler's own source with these edits, in a package of its own that shares the events."""
    folder, package = Path(scheduler.__file__).parent, "mutated"
    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, f"{package}.events", events)
    module = ModuleType(package)
    for name in MODULES:
        source = (folder / f"{name}.py").read_text().replace("firesteel.gateway.scheduler.", f"{package}.")
        for _, old, new in (edit for edit in edits if edit[0] == name):
            assert source.count(old) == 1, f"{name}.py has `{old}` {source.count(old)} times"
            source = source.replace(old, new)
        module = ModuleType(f"{package}.{name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(source, f"{name}.py, edited", "exec"), module.__dict__)
    mutated: type[Scheduler] = module.__dict__["Scheduler"]
    return mutated
