"""What went wrong in other gateways' swapping, each as a story that must end well here. All seen 2026-11-15.

Where a thread asks for something that nobody had, the story is of somebody who gets it.
"""

from __future__ import annotations

from firesteel.gateway.scheduler.events import ScheduledModel

from .play import Play

A, B, C = ScheduledModel("a", 60), ScheduledModel("b", 60), ScheduledModel("c", 60)
EMBED = ScheduledModel("embed", 10)


def swap(play: Play, out: str, into: str) -> list[str]:
    """An unload and the load after it come to their end."""
    assert play.after(5).gone(out) == [f"load {into}"]
    return play.after(30).loaded(into)


# -- races and hangs --


def test_llama_swap_946_ttl_against_a_request() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/946

    A request came a second after an unload for its TTL began, and no model was ever started again.
    """
    play = Play(ScheduledModel("a", 60, ttl_s=120.0), B).up("a")
    assert play.after(60).tick() == ["unload a"]
    assert play.after(1).ask(1, "a") == []
    assert play.gone("a") == ["load a"]
    assert play.loaded("a") == ["grant 1"]
    play.finish(1)
    assert play.after(120).tick() == ["unload a"]
    assert play.after(1).ask(2, "b") == []
    assert swap(play, "a", "b") == ["grant 2"]


def test_llama_swap_946_a_request_in_the_very_turn_of_the_ttl() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/946: whichever is heard first, nobody is lost."""
    play = Play(ScheduledModel("a", 60, ttl_s=120.0)).up("a")
    play.after(60)
    assert play.ask(1, "a") == ["grant 1"]
    assert play.tick() == []
    assert play.finish(1) == []


def test_llama_swap_277_parallel_requests_for_two_models() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/277

    Requests were passed to a model that had been told to stop.
    """
    play = Play(A, B).up("a")
    assert play.ask(1, "b") == ["unload a"]
    assert play.ask(2, "a") == []
    assert play.ask(3, "b") == []
    assert swap(play, "a", "b") == ["grant 1", "grant 3"]
    assert play.ask(4, "a") == []


def test_llama_swap_119_switching_rapidly() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/119

    After many quick switches nothing switched any more.
    """
    play = Play(A, B, min_dwell_s=0.0).up("a")
    last = "a"
    for request in range(500):
        other = "b" if last == "a" else "a"
        assert play.after(0.01).ask(request, other) == [f"unload {last}"]
        assert swap(play, last, other) == [f"grant {request}"]
        play.finish(request)
        last = other


def test_llama_swap_281_edits_in_quick_succession_load_one_instance() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/281

    Each edit of the file preloaded the model once more.
    """
    play = Play(A)
    assert play.load("a") == ["load a"]
    for edit in range(5):
        assert play.change(ScheduledModel("a", 60, ttl_s=100.0 + edit)) == []
        assert play.load("a") == []
    assert play.loaded("a") == []
    assert play.load("a") == []


def test_llama_swap_281_edits_of_what_is_started_replace_it_one_by_one() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/281: the old one is gone before the new one comes."""
    play = Play(A)
    play.load("a")
    for edit in range(3):
        assert play.change(ScheduledModel("a", 60, identity=f"edit {edit}")) == []
    assert play.loaded("a") == ["unload a"]
    assert play.load("a") == []
    assert play.gone("a") == ["load a"]


def test_llama_swap_38_timed_out_waiting_to_stop() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/38

    One slow stop, and every request failed unexplained.
    """
    play = Play(A, B, EMBED).up("a")
    play.ask(1, "b")
    assert play.ask(2, "embed") == []
    play.after(119).tick()
    assert play.after(200).tick() == ["reject 1 no memory", "load embed"]
    assert "`a` has been stopping" in play.rejected[1].why
    assert play.rejected[1].retry_after_s is not None
    assert play.loaded("embed") == ["grant 2"]
    assert play.gone("a") == []
    assert play.ask(3, "b") == ["load b"]


def test_llama_swap_558_stuck_in_starting() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/558

    `starting` ends in `ready` or in `off`, and those who wait are told which.
    """
    play = Play(A)
    play.ask(1, "a")
    assert play.after(3000).loaded("a") == ["grant 1"]
    assert play.scheduler.phase("a") == "ready"
    play = Play(A)
    play.ask(1, "a")
    assert play.after(3000).failed("a", "it did not answer in 50 min") == ["reject 1 failed"]
    assert play.scheduler.phase("a") == "off"


