"""The schedule, question by question. What holds over every interleaving is in `test_invariants.py`."""

from __future__ import annotations

import pytest

from firesteel.gateway.scheduler.events import RequestArrived, ScheduledModel

from .play import Play

A, B, C = ScheduledModel("a", 60), ScheduledModel("b", 60), ScheduledModel("c", 30)
SMALL = ScheduledModel("small", 10)

# -- serving --


def test_a_ready_model_grants_at_once() -> None:
    play = Play(A).up("a")
    assert play.ask(1, "a") == ["grant 1"]
    assert play.finish(1) == []


def test_requests_wait_for_one_load_and_are_granted_together() -> None:
    play = Play(A)
    assert play.ask(1, "a") == ["load a"]
    assert play.ask(2, "a") == []
    assert play.loaded("a") == ["grant 1", "grant 2"]


def test_waiters_are_granted_by_priority_then_age() -> None:
    play = Play(A)
    play.ask(1, "a")
    play.ask(2, "a", priority=1)
    play.ask(3, "a", priority=1)
    assert play.loaded("a") == ["grant 2", "grant 3", "grant 1"]


def test_after_max_wait_priority_no_longer_counts() -> None:
    play = Play(A)
    play.ask(1, "a")
    play.after(60).ask(2, "a", priority=9)
    assert play.after(60).loaded("a") == ["grant 1", "grant 2"]


def test_priority_decides_which_model_comes_next() -> None:
    play = Play(A, B, C)
    play.ask(1, "c")
    play.ask(2, "a")
    play.after(1).ask(3, "b", priority=5)
    assert play.loaded("c") == ["grant 1", "load b"]


def test_what_was_unloaded_for_one_is_not_taken_by_another() -> None:
    play = Play(A, B).up("a")
    assert play.ask(1, "b") == ["unload a"]
    assert play.after(1).ask(2, "a", priority=9) == []
    assert play.gone("a") == ["load b"]


def test_a_promise_ends_with_those_it_was_made_to() -> None:
    play = Play(A, B).up("a")
    play.ask(1, "b")
    play.after(1).ask(2, "a", priority=9)
    play.leave(1)
    play.ask(3, "b")
    assert play.gone("a") == ["load a"]


def test_who_came_at_the_same_time_came_one_after_the_other() -> None:
    play = Play(A, B, C).up("a")
    play.ask(1, "a")
    play.ask(2, "c")
    play.ask(3, "b")
    play.loaded("c")
    assert play.finish(2) == []
    assert play.finish(1) == ["unload a"]
    assert play.ask(4, "a") == []
    assert play.gone("a") == ["load b"]


def test_an_unknown_model_is_rejected_and_the_dispatcher_says_which_there_are() -> None:
    play = Play(A, B)
    assert play.ask(1, "zebra") == ["reject 1 unknown"]
    assert play.rejected[1].why == "there is no model `zebra` here"
    assert play.rejected[1].retry_after_s is None


def test_a_full_queue_is_rejected_with_a_time() -> None:
    play = Play(ScheduledModel("a", 60, load_s=300.0), queue=2)
    play.ask(1, "a")
    play.after(100).ask(2, "a")
    assert play.ask(3, "a") == ["reject 3 full"]
    assert play.rejected[3].retry_after_s == 200.0


def test_who_left_makes_room_in_the_queue() -> None:
    play = Play(A, queue=1)
    play.ask(1, "a")
    play.leave(1)
    assert play.ask(2, "a") == []
    assert play.loaded("a") == ["grant 2"]


def test_a_request_asked_twice_is_an_error_of_the_driver() -> None:
    play = Play(A).up("a")
    play.ask(1, "a")
    with pytest.raises(ValueError, match="already active"):
        play.ask(1, "a")


def test_priority_of_a_grant_in_order_of_asking_needs_no_settling() -> None:
    """The hot path looks at one model only: nobody else's wait is touched by it."""
    play = Play(A, C).up("c")
    play.ask(1, "a")
    assert play.handle(RequestArrived(2, "c")) == ["grant 2"]


# -- making room --


