"""The schedule, question by question, and who is turned away at once. What holds over every interleaving is
in `test_invariants.py`. Limits, failures and changes have files of their own beside this one.
"""

from __future__ import annotations

import pytest

from firesteel.gateway.scheduler.events import RejectRequest, RequestArrived, SchedulerLimits
from firesteel.gateway.scheduler.scheduler import Scheduler
from tests.gateway.play import scheduled

from .play import Play

A, B, C = scheduled("a", 60), scheduled("b", 60), scheduled("c", 30)
SMALL = scheduled("small", 10)

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
    play = Play(scheduled("a", 60, load_s=300.0), queue=2)
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
    slow = scheduled("slow", 40, load_s=600.0)
    quick = scheduled("quick", 40, load_s=10.0)
    play = Play(slow, quick, scheduled("new", 40))
    for name, took_s in (("slow", 600), ("quick", 10)):
        play.load(name)
        play.after(took_s).loaded(name)
    assert play.after(60).ask(1, "new") == ["unload quick"]


def test_what_is_used_more_is_worth_more() -> None:
    play = Play(scheduled("x", 40), scheduled("y", 40), scheduled("new", 40)).up("x", "y")
    for request in range(5):
        play.ask(request, "x")
        play.finish(request)
    assert play.after(60).ask(9, "new") == ["unload y"]


def test_use_fades() -> None:
    play = Play(scheduled("x", 40), scheduled("y", 40), scheduled("new", 40)).up("x", "y")
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
    play = Play(A, C, scheduled("big", 90)).up("a", "c")
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
    play = Play(scheduled("x", 40), scheduled("y", 40), scheduled("new", 40)).up("x", "y")
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


def test_an_unknown_model_is_only_said_to_be_unknown() -> None:
    """Which models there are is said by the desk, for a key may not see them all."""
    scheduler = Scheduler((scheduled("secret", 1, 1.0),), SchedulerLimits(10), 0.0)
    rejected = scheduler.handle(RequestArrived("a", "other"), 0.0)[0]
    assert isinstance(rejected, RejectRequest)
    assert (rejected.kind, rejected.why) == ("unknown", "there is no model `other` here")