def test_llama_swap_19_two_models_at_once_ping_pong() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/19

    A coding agent asks two models at the same time; each request tore down the model of the other.
    """
    play = Play(A, B)
    assert play.ask(1, "a") == ["load a"]
    assert play.ask(2, "b") == []
    assert play.after(30).loaded("a") == ["grant 1"]
    assert play.after(60).tick() == []
    assert play.finish(1) == ["unload a"]
    assert swap(play, "a", "b") == ["grant 2"]


def test_ollama_14364_stuck_stopping_with_active_connections() -> None:
    """https://github.com/ollama/ollama/issues/14364

    Two batches on one model; it went to `Stopping...`, and neither served nor unloaded ever after.
    """
    play = Play(A, B).up("a")
    for request in range(8):
        play.ask(request, "a")
    play.unload("a")
    for request in range(8, 16):
        assert play.ask(request, "a") == []
    for request in range(7):
        assert play.finish(request) == []
    assert play.finish(7) == ["unload a"]
    assert play.gone("a") == ["load a"]
    assert play.loaded("a") == [f"grant {request}" for request in range(8, 16)]


def test_ollama_7779_nobody_waits_for_ever_behind_one_that_is_stopping() -> None:
    """https://github.com/ollama/ollama/issues/7779

    It stayed in `Stopping...`, and the application waited.
    """
    play = Play(A).up("a")
    assert play.unload("a") == ["unload a"]
    play.ask(1, "a")
    assert play.after(120).tick() == []
    assert play.after(180).tick() == ["reject 1 no memory"]
    assert "`a` has been stopping for 5 min" in play.rejected[1].why


def test_ollama_8969_another_model_can_be_used_while_one_does_not_stop() -> None:
    """https://github.com/ollama/ollama/issues/8969: it did not stop, and no other model could be used."""
    play = Play(A, EMBED).up("a")
    assert play.unload("a") == ["unload a"]
    assert play.after(1000).ask(1, "embed") == ["load embed"]


def test_ollama_14407_a_changed_model_under_load_is_reloaded() -> None:
    """https://github.com/ollama/ollama/pull/14407

    New requests kept a runner busy that had to be reloaded, and all scheduling waited for it.
    """
    play = Play(A, EMBED).up("a")
    play.ask(1, "a")
    play.change(ScheduledModel("a", 60, identity="larger context"), EMBED)
    assert play.ask(2, "a") == []
    assert play.ask(3, "embed") == ["load embed"]
    assert play.loaded("embed") == ["grant 3"]
    assert play.finish(1) == ["unload a"]
    assert play.gone("a") == ["load a"]
    assert play.loaded("a") == ["grant 2"]


def test_ollama_9625_one_model_is_loaded_once() -> None:
    """https://github.com/ollama/ollama/issues/9625: many requests at once made many instances."""
    play = Play(EMBED)
    assert play.ask(0, "embed") == ["load embed"]
    for request in range(1, 50):
        assert play.ask(request, "embed") == []
    assert len(play.loaded("embed")) == 50


def test_ollama_8398_who_leaves_cancels_nobody_else() -> None:
    """https://github.com/ollama/ollama/issues/8398: one cancelled load cancelled it for all who waited."""
    play = Play(A)
    play.ask(1, "a")
    play.ask(2, "a")
    assert play.leave(1) == []
    assert play.loaded("a") == ["grant 2"]


def test_llama_cpp_24960_the_router_switches() -> None:
    """https://github.com/ggml-org/llama.cpp/issues/24960: room for one, and the other was never loaded."""
    play = Play(A, B).up("a")
    play.ask(1, "a")
    play.finish(1)
    assert play.ask(2, "b") == ["unload a"]
    assert swap(play, "a", "b") == ["grant 2"]


def test_llama_cpp_28443_two_others_at_once_while_one_is_idle() -> None:
    """https://github.com/ggml-org/llama.cpp/issues/28443

    One of the two idled, and the other never loaded.
    """
    play = Play(A, B, C).up("a")
    assert play.ask(1, "b") == ["unload a"]
    assert play.ask(2, "c") == []
    assert swap(play, "a", "b") == ["grant 1"]
    play.finish(1)
    assert play.after(90).tick() == ["unload b"]
    assert swap(play, "b", "c") == ["grant 2"]