def test_room_is_made_by_unloading_the_idle() -> None:
    play = Play(A, B).up("a")
    assert play.ask(1, "b") == ["unload a"]
    assert play.gone("a") == ["load b"]


def test_the_bytes_of_what_is_unloading_count_until_it_is_gone() -> None:
    play = Play(A, B).up("a")
    play.ask(1, "b")
    assert play.scheduler.used_bytes() == 60
    assert play.tick() == []
    play.gone("a")
    assert play.scheduler.used_bytes() == 60  # b, from the start of its load


def test_a_model_that_fits_evicts_nothing() -> None:
    play = Play(A, C).up("a")
    assert play.ask(1, "c") == ["load c"]


def test_the_least_valuable_goes_first() -> None:
    slow = ScheduledModel("slow", 40, load_s=600.0)
    quick = ScheduledModel("quick", 40, load_s=10.0)
    play = Play(slow, quick, ScheduledModel("new", 40))
    for name, took_s in (("slow", 600), ("quick", 10)):
        play.load(name)
        play.after(took_s).loaded(name)
    assert play.after(60).ask(1, "new") == ["unload quick"]


def test_what_is_used_more_is_worth_more() -> None:
    play = Play(ScheduledModel("x", 40), ScheduledModel("y", 40), ScheduledModel("new", 40)).up("x", "y")
    for request in range(5):
        play.ask(request, "x")
        play.finish(request)
    assert play.after(60).ask(9, "new") == ["unload y"]


def test_use_fades() -> None:
    play = Play(ScheduledModel("x", 40), ScheduledModel("y", 40), ScheduledModel("new", 40)).up("x", "y")
    for request in range(5):
        play.ask(request, "x")
        play.finish(request)
    play.after(7200).ask(7, "y")
    play.finish(7)
    assert play.ask(9, "new") == ["unload x"]


def test_not_one_more_goes_than_must() -> None:
    """The small one is worth least, but it alone is not enough, and the large one alone is."""
    play = Play(SMALL, A, B).up("small", "a")
    assert play.after(60).ask(1, "b") == ["unload a"]


def test_nothing_is_unloaded_for_what_would_not_fit_anyway() -> None:
    play = Play(A, C, ScheduledModel("big", 90)).up("a", "c")
    play.ask(1, "a")
    assert play.ask(2, "big") == []


def test_a_small_one_may_go_before_a_large_one_that_must_wait() -> None:
    play = Play(A, B, C).up("a")
    play.ask(1, "a")
    assert play.ask(2, "b") == []
    assert play.ask(3, "c") == ["load c"]


def test_measured_bytes_take_the_place_of_planned_ones() -> None:
    play = Play(A, C)
    play.load("a")
    play.loaded("a", 80)
    assert play.scheduler.used_bytes() == 80
    play.after(60)
    assert play.ask(1, "c") == ["unload a"]


def test_measured_bytes_hold_for_the_next_load() -> None:
    play = Play(A, C)
    play.load("a")
    play.loaded("a", 80)
    play.unload("a")
    play.gone("a")
    play.up("c")
    assert play.ask(2, "a") == ["unload c"]


# -- dwell and max wait --


def test_what_was_just_loaded_is_kept_for_its_dwell() -> None:
    play = Play(A, B)
    play.ask(1, "a")
    play.loaded("a")
    play.finish(1)
    assert play.after(1).ask(2, "b") == []
    assert play.scheduler.next_tick_s(play.now_s) == 60.0
    assert play.tick_when_due() == ["unload a"]


def test_an_idle_model_has_no_dwell() -> None:
    play = Play(A, B, idle_grace_s=10.0)
    play.ask(1, "a")
    play.loaded("a")
    play.after(5).finish(1)
    assert play.after(1).ask(2, "b") == []
    assert play.scheduler.next_tick_s(play.now_s) == 15.0
    assert play.tick_when_due() == ["unload a"]


def test_what_is_asked_for_again_and_again_dwells() -> None:
    play = Play(A, B, idle_grace_s=10.0)
    play.ask(1, "a")
    play.loaded("a")
    play.ask(2, "b")
    for request in range(3, 9):
        play.finish(1 if request == 3 else request - 1)
        assert play.after(8).ask(request, "a") == [f"grant {request}"]
    assert play.finish(8) == []
    assert play.after(9).tick() == []  # 57 s: in use until 48
    assert play.after(3).tick() == ["unload a"]


