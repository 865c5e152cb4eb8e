"""What `plan`, `models` and the chart show of a recipe beyond its flags."""

from __future__ import annotations

import pytest
from rich.console import Console

from firesteel.catalog.catalog import shipped
from firesteel.cli.output.show import draft_rows, models_view, recipe_rows
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask
from firesteel.library.documents.plans import model_row, plan_json
from firesteel.planner.chart import draw_plan
from firesteel.planner.propose import Proposal, propose


def proposal(name: str) -> Proposal:
    return propose(shipped(), idle_host(hardware("gb10")), Ask(name))[0]


def text_of(name: str) -> str:
    return "\n".join(f"{label}: {value}" for label, value in recipe_rows(proposal(name)))


def test_licence_gate_safety_requests_and_every_suite_are_shown() -> None:
    assert "gated: accept its terms on the Hub, and set HF_TOKEN" in text_of("diffusiongemma-26b-a4b-nvfp4")
    coder = text_of("gemma-4-12b-coder-nvfp4")
    assert "Refusals removed" in coder
    assert 'requests: chat_template_kwargs {"enable_thinking":true}; thinking is on' in coder
    assert "it was trained to think first" in coder and "2026-11-15" in coder
    nano = text_of("nemotron-3-nano-nvfp4-plain")
    assert "temperature 1.0, top_p 1.0; with tools temperature 0.6, top_p 0.95" in nano
    recipe = shipped().recipes["nemotron-3-nano-nvfp4-plain"]
    assert all(f"{score.suite} {score.this:g} of {score.baseline:g}" in nano for score in recipe.quality)
    assert "NeMo Evaluator" in nano


@pytest.mark.parametrize("name", ["gemma-4-12b-coder-nvfp4-mtp", "gpt-oss-20b", "smollm2"])
def test_json_has_what_the_text_has(name: str) -> None:
    found = proposal(name)
    assert found.model and found.recipe
    for document in (plan_json(found), model_row(found)):
        assert document.terms and document.terms.license == found.model.license
        assert document.terms.safety == found.model.safety
        assert (document.requests is not None) == bool(found.recipe.requests)
        assert document.requests is None or document.requests.body == found.recipe.requests.body
        assert document.quality == found.recipe.quality


def test_a_drafted_recipe_shows_both_speeds_and_where_drafting_may_lose() -> None:
    found = proposal("gemma-4-12b-coder-nvfp4-mtp")
    speed = found.plan.speed
    assert speed and speed.drafted_tokens_per_s
    assert speed.drafted_tokens_per_s.expected > speed.decode_tokens_per_s.expected
    rows = "\n".join(str(value) for _, value in draft_rows(speed))
    assert "times as fast as without" in rows and "slower than without on prose" in rows
    console = Console(width=200)
    with console.capture() as shown:
        console.print(models_view((found,)))
    assert "drafted" in shown.get()
    assert model_row(found).drafted_tokens_per_s == speed.drafted_tokens_per_s
    plain = proposal("gemma-4-12b-coder-nvfp4").plan.speed
    assert plain and plain.drafted_tokens_per_s is None and not list(draft_rows(plain))


def test_blocks_of_a_diffusion_model_are_a_band_up_to_the_published_run() -> None:
    speed = proposal("diffusiongemma-26b-a4b-nvfp4").plan.speed
    assert speed and speed.drafted_tokens_per_s
    assert [row.text for row in speed.drafted] == ["any"]
    assert speed.drafted_tokens_per_s.low <= speed.decode_tokens_per_s.expected
    assert speed.drafted_tokens_per_s.high >= 131


def test_the_chart_draws_quality() -> None:
    drawn = draw_plan(proposal("nemotron-3-nano-nvfp4-plain"))
    assert "Quality, as published" in drawn and "TauBench V2 average" in drawn
