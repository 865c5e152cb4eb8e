"""As `test_rivals_bugs.py`: eviction by memory, clients that go, containers, and files that change."""

from __future__ import annotations

from tests.gateway.play import scheduled

from .play import Play
from .test_rivals_bugs import EMBED, A, B, swap

# -- eviction by memory --


def test_llama_swap_158_eviction_by_memory_and_use() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/158: keep what is pinned, then what is used most."""
    play = Play(
        scheduled("fim", 10, pinned=True),
        scheduled("slm", 30),
        scheduled("llm1", 50),
        scheduled("llm2", 60),
    )
    play.loaded("fim")
    play.up("slm", "llm1")
    for request in range(3):
        play.ask(request, "slm")
        play.finish(request)
    assert play.ask(9, "llm2") == ["unload llm1"]
    assert play.gone("llm1") == ["load llm2"]
    assert play.scheduler.phase("slm") == "ready"


def test_llama_swap_319_models_coexist_as_far_as_they_fit() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/319: without a group for every combination."""
    play = Play(scheduled("x", 30), scheduled("y", 30), scheduled("z", 30), scheduled("w", 30)).up(
        "x", "y", "z"
    )
    assert play.ask(1, "w") == ["unload x"]


def test_nix_ai_925_the_next_load_waits_for_the_memory() -> None:
    """https://github.com/dryvist/nix-ai/issues/925: memory decides what is evicted, not a count of models."""
    play = Play(EMBED, scheduled("e2", 10), scheduled("e3", 10), A).up("embed", "e2", "e3")
    assert play.ask(1, "a") == ["load a"]


def test_llama_cpp_21231_small_models_live_together_until_a_large_one_needs_room() -> None:
    """https://github.com/ggml-org/llama.cpp/pull/21231"""
    play = Play(EMBED, scheduled("e2", 10), scheduled("big", 95)).up("embed", "e2")
    assert play.ask(1, "big") == ["unload embed", "unload e2"]
    assert play.gone("embed") == []
    assert play.gone("e2") == ["load big"]


def test_llama_cpp_25326_one_large_resident_makes_way() -> None:
    """https://github.com/ggml-org/llama.cpp/pull/25326

    By count there was room, and every load ran out of memory.
    """
    play = Play(scheduled("moe", 80), scheduled("dense", 29)).up("moe")
    assert play.ask(1, "dense") == ["unload moe"]
    assert swap(play, "moe", "dense") == ["grant 1"]


def test_llama_cpp_19631_what_was_measured_decides() -> None:
    """https://github.com/ggml-org/llama.cpp/pull/19631

    A plan that was too small is put right by what ran.
    """
    play = Play(scheduled("a", 40), scheduled("b", 40))
    play.load("a")
    play.loaded("a", 75)
    assert play.after(60).ask(1, "b") == ["unload a"]


def test_llama_cpp_23668_a_switch_does_not_load_into_what_is_not_free_yet() -> None:
    """https://github.com/ggml-org/llama.cpp/issues/23668

    A model that fits alone ran out of memory on a switch: the other one's was not back.
    """
    play = Play(scheduled("gemma", 50), scheduled("qwen", 90)).up("gemma")
    assert play.ask(1, "qwen") == ["unload gemma"]
    assert play.after(1).tick() == []
    assert play.scheduler.used_bytes() == 50
    assert play.memory(99) == []
    assert play.gone("gemma") == ["load qwen"]


def test_localai_6068_the_least_valuable_goes_when_memory_is_short() -> None:
    """https://github.com/mudler/LocalAI/issues/6068"""
    play = Play(scheduled("x", 45), scheduled("y", 45), scheduled("z", 45)).up("x", "y")
    play.ask(1, "x")
    play.finish(1)
    assert play.ask(2, "z") == ["unload y"]


def test_localai_9375_a_busy_model_is_not_reclaimed() -> None:
    """https://github.com/mudler/LocalAI/issues/9375

    On unified memory the reclaimer went by how full the host is. A reading here only takes room away, and
    what serves is let be.
    """
    play = Play(scheduled("x", 30), scheduled("y", 30)).up("x", "y")
    play.ask(1, "x")
    play.ask(2, "y")
    assert play.memory(1, keep=10) == []
    assert play.after(1000).tick() == []
    assert play.ask(3, "x") == ["grant 3"]


def test_localai_7269_room_is_made_without_being_asked() -> None:
    """https://github.com/mudler/LocalAI/issues/7269: somebody had to press Stop before another could load."""
    play = Play(A, B).up("a")
    assert play.ask(1, "b") == ["unload a"]
    assert swap(play, "a", "b") == ["grant 1"]


def test_localai_5352_models_do_not_stay_for_ever() -> None:
    """https://github.com/mudler/LocalAI/issues/5352: they age, and they can be unloaded by name."""
    play = Play(scheduled("x", 30, ttl_s=600.0), scheduled("y", 30)).up("x", "y")
    assert play.unload("y") == ["unload y"]
    assert play.after(600).tick() == ["unload x"]