def test_from_max_wait_on_a_model_in_the_way_gives_no_new_grants() -> None:
    play = Play(A, B).up("a")
    play.ask(1, "a")
    play.ask(2, "b")
    assert play.after(119).ask(3, "a") == ["grant 3"]
    assert play.tick_when_due() == []
    assert play.ask(4, "a") == []
    play.finish(1)
    assert play.finish(3) == ["unload a"]
    assert play.gone("a") == ["load b"]
    assert play.loaded("b") == ["grant 2"]


def test_what_it_serves_is_finished_first() -> None:
    play = Play(A, B).up("a")
    play.ask(1, "a")
    play.ask(2, "b")
    play.after(5000)
    assert play.tick() == []
    assert play.scheduler.phase("a") == "ready"


def test_once_the_owed_one_left_the_others_go_on() -> None:
    play = Play(A, B).up("a")
    play.ask(1, "a")
    play.ask(2, "b")
    play.after(120).tick()
    assert play.ask(3, "a") == []
    assert play.leave(2) == ["grant 3"]


def test_the_owed_take_the_idle_before_the_busy() -> None:
    play = Play(ScheduledModel("x", 40), ScheduledModel("y", 40), ScheduledModel("new", 40)).up("x", "y")
    play.ask(1, "x")
    play.ask(2, "y")
    play.ask(3, "new")
    play.after(60).finish(2)
    assert play.after(60).tick() == []  # y has gone already: it was idle
    assert play.scheduler.phase("y") == "unloading"
    assert play.ask(4, "x") == ["grant 4"]


def test_two_models_that_each_need_the_other_out_take_turns() -> None:
    """Both asked for without end: each turn serves all who waited for it."""
    play = Play(A, B)
    served: dict[str, int] = {"a": 0, "b": 0}
    asked = 0
    busy: list[int] = []
    where: dict[int, str] = {}
    for _ in range(400):
        play.after(5)
        words = play.tick()
        for name in ("a", "b"):
            asked += 1
            where[asked] = name
            words += play.ask(asked, name)
        for request in busy:
            words += play.finish(request)
        busy = []
        for word in words:
            what, name = word.split()[:2]
            if what == "grant":
                served[where[int(name)]] += 1
                busy.append(int(name))
        for name in ("a", "b"):
            if play.scheduler.phase(name) == "loading":
                more = play.loaded(name)
            elif play.scheduler.phase(name) == "unloading":
                more = play.gone(name)
            else:
                continue
            for word in more:
                if word.startswith("grant"):
                    request = int(word.split()[1])
                    served[where[request]] += 1
                    busy.append(request)
    assert min(served.values()) > 150
    assert sum(play.scheduler.status(name, 0).waiting for name in ("a", "b")) < 60


# -- what can never be --


def test_too_large_is_rejected_at_once_with_figures() -> None:
    play = Play(ScheduledModel("huge", 101))
    assert play.ask(1, "huge") == ["reject 1 too large"]
    assert "101 B" in play.rejected[1].why
    assert "100 B" in play.rejected[1].why


def test_too_large_beside_what_is_pinned() -> None:
    play = Play(ScheduledModel("kept", 50, pinned=True), A)
    assert play.first == ["load kept"]
    assert play.ask(1, "a") == ["reject 1 too large"]
    assert "`kept`" in play.rejected[1].why


def test_a_conflict_with_a_pinned_model_is_rejected_at_once() -> None:
    play = Play(
        ScheduledModel("kept", 10, pinned=True), SMALL, never_together=(frozenset({"kept", "small"}),)
    )
    assert play.ask(1, "small") == ["reject 1 too large"]
    assert "never_together" in play.rejected[1].why