def test_llama_cpp_28774_a_cold_start_of_three_at_once() -> None:
    """https://github.com/ggml-org/llama.cpp/issues/28774: all but one got `model limit reached`."""
    play = Play(A, B, C, min_dwell_s=0.0)
    assert play.ask(1, "a") == ["load a"]
    assert play.ask(2, "b") == []
    assert play.ask(3, "c") == []
    assert play.loaded("a") == ["grant 1"]
    assert play.finish(1) == ["unload a"]
    assert swap(play, "a", "b") == ["grant 2"]
    assert play.finish(2) == ["unload b"]
    assert swap(play, "b", "c") == ["grant 3"]


def test_llmkube_1837_a_late_stop_does_not_undo_a_new_start() -> None:
    """https://github.com/defilantech/LLMKube/issues/1837

    The last waiter left, the clearing-up came late and undid a newer activation; the pool stayed dark.
    """
    play = Play(A, B).up("a")
    assert play.ask(1, "b") == ["unload a"]
    assert play.leave(1) == []
    assert play.ask(2, "b") == []
    assert swap(play, "a", "b") == ["grant 2"]
    assert play.gone("a") == []
    assert play.scheduler.phase("b") == "ready"


def test_llmkube_1123_stopped_by_somebody_else() -> None:
    """https://github.com/defilantech/LLMKube/issues/1123

    What was stopped behind the router's back was believed to run, and requests went nowhere.
    """
    play = Play(A).up("a")
    play.ask(1, "a")
    assert play.gone("a") == []
    assert play.ask(2, "a") == ["load a"]
    assert play.finish(1) == []


# -- thrash --


def test_llama_swap_612_a_b_a_a_c_a_b_c() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/612

    Asked for by its maintainer: served as AAAA BB CC, with a time that nobody waits beyond and a time that
    what was loaded stays.
    """
    play = Play(A, B, C)
    for request, model in enumerate("abaacabc"):
        play.after(0.1).ask(request, model)
    assert play.loaded("a") == ["grant 0", "grant 2", "grant 3", "grant 5"]
    for request in (0, 2, 3, 5):
        assert play.finish(request) == []  # it dwells
    assert play.after(60).tick() == ["unload a"]
    assert swap(play, "a", "b") == ["grant 1", "grant 6"]
    assert play.finish(1) == []
    play.after(5).finish(6)
    assert play.after(30).tick() == ["unload b"]  # c has waited its two minutes, and b's dwell is over for it
    assert swap(play, "b", "c") == ["grant 4", "grant 7"]


def test_llama_swap_588_a_long_job_is_not_swapped_out() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/588

    Twenty minutes of work, and a chat comes between.
    """
    play = Play(ScheduledModel("image", 90), ScheduledModel("chat", 30)).up("image")
    play.ask(1, "image")
    play.ask(2, "chat")
    for _ in range(20):
        assert play.after(60).tick() == []
    assert play.scheduler.phase("image") == "ready"
    assert play.finish(1) == ["unload image"]
    assert swap(play, "image", "chat") == ["grant 2"]


def test_llama_swap_588_a_batch_is_not_broken_up() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/588

    Of twenty queued, ten were turned away, and after the first of those left the model was swapped.
    """
    play = Play(ScheduledModel("image", 90), ScheduledModel("chat", 30))
    for request in range(20):
        play.ask(request, "image")
    assert len(play.loaded("image")) == 20
    play.after(1).ask(99, "chat")
    for request in range(19):
        assert play.after(1).finish(request) == []
    assert play.after(60).finish(19) == ["unload image"]


def test_llmkube_516_requests_are_held_and_coalesced() -> None:
    """https://github.com/defilantech/LLMKube/issues/516: held open, never turned away to try again."""
    play = Play(A, B).up("a")
    play.ask(1, "a")
    assert [play.ask(request, "b") for request in range(2, 10)] == [[]] * 8
    assert play.finish(1) == ["unload a"]
    assert len(swap(play, "a", "b")) == 8


# -- eviction by memory --


