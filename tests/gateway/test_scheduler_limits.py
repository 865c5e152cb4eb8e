"""The schedule: what can never be loaded, what must not meet, what runs outside, and what the host leaves."""

from __future__ import annotations

from tests.gateway.play import scheduled

from .play import Play
from .test_scheduler import SMALL, A, B, C

# -- what can never be --


def test_too_large_is_rejected_at_once_with_figures() -> None:
    play = Play(scheduled("huge", 101))
    assert play.ask(1, "huge") == ["reject 1 too large"]
    assert "101 B" in play.rejected[1].why
    assert "100 B" in play.rejected[1].why


def test_too_large_beside_what_is_pinned() -> None:
    play = Play(scheduled("kept", 50, pinned=True), A)
    assert play.first == ["load kept"]
    assert play.ask(1, "a") == ["reject 1 too large"]
    assert "`kept`" in play.rejected[1].why


def test_a_conflict_with_a_pinned_model_is_rejected_at_once() -> None:
    play = Play(scheduled("kept", 10, pinned=True), SMALL, never_together=(frozenset({"kept", "small"}),))
    assert play.ask(1, "small") == ["reject 1 too large"]
    assert "never_together" in play.rejected[1].why


def test_pinned_ones_that_do_not_go_together_go_by_the_order_of_the_file() -> None:
    play = Play(
        scheduled("first", 60, pinned=True),
        scheduled("second", 60, pinned=True),
        scheduled("third", 40, pinned=True),
    )
    assert play.first == ["load first"]
    assert play.loaded("first") == ["load third"]
    assert play.ask(1, "second") == ["reject 1 too large"]


def test_a_pinned_one_that_never_fits_is_no_bar_to_others() -> None:
    play = Play(scheduled("huge", 500, pinned=True), A)
    assert play.first == []
    assert play.ask(1, "a") == ["load a"]


def test_pinned_enemies_the_first_in_the_file_wins() -> None:
    enemies = (frozenset({"p", "q"}),)
    play = Play(scheduled("p", 10, pinned=True), scheduled("q", 10, pinned=True), never_together=enemies)
    assert play.first == ["load p"]
    assert play.loaded("p") == []
    assert play.ask(1, "q") == ["reject 1 too large"]


def test_a_pinned_one_kept_out_by_a_pinned_one_that_runs_does_not_hang() -> None:
    """Found running, and later in the file: it stays, and the other's waiters are told."""
    play = Play(scheduled("p", 60), scheduled("q", 60))
    play.loaded("q")
    play.change(scheduled("p", 60, pinned=True), scheduled("q", 60, pinned=True))
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


# -- found, and outside --


def test_one_found_running_is_adopted() -> None:
    play = Play(A, B)
    assert play.loaded("a", 70) == []
    assert play.ask(1, "a") == ["grant 1"]
    assert play.scheduler.used_bytes() == 70


def test_what_is_outside_is_always_there_and_never_ours() -> None:
    play = Play(scheduled("url", 50, is_outside=True, ttl_s=1.0), A)
    assert play.ask(1, "url") == ["grant 1"]
    play.finish(1)
    assert play.after(1000).tick() == []
    assert play.ask(2, "a") == ["reject 2 too large"]


def test_an_outside_model_that_is_down_is_rejected_until_it_answers() -> None:
    play = Play(scheduled("url", 50, is_outside=True))
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
    play = Play(A, scheduled("b", 55)).up("a")
    play.memory(10)
    assert play.ask(1, "b") == ["unload a"]
    assert play.memory(50) == []
    assert play.gone("a") == []  # 50 are free, and b takes 55
    assert play.memory(56) == ["load b"]


# -- shares of the queue --


def test_one_key_does_not_fill_the_queue() -> None:
    """Others got 503, even for models that would have fitted."""
    play = Play(A, B, queue=4)
    play.ask(1, "a", key="many")
    for request in (2, 3, 4):
        assert play.ask(request, "a", key="many") == []
    assert play.ask(5, "a", key="few") == ["reject 4 full"], "the last one of the key with most"
    assert play.ask(6, "b", key="few") == ["reject 3 full"]
    assert play.ask(7, "b", key="few") == ["reject 7 full"], "two each"
    assert play.ask(8, "b", key="new") == ["reject 2 full"]
    assert play.ask(9, "a", key="new") == ["reject 9 full"], "nobody has two more than it"


def test_one_model_does_not_fill_the_queue() -> None:
    play = Play(A, B, queue=3)
    for request in (1, 2, 3):
        play.ask(request, "a")
    assert play.ask(4, "b") == ["reject 3 full"]
    assert play.ask(5, "b") == ["reject 5 full"]


def test_keys_take_turns_when_their_model_is_ready() -> None:
    play = Play(A)
    play.ask(1, "a", key="many")
    for request in (2, 3, 4):
        play.after(1).ask(request, "a", key="many")
    play.after(1).ask(5, "a", key="few")
    play.ask(6, "a", priority=1, key="many")
    granted = play.loaded("a")
    assert granted == ["grant 6", "grant 1", "grant 5", "grant 2", "grant 3", "grant 4"]