def test_pinned_ones_that_do_not_go_together_go_by_the_order_of_the_file() -> None:
    play = Play(
        ScheduledModel("first", 60, pinned=True),
        ScheduledModel("second", 60, pinned=True),
        ScheduledModel("third", 40, pinned=True),
    )
    assert play.first == ["load first"]
    assert play.loaded("first") == ["load third"]
    assert play.ask(1, "second") == ["reject 1 too large"]


def test_a_pinned_one_that_never_fits_is_no_bar_to_others() -> None:
    play = Play(ScheduledModel("huge", 500, pinned=True), A)
    assert play.first == []
    assert play.ask(1, "a") == ["load a"]


def test_pinned_enemies_the_first_in_the_file_wins() -> None:
    enemies = (frozenset({"p", "q"}),)
    play = Play(
        ScheduledModel("p", 10, pinned=True), ScheduledModel("q", 10, pinned=True), never_together=enemies
    )
    assert play.first == ["load p"]
    assert play.loaded("p") == []
    assert play.ask(1, "q") == ["reject 1 too large"]


def test_a_pinned_one_kept_out_by_a_pinned_one_that_runs_does_not_hang() -> None:
    """Found running, and later in the file: it stays, and the other's waiters are told."""
    play = Play(ScheduledModel("p", 60), ScheduledModel("q", 60))
    play.loaded("q")
    play.change(ScheduledModel("p", 60, pinned=True), ScheduledModel("q", 60, pinned=True))
    assert play.ask(1, "p") == []
    assert play.after(120).tick() == ["reject 1 no memory"]


# -- never together --


def test_those_who_must_not_meet_wait_for_each_other() -> None:
    play = Play(SMALL, C, never_together=(frozenset({"small", "c"}),)).up("small")
    assert play.ask(1, "c") == ["unload small"]
    assert play.gone("small") == ["load c"]


def test_found_running_together_one_of_them_goes() -> None:
    play = Play(SMALL, C, never_together=(frozenset({"small", "c"}),))
    play.loaded("small")
    assert play.loaded("c") == ["unload c"]


def test_a_new_group_parts_those_who_run() -> None:
    play = Play(SMALL, C).up("small", "c")
    play.ask(1, "small")
    assert play.change(SMALL, C, never_together=(frozenset({"small", "c"}),)) == ["unload c"]
    assert play.ask(2, "small") == ["grant 2"]


# -- loads that fail, models that crash --


def test_a_failed_load_fails_its_waiting_requests_with_the_reason() -> None:
    play = Play(A)
    play.ask(1, "a")
    play.ask(2, "a")
    assert play.failed("a", "the image is gone") == ["reject 1 failed", "reject 2 failed"]
    assert "the image is gone" in play.rejected[1].why
    assert play.rejected[1].retry_after_s == 5.0


def test_the_pause_after_a_failure_doubles() -> None:
    play = Play(A)
    for pause_s in (5.0, 10.0, 20.0, 40.0):
        assert play.ask(1, "a") == ["load a"]
        play.failed("a")
        assert play.ask(2, "a") == ["reject 2 failed"]
        assert play.rejected[2].retry_after_s == pause_s
        play.after(pause_s)


def test_a_load_wanted_by_name_that_fails_is_not_tried_again_by_itself() -> None:
    play = Play(A)
    assert play.load("a") == ["load a"]
    assert play.failed("a") == []
    assert play.scheduler.next_tick_s(play.now_s) is None
    assert play.scheduler.snapshot(play.now_s)[0].why == "no memory"


def test_somebody_at_the_controls_may_try_at_once() -> None:
    play = Play(A)
    play.ask(1, "a")
    play.failed("a")
    assert play.load("a") == ["load a"]


def test_a_pinned_one_is_tried_again_after_the_pause() -> None:
    play = Play(ScheduledModel("a", 60, pinned=True))
    assert play.first == ["load a"]
    assert play.failed("a") == []
    assert play.scheduler.next_tick_s(play.now_s) == 5.0
    assert play.tick_when_due() == ["load a"]


def test_a_pinned_one_that_fails_lets_others_load_meanwhile() -> None:
    play = Play(ScheduledModel("a", 60, pinned=True), C)
    play.ask(1, "c")
    assert play.failed("a") == ["load c"]