def test_llama_swap_158_eviction_by_memory_and_use() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/158: keep what is pinned, then what is used most."""
    play = Play(
        ScheduledModel("fim", 10, pinned=True),
        ScheduledModel("slm", 30),
        ScheduledModel("llm1", 50),
        ScheduledModel("llm2", 60),
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
    play = Play(
        ScheduledModel("x", 30), ScheduledModel("y", 30), ScheduledModel("z", 30), ScheduledModel("w", 30)
    ).up("x", "y", "z")
    assert play.ask(1, "w") == ["unload x"]


def test_nix_ai_925_the_next_load_waits_for_the_memory() -> None:
    """https://github.com/dryvist/nix-ai/issues/925: memory decides what is evicted, not a count of models."""
    play = Play(EMBED, ScheduledModel("e2", 10), ScheduledModel("e3", 10), A).up("embed", "e2", "e3")
    assert play.ask(1, "a") == ["load a"]


def test_llama_cpp_21231_small_models_live_together_until_a_large_one_needs_room() -> None:
    """https://github.com/ggml-org/llama.cpp/pull/21231"""
    play = Play(EMBED, ScheduledModel("e2", 10), ScheduledModel("big", 95)).up("embed", "e2")
    assert play.ask(1, "big") == ["unload embed", "unload e2"]
    assert play.gone("embed") == []
    assert play.gone("e2") == ["load big"]


def test_llama_cpp_25326_one_large_resident_makes_way() -> None:
    """https://github.com/ggml-org/llama.cpp/pull/25326

    By count there was room, and every load ran out of memory.
    """
    play = Play(ScheduledModel("moe", 80), ScheduledModel("dense", 29)).up("moe")
    assert play.ask(1, "dense") == ["unload moe"]
    assert swap(play, "moe", "dense") == ["grant 1"]


def test_llama_cpp_19631_what_was_measured_decides() -> None:
    """https://github.com/ggml-org/llama.cpp/pull/19631

    A plan that was too small is put right by what ran.
    """
    play = Play(ScheduledModel("a", 40), ScheduledModel("b", 40))
    play.load("a")
    play.loaded("a", 75)
    assert play.after(60).ask(1, "b") == ["unload a"]


def test_llama_cpp_23668_a_switch_does_not_load_into_what_is_not_free_yet() -> None:
    """https://github.com/ggml-org/llama.cpp/issues/23668

    A model that fits alone ran out of memory on a switch: the other one's was not back.
    """
    play = Play(ScheduledModel("gemma", 50), ScheduledModel("qwen", 90)).up("gemma")
    assert play.ask(1, "qwen") == ["unload gemma"]
    assert play.after(1).tick() == []
    assert play.scheduler.used_bytes() == 50
    assert play.memory(99) == []
    assert play.gone("gemma") == ["load qwen"]


def test_localai_6068_the_least_valuable_goes_when_memory_is_short() -> None:
    """https://github.com/mudler/LocalAI/issues/6068"""
    play = Play(ScheduledModel("x", 45), ScheduledModel("y", 45), ScheduledModel("z", 45)).up("x", "y")
    play.ask(1, "x")
    play.finish(1)
    assert play.ask(2, "z") == ["unload y"]


def test_localai_9375_a_busy_model_is_not_reclaimed() -> None:
    """https://github.com/mudler/LocalAI/issues/9375

    On unified memory the reclaimer went by how full the host is. A reading here only takes room away, and
    what serves is let be.
    """
    play = Play(ScheduledModel("x", 30), ScheduledModel("y", 30)).up("x", "y")
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
    play = Play(ScheduledModel("x", 30, ttl_s=600.0), ScheduledModel("y", 30)).up("x", "y")
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
    assert play.change(A, ScheduledModel("embed", 20, identity="edited")) == ["unload embed"]
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
    assert play.change(ScheduledModel("a", 60, ttl_s=900.0), EMBED, min_dwell_s=5.0, max_wait_s=60.0) == []
    assert play.change(EMBED, ScheduledModel("a", 60, ttl_s=900.0)) == []
    assert play.ask(1, "a") == ["grant 1"]
    assert play.ask(2, "embed") == ["grant 2"]


def test_no_second_set_is_loaded_beside_the_first_on_a_reload() -> None:
    """https://github.com/mostlygeek/llama-swap

    On a reload the new server preloads before the old one stops.
    """
    play = Play(A, B).up("a")
    play.ask(1, "a")
    assert play.change(ScheduledModel("new", 60)) == []
    assert play.load("new") == []
    assert play.finish(1) == ["unload a"]
    assert play.gone("a") == ["load new"]
