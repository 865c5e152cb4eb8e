"""The schedule: loads that fail, models that crash or do not stop, and requests whose engine failed."""

from __future__ import annotations

from firesteel.gateway.scheduler.events import ModelLoaded
from tests.gateway.play import scheduled

from .play import Play
from .test_scheduler import SMALL, A, B, C

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
    play = Play(scheduled("a", 60, pinned=True))
    assert play.first == ["load a"]
    assert play.failed("a") == []
    assert play.scheduler.next_tick_s(play.now_s) == 5.0
    assert play.tick_when_due() == ["load a"]


def test_a_pinned_one_that_fails_lets_others_load_meanwhile() -> None:
    play = Play(scheduled("a", 60, pinned=True), C)
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


# -- what does not stop --


def test_nobody_is_kept_waiting_for_an_unload_that_is_stuck() -> None:
    play = Play(A, B, stop_s=300.0).up("a")
    assert play.ask(1, "b") == ["unload a"]
    assert play.after(120).tick() == []
    assert play.tick_when_due() == ["reject 1 no memory"]
    assert "`a` has been stopping for 5 min" in play.rejected[1].why
    assert play.after(1).gone("a") == []
    assert play.ask(2, "b") == ["load b"]


# -- requests whose engine failed --


def test_a_returned_request_waits_for_its_engine() -> None:
    play = Play(scheduled("a", 60)).up("a")
    assert play.ask(1, "a") == ["grant 1"]
    assert play.crashed("a", is_returning=True) == []
    assert play.give_back(1, "a") == []
    assert play.loaded("a") == ["grant 1"]


def test_a_returned_request_has_a_dead_engine_loaded_again() -> None:
    play = Play(scheduled("a", 60)).up("a")
    assert play.ask(1, "a") == ["grant 1"]
    assert play.crashed("a") == ["unload a"]
    assert play.give_back(1, "a") == []
    assert play.gone("a") == ["load a"]
    assert play.loaded("a") == ["grant 1"]


def test_a_returned_request_is_granted_at_once_if_the_engine_is_there() -> None:
    play = Play(scheduled("a", 60), queue=0).up("a")
    assert play.ask(1, "a") == ["grant 1"]
    assert play.give_back(1, "a") == ["grant 1"], "and a full queue is no reason to reject it"


def test_a_returned_request_of_a_removed_model_is_rejected() -> None:
    play = Play(scheduled("a", 60)).up("a")
    assert play.ask(1, "a") == ["grant 1"]
    assert play.change(scheduled("b", 60)) == []
    assert play.give_back(1, "a") == ["reject 1 unknown", "unload a"]


def test_a_returned_request_whose_client_leaves_is_forgotten() -> None:
    play = Play(scheduled("a", 60)).up("a")
    assert play.ask(1, "a") == ["grant 1"]
    assert play.crashed("a") == ["unload a"]
    assert play.give_back(1, "a") == []
    assert play.leave(1) == []
    assert play.gone("a") == []


def test_the_pause_after_a_crash_grows_from_a_second() -> None:
    play = Play(scheduled("a", 60)).up("a")
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
    play = Play(scheduled("a", 60), max_wait_s=3.0).up("a")
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


# -- a load that is cancelled --


def test_a_cancelled_load_makes_room_at_once_and_the_queue_behind_it_goes_on() -> None:
    """It was finished first, and everything waited behind it."""
    play = Play(A, B)
    play.ask(1, "a")
    play.ask(2, "b")
    assert play.cancel("a") == ["reject 1 cancelled", "unload a"]
    assert play.gone("a") == ["load b"]
    assert play.loaded("b") == ["grant 2"]


def test_a_cancelled_load_was_no_failure() -> None:
    play = Play(A)
    play.ask(1, "a")
    play.cancel("a")
    play.gone("a")
    assert play.ask(2, "a") == ["load a"], "no pause"


def test_who_asks_while_it_is_taken_back_is_waited_for() -> None:
    play = Play(A)
    play.ask(1, "a")
    play.cancel("a")
    assert play.ask(2, "a") == []
    assert play.handle(ModelLoaded("a")) == [], "its child was quicker than its cancellation"
    assert play.gone("a") == ["load a"]


def test_a_pinned_model_stays_off_when_its_load_was_cancelled() -> None:
    play = Play(scheduled("kept", 50, pinned=True))
    assert play.first == ["load kept"]
    assert play.cancel("kept") == ["unload kept"] and play.gone("kept") == []
    assert play.after(1000).tick() == []
    assert play.load("kept") == ["load kept"]