def test_what_a_crash_left_is_cleared_up_before_it_is_loaded_again() -> None:
    """Its memory may still be coming back: the next load waits for `Gone`."""
    play = Play(A).up("a")
    play.ask(1, "a")
    assert play.crashed("a") == ["unload a"]
    assert play.scheduler.status("a", 0).busy == 0
    assert play.ask(2, "a") == []
    assert play.gone("a") == ["load a"]
    assert play.loaded("a") == ["grant 2"]


def test_a_crash_rejects_no_waiting_request() -> None:
    play = Play(A).up("a")
    play.ask(1, "a")
    play.unload("a")
    play.ask(2, "a")
    assert play.crashed("a") == ["unload a"]
    assert play.gone("a") == ["load a"]
    assert play.loaded("a") == ["grant 2"]


def test_who_crashes_again_and_again_is_given_a_pause() -> None:
    play = Play(A).up("a")
    play.crashed("a")
    play.gone("a")
    assert play.ask(1, "a") == ["load a"]
    play.loaded("a")
    play.crashed("a")
    assert play.ask(2, "a") == ["reject 2 failed"]
    play.gone("a")
    assert play.after(5).ask(3, "a") == ["load a"]


def test_one_that_restarts_by_itself_is_not_loaded_by_us() -> None:
    play = Play(A).up("a")
    assert play.crashed("a", is_returning=True) == []
    assert play.scheduler.phase("a") == "loading"
    assert play.ask(1, "a") == []
    assert play.loaded("a") == ["grant 1"]


def test_nothing_loads_while_one_comes_back() -> None:
    play = Play(C, SMALL).up("c")
    play.crashed("c", is_returning=True)
    assert play.ask(1, "small") == []
    assert play.loaded("c") == ["load small"]


def test_one_that_does_not_come_back_fails_like_a_load() -> None:
    play = Play(A).up("a")
    play.crashed("a", is_returning=True)
    play.ask(1, "a")
    assert play.failed("a", "its keeper gave up") == ["reject 1 failed"]


def test_the_owed_wait_for_one_that_comes_back_and_then_take_its_room() -> None:
    """It never has a turn by coming back: else a model that crashes on and on would starve the rest."""
    play = Play(A, B).up("a")
    play.ask(1, "a")
    play.ask(2, "b")
    play.after(60).crashed("a", is_returning=True)
    play.ask(3, "a")
    play.after(60).tick()
    assert play.loaded("a") == ["unload a"]
    assert play.gone("a") == ["load b"]


# -- idle too long --


def test_an_idle_model_goes_after_its_ttl() -> None:
    play = Play(ScheduledModel("a", 60, ttl_s=600.0)).up("a")
    play.ask(1, "a")
    assert play.tick_when_due() == []
    play.after(400).finish(1)
    assert play.scheduler.next_tick_s(play.now_s) == play.now_s + 600.0
    assert play.after(599).tick() == []
    assert play.tick_when_due() == ["unload a"]


def test_the_pinned_have_no_ttl() -> None:
    play = Play(ScheduledModel("a", 60, ttl_s=1.0, pinned=True))
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
    play = Play(ScheduledModel("a", 60, pinned=True))
    play.loaded("a")
    assert play.unload("a") == []


def test_what_is_too_large_is_not_wanted_for_ever() -> None:
    play = Play(ScheduledModel("huge", 500), A)
    assert play.load("huge") == []
    assert "500 B" in play.scheduler.snapshot(play.now_s)[0].why
    assert play.scheduler.next_tick_s(play.now_s) is None


# -- found, and outside --


def test_one_found_running_is_adopted() -> None:
    play = Play(A, B)
    assert play.loaded("a", 70) == []
    assert play.ask(1, "a") == ["grant 1"]
    assert play.scheduler.used_bytes() == 70


def test_what_is_outside_is_always_there_and_never_ours() -> None:
    play = Play(ScheduledModel("url", 50, is_outside=True, ttl_s=1.0), A)
    assert play.ask(1, "url") == ["grant 1"]
    play.finish(1)
    assert play.after(1000).tick() == []
    assert play.ask(2, "a") == ["reject 2 too large"]