def test_lemonade_1804_two_residents_do_not_exceed_the_memory() -> None:
    """https://github.com/lemonade-sdk/lemonade/issues/1804

    Two were allowed by count, and the host ran out.
    """
    play = Play(A, B).up("a")
    play.ask(1, "a")
    assert play.ask(2, "b") == []
    assert play.scheduler.used_bytes() == 60


def test_omlx_649_a_settle_barrier_after_an_unload() -> None:
    """https://github.com/jundot/omlx/pull/649

    What was unloaded did not give back what was reckoned: the load waits for what is really free.
    """
    play = Play(A, B).up("a")
    assert play.memory(40) == []
    assert play.ask(1, "b") == ["unload a"]
    assert play.memory(45) == []
    assert play.gone("a") == []
    assert play.after(2).memory(70) == ["load b"]


# -- clients that go while they wait --


def test_llama_swap_43_no_load_for_who_left() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/43

    The client went, and its work was done all the same.
    """
    play = Play(A, B).up("a")
    assert play.ask(1, "b") == ["unload a"]
    assert play.leave(1) == []
    assert play.gone("a") == []
    assert play.scheduler.phase("b") == "off"


def test_llama_swap_980_an_engine_that_drains_is_busy_until_it_is_done() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/980

    Where a cancel would crash the engine its answer is read to the end; until then it is not unloaded.
    """
    play = Play(A, B).up("a")
    play.ask(1, "a")  # its client goes; the plane reads on, and says Finished at the end
    play.ask(2, "b")
    assert play.after(500).tick() == []
    assert play.finish(1) == ["unload a"]


def test_swama_116_the_departed_do_not_pile_up() -> None:
    """https://github.com/Trans-N-ai/swama/issues/116: each one that left still took its place in the line."""
    play = Play(A, queue=4)
    for request in range(100):
        play.ask(request, "a")
        play.leave(request)
    assert play.ask(100, "a") == []
    assert play.loaded("a") == ["grant 100"]


def test_llama_cpp_28829_a_cancel_while_waiting_does_not_lock_the_rest() -> None:
    """https://github.com/ggml-org/llama.cpp/issues/28829

    A request cancelled while it waited for a model left the router locked until it was restarted.
    """
    play = Play(A, B).up("a")
    play.ask(1, "a")
    play.ask(2, "b")
    play.after(120).tick()
    play.ask(3, "a")
    assert play.leave(2) == ["grant 3"]
    play.finish(1)
    play.finish(3)
    assert play.ask(4, "b") == ["unload a"]
    assert swap(play, "a", "b") == ["grant 4"]


# -- containers --


def test_llama_swap_220_the_name_is_free_before_it_is_used_again() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/220

    The container's name was still in use after a swap.
    """
    play = Play(A).up("a")
    assert play.unload("a") == ["unload a"]
    assert play.ask(1, "a") == []
    assert play.load("a") == []
    assert play.gone("a") == ["load a"]


def test_llama_swap_220_also_after_a_crash() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/220: what a crash leaves behind is cleared up first."""
    play = Play(A).up("a")
    assert play.crashed("a") == ["unload a"]
    assert play.ask(1, "a") == []
    assert play.gone("a") == ["load a"]


# -- the file changes --


def test_llama_swap_59_a_new_file_is_taken_up_while_running() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/59"""
    play = Play(A).up("a")
    play.ask(1, "a")
    assert play.change(A, EMBED) == []
    assert play.ask(2, "embed") == ["load embed"]
    assert play.ask(3, "a") == ["grant 3"]


def test_llama_swap_89_streams_outlive_an_edit() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/89

    Every model was stopped, whatever had been edited.
    """
    play = Play(A, EMBED).up("a", "embed")
    play.ask(1, "a")
    assert play.change(A, scheduled("embed", 20, identity="edited")) == ["unload embed"]
    assert play.scheduler.status("a", 0).busy == 1


def test_llama_swap_392_who_waits_is_not_lost_by_an_edit() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/392"""
    play = Play(A, B).up("a")
    play.ask(1, "a")
    play.ask(2, "b")
    assert play.change(A, B, EMBED) == []
    assert play.finish(1) == ["unload a"]
    assert swap(play, "a", "b") == ["grant 2"]


def test_llama_swappo_12_running_models_survive() -> None:
    """https://github.com/kooshi/llama-swappo/pull/12: only what differs is touched."""
    play = Play(A, EMBED).up("a", "embed")
    assert play.change(scheduled("a", 60, ttl_s=900.0), EMBED, min_dwell_s=5.0, max_wait_s=60.0) == []
    assert play.change(EMBED, scheduled("a", 60, ttl_s=900.0)) == []
    assert play.ask(1, "a") == ["grant 1"]
    assert play.ask(2, "embed") == ["grant 2"]


def test_no_second_set_is_loaded_beside_the_first_on_a_reload() -> None:
    """https://github.com/mostlygeek/llama-swap

    On a reload the new server preloads before the old one stops.
    """
    play = Play(A, B).up("a")
    play.ask(1, "a")
    assert play.change(scheduled("new", 60)) == []
    assert play.load("new") == []
    assert play.finish(1) == ["unload a"]
    assert play.gone("a") == ["load new"]
