"""What must hold whatever happens to the scheduler, by the names in gateway/DESIGN.md."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from firesteel.gateway.scheduler.events import (
    Effect,
    GrantRequest,
    LoadModel,
    RejectRequest,
    TimePassed,
    UnloadModel,
)

if TYPE_CHECKING:
    from tests.gateway.walker import World

HOST_BYTES = 130
KEEP_BYTES = 5


class Broken(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, why: str) -> None:
        super().__init__(f"{invariant}: {why}")
        self.invariant = invariant


def never_over_the_ceiling(world: World, effect: Effect) -> None:
    if isinstance(effect, LoadModel):
        entry = world.entries[effect.model]
        held = sum(other.bytes for other in world.entries.values() if other.holds_memory)
        if held + entry.need > world.limits.ceiling_bytes:
            raise Broken("never_over_the_ceiling", f"{effect}: {held} + {entry.need}")


def room_is_left_to_strangers(world: World, effect: Effect) -> None:
    """A load starts only into what the host has free, if the last reading told how much that is."""
    if isinstance(effect, LoadModel) and world.read_strangers == world.strangers:
        held = sum(other.in_memory for other in world.entries.values())
        free = HOST_BYTES - world.strangers - held - KEEP_BYTES
        if world.entries[effect.model].need > free:
            raise Broken("room_is_left_to_strangers", f"{effect}: {free} free")


def busy_is_never_unloaded(world: World, effect: Effect) -> None:
    if isinstance(effect, UnloadModel):
        if world.served_by(effect.model):
            raise Broken("busy_is_never_unloaded", str(effect))
        entry = world.entries[effect.model]
        if not entry.is_ours or (entry.phase != "ready" and not (entry.is_crashed or entry.is_cancelled)):
            raise Broken("busy_is_never_unloaded", f"{effect} while {entry.phase}")


def nothing_lost_nothing_doubled(world: World, effect: Effect) -> None:
    if isinstance(effect, (GrantRequest, RejectRequest)):
        owed = world.waiting.get(effect.request)  # type: ignore[call-overload]
        if owed is None:
            raise Broken("nothing_lost_nothing_doubled", f"{effect} was not owed")
        if isinstance(effect, GrantRequest):
            entry = world.entries.get(effect.model)
            if owed[0] != effect.model or entry is None or entry.phase != "ready":
                raise Broken("nothing_lost_nothing_doubled", f"{effect} where nothing runs")


def the_stale_serve_nobody_new(world: World, effect: Effect) -> None:
    """What the file no longer says is not served to anybody who asks."""
    if isinstance(effect, GrantRequest):
        entry = world.entries[effect.model]
        if entry.is_ours and (entry.is_stale or entry.is_removed):
            raise Broken("the_stale_serve_nobody_new", str(effect))


def full_means_full(world: World, effect: Effect) -> None:
    """A request that left does not count in the queue."""
    if isinstance(effect, RejectRequest) and effect.kind == "full":
        others = len(world.waiting) - 1
        if others < world.limits.queue:
            raise Broken("full_means_full", f"{effect} with {others} waiting")


def fair_shares(world: World, effect: Effect) -> None:
    """A full queue rejects a request of the key that has most, for the model of which it has most."""
    if isinstance(effect, RejectRequest) and effect.kind == "full":
        assert isinstance(effect.request, int)
        model, key = world.waiting[effect.request][0], world.keys[effect.request]
        by_key = Counter(world.keys[request] for request in world.waiting)
        by_model = Counter(name for request, (name, _) in world.waiting.items() if world.keys[request] == key)
        if by_key[key] < max(by_key.values()) or by_model[model] < max(by_model.values()):
            raise Broken("fair_shares", f"{effect} of {key!r} for {model}: {by_key}, {by_model}")


def a_failed_load_waits(world: World, effect: Effect) -> None:
    """Before it is tried again; unless somebody says so, or changed it."""
    if isinstance(effect, LoadModel):
        failed_s = world.entries[effect.model].failed_s
        if failed_s is not None and world.now_s < failed_s + 5.0:
            raise Broken("a_failed_load_waits", f"{effect} {world.now_s - failed_s} s after it failed")


def nothing_is_forgotten(world: World, effects: list[Effect]) -> None:
    """The other half of it: whoever is owed an answer is still known, and so is whoever is served."""
    statuses = [world.scheduler.status(name, world.now_s) for name in world.entries]
    known = sum(status.waiting for status in statuses)
    served = sum(status.busy for status in statuses)
    if known != len(world.waiting) or served != len(world.busy):
        says = f"{known} wait of {len(world.waiting)}, {served} served of {len(world.busy)}"
        raise Broken("nothing_lost_nothing_doubled", says)


def no_load_for_the_departed(world: World, effect: Effect) -> None:
    if isinstance(effect, LoadModel):
        entry = world.entries[effect.model]
        is_kept = entry.model.pinned and not entry.was_cancelled
        if not world.waiters(effect.model) and entry.requested_s is None and not is_kept:
            raise Broken("no_load_for_the_departed", str(effect))


def bounded_wait(world: World, effects: list[Effect]) -> None:
    for effect in effects:
        if isinstance(effect, LoadModel):
            mine_s = world.claim_s
            for model, came_s in world.waiting.values():
                entry = world.entries[model]
                is_overdue = world.now_s >= came_s + world.limits.max_wait_s
                is_passed = model != effect.model and entry.phase == "off" and is_overdue
                if is_passed and (mine_s is None or mine_s > came_s):
                    raise Broken("bounded_wait", f"{effect} goes before {model}, waited for since {came_s}")


def never_together_never_meet(world: World, effect: Effect) -> None:
    if isinstance(effect, LoadModel):
        for name, other in world.entries.items():
            if other.holds_memory and world.conflict(effect.model, name):
                raise Broken("never_together_never_meet", f"{effect} beside {name}")


def one_load_at_a_time(world: World, effect: Effect) -> None:
    if isinstance(effect, LoadModel):
        entry = world.entries[effect.model]
        if world.in_phase("loading") or entry.phase != "off" or not entry.is_ours:
            raise Broken("one_load_at_a_time", f"{effect} while {world.in_phase('loading')} load")


def pinned_stay(world: World, effect: Effect) -> None:
    if isinstance(effect, UnloadModel):
        entry = world.entries[effect.model]
        may_go = entry.is_stale or entry.is_removed or entry.is_crashed or entry.is_cancelled
        if entry.model.pinned and not may_go:
            raise Broken("pinned_stay", str(effect))


def dwell_is_kept(world: World, effect: Effect) -> None:
    """What was just loaded goes only for one that has waited too long, or because somebody says so."""
    if not isinstance(effect, UnloadModel):
        return
    entry, now_s = world.entries[effect.model], world.now_s
    is_told = (
        entry.is_cancelled
        or entry.is_stale
        or entry.is_removed
        or entry.is_crashed
        or entry.is_unload_requested
    )
    is_expired = entry.model.ttl_s is not None and now_s >= entry.idle_s + entry.model.ttl_s
    meets = any(
        world.conflict(effect.model, name) and other.holds_memory for name, other in world.entries.items()
    )
    firsts = [world.requested_since_s(name) for name, other in world.entries.items() if other.phase == "off"]
    is_owed = any(each is not None and now_s >= each + world.limits.max_wait_s for each in firsts)
    has_dwelt = now_s >= entry.since_s + world.limits.min_dwell_s
    if not (is_told or is_expired or meets or is_owed or has_dwelt):
        raise Broken("dwell_is_kept", f"{effect} after {now_s - entry.since_s} s")


def ticks_do_not_spin(world: World, effects: list[Effect]) -> None:
    """After a tick the next one lies ahead."""
    if isinstance(world.trail[-1][1], TimePassed):
        due_s = world.scheduler.next_tick_s(world.now_s)
        if due_s is not None and due_s <= world.now_s:
            raise Broken("no_polling_needed", f"a tick at {world.now_s} asks for another at {due_s}")


EACH_EFFECT = (
    never_over_the_ceiling,
    room_is_left_to_strangers,
    busy_is_never_unloaded,
    nothing_lost_nothing_doubled,
    the_stale_serve_nobody_new,
    full_means_full,
    fair_shares,
    a_failed_load_waits,
    no_load_for_the_departed,
    never_together_never_meet,
    one_load_at_a_time,
    pinned_stay,
    dwell_is_kept,
)
AFTER_EACH_STEP = (nothing_is_forgotten, bounded_wait, ticks_do_not_spin)