def test_an_outside_model_that_is_down_is_rejected_until_it_answers() -> None:
    play = Play(ScheduledModel("url", 50, is_outside=True))
    assert play.crashed("url") == []
    assert play.ask(1, "url") == ["reject 1 failed"]
    assert play.rejected[1].retry_after_s == 5.0
    assert play.scheduler.used_bytes() == 50
    play.loaded("url")
    assert play.ask(2, "url") == ["grant 2"]


# -- the host --


def test_strangers_take_room_away() -> None:
    play = Play(A, C).up("a")
    assert play.memory(20) == []  # a holds 60, so we may hold 80
    assert play.ask(1, "c") == ["unload a"]


def test_a_reading_never_gives_room() -> None:
    play = Play(A, B).up("a")
    play.memory(10_000)
    play.ask(1, "a")
    assert play.ask(2, "b") == []


def test_without_room_waiters_wait_and_are_then_told_the_figures() -> None:
    play = Play(A)
    play.memory(30, keep=5)
    assert play.ask(1, "a") == []
    assert play.tick_when_due() == ["reject 1 no memory"]
    assert play.now_s == 120.0
    assert "60 B" in play.rejected[1].why
    assert "25 B" in play.rejected[1].why
    assert play.rejected[1].retry_after_s is not None


def test_when_strangers_go_the_load_starts() -> None:
    play = Play(A)
    play.memory(30)
    play.ask(1, "a")
    assert play.after(50).memory(90) == ["load a"]


def test_without_room_for_one_the_others_are_served() -> None:
    play = Play(A, SMALL)
    play.memory(30)
    play.ask(1, "a")
    assert play.ask(2, "small") == ["load small"]


def test_a_reading_in_the_midst_of_an_unload_does_not_count_its_memory_twice() -> None:
    """a held more than it was thought to; what came free is what was read, not what was planned."""
    play = Play(A, ScheduledModel("b", 55)).up("a")
    play.memory(10)
    assert play.ask(1, "b") == ["unload a"]
    assert play.memory(50) == []
    assert play.gone("a") == []  # 50 are free, and b takes 55
    assert play.memory(56) == ["load b"]


# -- the file changes --


def test_what_the_file_does_not_touch_goes_on() -> None:
    play = Play(A, C).up("a", "c")
    play.ask(1, "a")
    assert play.change(A, ScheduledModel("c", 30, identity="new")) == ["unload c"]
    assert play.ask(2, "a") == ["grant 2"]


def test_a_changed_identity_drains_and_loads_anew() -> None:
    play = Play(A).up("a")
    play.ask(1, "a")
    assert play.change(ScheduledModel("a", 60, identity="new")) == []
    assert play.ask(2, "a") == []
    assert play.finish(1) == ["unload a"]
    assert play.gone("a") == ["load a"]
    assert play.loaded("a") == ["grant 2"]


def test_a_stale_pinned_one_comes_back() -> None:
    play = Play(ScheduledModel("a", 60, pinned=True))
    play.loaded("a")
    assert play.change(ScheduledModel("a", 60, pinned=True, identity="new")) == ["unload a"]
    assert play.gone("a") == ["load a"]


def test_anything_else_changes_in_place() -> None:
    play = Play(A).up("a")
    assert play.change(ScheduledModel("a", 60, ttl_s=100.0, load_s=9.0)) == []
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
    play.change(ScheduledModel("a", 50, identity="new"))
    assert play.failed("a") == ["load a"]
    assert play.loaded("a") == ["grant 1"]


def test_a_repaired_model_is_tried_at_once() -> None:
    play = Play(A)
    play.ask(1, "a")
    play.failed("a")
    play.change(ScheduledModel("a", 60, identity="mended"))
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
    play.change(ScheduledModel("a", 60, is_outside=True, identity="http://127.0.0.1:9000"))
    assert play.ask(2, "a") == []
    assert play.finish(1) == ["unload a"]
    assert play.gone("a") == ["grant 2"]


def test_outside_becomes_ours() -> None:
    play = Play(ScheduledModel("a", 60, is_outside=True))
    play.ask(1, "a")
    play.change(A)
    assert play.ask(2, "a") == ["load a"]
    assert play.finish(1) == []


