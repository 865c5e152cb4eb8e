"""What went wrong in other gateways' swapping, each as a story that must end well here. All seen 2026-11-15.

Where a thread asks for something that nobody had, the story is of somebody who gets it.
"""

from __future__ import annotations

from tests.gateway.play import scheduled

from .play import Play

A, B, C = scheduled("a", 60), scheduled("b", 60), scheduled("c", 60)
EMBED = scheduled("embed", 10)


def swap(play: Play, out: str, into: str) -> list[str]:
    """An unload and the load after it come to their end."""
    assert play.after(5).gone(out) == [f"load {into}"]
    return play.after(30).loaded(into)


# -- races and hangs --


def test_llama_swap_946_ttl_against_a_request() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/946

    A request came a second after an unload for its TTL began, and no model was ever started again.
    """
    play = Play(scheduled("a", 60, ttl_s=120.0), B).up("a")
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
    play = Play(scheduled("a", 60, ttl_s=120.0)).up("a")
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
        assert play.change(scheduled("a", 60, ttl_s=100.0 + edit)) == []
        assert play.load("a") == []
    assert play.loaded("a") == []
    assert play.load("a") == []


def test_llama_swap_281_edits_of_what_is_started_replace_it_one_by_one() -> None:
    """https://github.com/mostlygeek/llama-swap/issues/281: the old one is gone before the new one comes."""
    play = Play(A)
    play.load("a")
    for edit in range(3):
        assert play.change(scheduled("a", 60, identity=f"edit {edit}")) == []
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
    play.change(scheduled("a", 60, identity="larger context"), EMBED)
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
    play = Play(scheduled("image", 90), scheduled("chat", 30)).up("image")
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
    play = Play(scheduled("image", 90), scheduled("chat", 30))
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
