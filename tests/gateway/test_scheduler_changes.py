"""The schedule: idle models, loads and unloads by name, a changed service file, and what the views show."""

from __future__ import annotations

from tests.gateway.play import scheduled

from .play import Play
from .test_scheduler import A, B, C

# -- idle too long --


def test_an_idle_model_goes_after_its_ttl() -> None:
    play = Play(scheduled("a", 60, ttl_s=600.0)).up("a")
    play.ask(1, "a")
    assert play.tick_when_due() == []
    play.after(400).finish(1)
    assert play.scheduler.next_tick_s(play.now_s) == play.now_s + 600.0
    assert play.after(599).tick() == []
    assert play.tick_when_due() == ["unload a"]


def test_the_pinned_have_no_ttl() -> None:
    play = Play(scheduled("a", 60, ttl_s=1.0, pinned=True))
    play.loaded("a")
    assert play.after(1000).tick() == []


# -- by name --


def test_unload_by_name_of_a_busy_model_drains_first() -> None:
    play = Play(A).up("a")
    play.ask(1, "a")
    assert play.unload("a") == []
    assert play.ask(2, "a") == []
    assert play.finish(1) == ["unload a"]
    assert play.gone("a") == ["load a"]
    assert play.loaded("a") == ["grant 2"]


def test_unload_by_name_of_one_that_loads_serves_those_who_wait_and_then_goes() -> None:
    play = Play(A)
    play.ask(1, "a")
    assert play.unload("a") == []
    assert play.loaded("a") == ["grant 1"]
    assert play.finish(1) == ["unload a"]


def test_unload_by_name_can_be_taken_back() -> None:
    play = Play(A).up("a")
    play.ask(1, "a")
    play.unload("a")
    play.ask(2, "a")
    assert play.load("a") == ["grant 2"]


def test_a_pinned_one_is_not_unloaded_by_name() -> None:
    play = Play(scheduled("a", 60, pinned=True))
    play.loaded("a")
    assert play.unload("a") == []


def test_what_is_too_large_is_not_wanted_for_ever() -> None:
    play = Play(scheduled("huge", 500), A)
    assert play.load("huge") == []
    assert "500 B" in play.scheduler.snapshot(play.now_s)[0].why
    assert play.scheduler.next_tick_s(play.now_s) is None


# -- the file changes --


def test_what_the_file_does_not_touch_goes_on() -> None:
    play = Play(A, C).up("a", "c")
    play.ask(1, "a")
    assert play.change(A, scheduled("c", 30, identity="new")) == ["unload c"]
    assert play.ask(2, "a") == ["grant 2"]


def test_a_changed_identity_drains_and_loads_anew() -> None:
    play = Play(A).up("a")
    play.ask(1, "a")
    assert play.change(scheduled("a", 60, identity="new")) == []
    assert play.ask(2, "a") == []
    assert play.finish(1) == ["unload a"]
    assert play.gone("a") == ["load a"]
    assert play.loaded("a") == ["grant 2"]


def test_a_stale_pinned_one_comes_back() -> None:
    play = Play(scheduled("a", 60, pinned=True))
    play.loaded("a")
    assert play.change(scheduled("a", 60, pinned=True, identity="new")) == ["unload a"]
    assert play.gone("a") == ["load a"]


def test_anything_else_changes_in_place() -> None:
    play = Play(A).up("a")
    assert play.change(scheduled("a", 60, ttl_s=100.0, load_s=9.0)) == []
    assert play.ask(1, "a") == ["grant 1"]
    play.finish(1)
    assert play.after(100).tick() == ["unload a"]


def test_a_removed_model_rejects_its_waiting_requests_and_goes_when_idle() -> None:
    play = Play(A, B, C).up("a")
    play.ask(1, "a")
    play.ask(2, "b")
    assert play.change(C) == ["reject 2 unknown"]
    assert play.ask(3, "a") == ["reject 3 unknown"]
    assert play.finish(1) == ["unload a"]
    play.gone("a")
    assert [each.name for each in play.scheduler.snapshot(play.now_s)] == ["c"]


def test_removed_while_it_loads_it_goes_when_it_is_up() -> None:
    play = Play(A, C)
    play.ask(1, "a")
    assert play.change(C) == ["reject 1 unknown"]
    assert play.loaded("a") == ["unload a"]
    assert play.gone("a") == []


def test_removed_and_put_back_it_serves_on() -> None:
    play = Play(A, C).up("a")
    play.ask(1, "a")
    play.change(C)
    play.change(A, C)
    assert play.ask(2, "a") == ["grant 2"]


def test_changed_while_it_loads_the_waiters_get_the_new_one() -> None:
    play = Play(A)
    play.ask(1, "a")
    play.change(scheduled("a", 50, identity="new"))
    assert play.failed("a") == ["load a"]
    assert play.loaded("a") == ["grant 1"]


def test_a_repaired_model_is_tried_at_once() -> None:
    play = Play(A)
    play.ask(1, "a")
    play.failed("a")
    play.change(scheduled("a", 60, identity="mended"))
    assert play.ask(2, "a") == ["load a"]


def test_a_lower_ceiling_rejects_requests_that_no_longer_fit() -> None:
    play = Play(C, A).up("c")
    play.ask(1, "c")
    play.ask(2, "a")
    play.crashed("c", is_returning=True)
    play.ask(3, "a")
    assert play.change(C, A, ceiling_bytes=50) == []  # it loads: who waits for it is served
    play = Play(A, B).up("a")
    play.ask(1, "a")
    play.ask(2, "b")
    assert play.change(A, B, ceiling_bytes=50) == ["reject 2 too large"]


def test_ours_becomes_outside_once_it_is_gone() -> None:
    play = Play(A).up("a")
    play.ask(1, "a")
    play.change(scheduled("a", 60, is_outside=True, identity="http://127.0.0.1:9000"))
    assert play.ask(2, "a") == []
    assert play.finish(1) == ["unload a"]
    assert play.gone("a") == ["grant 2"]


def test_outside_becomes_ours() -> None:
    play = Play(scheduled("a", 60, is_outside=True))
    play.ask(1, "a")
    play.change(A)
    assert play.ask(2, "a") == ["load a"]
    assert play.finish(1) == []


# -- the views --


def test_the_snapshot_shows_each_model() -> None:
    play = Play(A, scheduled("kept", 30, pinned=True))
    play.loaded("kept", 33)
    play.ask(1, "kept")
    play.ask(2, "a")
    a, kept = play.scheduler.snapshot(play.now_s)
    assert (a.name, a.phase, a.waiting, a.bytes) == ("a", "loading", 1, 60)
    assert (kept.phase, kept.busy, kept.bytes, kept.is_pinned) == ("ready", 1, 33, True)
    assert kept.value > a.value