# -- what does not stop --


def test_nobody_is_kept_waiting_for_an_unload_that_is_stuck() -> None:
    play = Play(A, B, stop_s=300.0).up("a")
    assert play.ask(1, "b") == ["unload a"]
    assert play.after(120).tick() == []
    assert play.tick_when_due() == ["reject 1 no memory"]
    assert "`a` has been stopping for 5 min" in play.rejected[1].why
    assert play.after(1).gone("a") == []
    assert play.ask(2, "b") == ["load b"]


# -- the views --


def test_the_snapshot_shows_each_model() -> None:
    play = Play(A, ScheduledModel("kept", 30, pinned=True))
    play.loaded("kept", 33)
    play.ask(1, "kept")
    play.ask(2, "a")
    a, kept = play.scheduler.snapshot(play.now_s)
    assert (a.name, a.phase, a.waiting, a.bytes) == ("a", "loading", 1, 60)
    assert (kept.phase, kept.busy, kept.bytes, kept.is_pinned) == ("ready", 1, 33, True)
    assert kept.value > a.value


# -- requests whose engine failed --


def test_a_returned_request_waits_for_its_engine() -> None:
    play = Play(ScheduledModel("a", 60)).up("a")
    assert play.ask(1, "a") == ["grant 1"]
    assert play.crashed("a", is_returning=True) == []
    assert play.give_back(1, "a") == []
    assert play.loaded("a") == ["grant 1"]


def test_a_returned_request_has_a_dead_engine_loaded_again() -> None:
    play = Play(ScheduledModel("a", 60)).up("a")
    assert play.ask(1, "a") == ["grant 1"]
    assert play.crashed("a") == ["unload a"]
    assert play.give_back(1, "a") == []
    assert play.gone("a") == ["load a"]
    assert play.loaded("a") == ["grant 1"]


def test_a_returned_request_is_granted_at_once_if_the_engine_is_there() -> None:
    play = Play(ScheduledModel("a", 60), queue=0).up("a")
    assert play.ask(1, "a") == ["grant 1"]
    assert play.give_back(1, "a") == ["grant 1"], "and a full queue is no reason to reject it"


def test_a_returned_request_of_a_removed_model_is_rejected() -> None:
    play = Play(ScheduledModel("a", 60)).up("a")
    assert play.ask(1, "a") == ["grant 1"]
    assert play.change(ScheduledModel("b", 60)) == []
    assert play.give_back(1, "a") == ["reject 1 unknown", "unload a"]


def test_a_returned_request_whose_client_leaves_is_forgotten() -> None:
    play = Play(ScheduledModel("a", 60)).up("a")
    assert play.ask(1, "a") == ["grant 1"]
    assert play.crashed("a") == ["unload a"]
    assert play.give_back(1, "a") == []
    assert play.leave(1) == []
    assert play.gone("a") == []


def test_the_pause_after_a_crash_grows_from_a_second() -> None:
    play = Play(ScheduledModel("a", 60)).up("a")
    pauses = []
    for request in range(9):
        assert play.ask(request, "a") == [f"grant {request}"]
        assert play.crashed("a") == ["unload a"]
        assert play.give_back(request, "a") == []
        began_s, effects = play.now_s, play.gone("a")
        while not effects:
            effects = play.tick_when_due()
        pauses.append(play.now_s - began_s)
        assert effects == ["load a"]
        assert play.loaded("a") == [f"grant {request}"]
        assert play.finish(request) == []
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_the_pause_after_a_crash_ends_with_max_wait() -> None:
    play = Play(ScheduledModel("a", 60), max_wait_s=3.0).up("a")
    for _ in range(5):
        play.crashed("a")
        play.gone("a")
        play.after(40)
        assert play.load("a") == ["load a"]
        assert play.loaded("a") == []
    play.ask(1, "a")
    play.crashed("a")
    play.give_back(1, "a")
    assert play.gone("a") == []
    began_s = play.now_s
    assert play.tick_when_due() == ["load a"]
    assert play.now_s - began_s == 3.0
