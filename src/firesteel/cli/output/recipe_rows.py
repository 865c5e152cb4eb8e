"""What a recipe and its model say beyond flags, as rows: licence, safety, request settings, quality."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from firesteel.units import show_figure, show_rate, show_seconds

if TYPE_CHECKING:
    from firesteel.catalog.model import Model
    from firesteel.catalog.recipe import Quality, Recipe, RecipeRequests
    from firesteel.planner.propose import Proposal
    from firesteel.planner.speed.speed import Speed
    from firesteel.planner.speed.startup import StartUp
    from firesteel.units import Band

Row = tuple[str, RenderableType]


def recipe_rows(proposal: Proposal) -> list[Row]:
    rows: list[Row] = []
    if proposal.model:
        rows += terms_rows(proposal.model)
    if proposal.recipe:
        rows += request_rows(proposal.recipe.requests)
        rows += quality_rows(proposal.recipe)
    return rows


def terms(model: Model) -> str:
    """What must be agreed to before the weights may be used."""
    gate = "; gated: accept its terms on the Hub, and set HF_TOKEN" if model.gated else ""
    return f"{model.license}{gate}"


def terms_rows(model: Model) -> Iterator[Row]:
    yield "licence", f"{terms(model)}; takes {', '.join(model.modality)}"
    if model.safety:
        yield "safety", Text(model.safety, style="yellow")


def request_rows(requests: RecipeRequests) -> Iterator[Row]:
    if not requests:
        return
    said = show_body(requests.body) or "nothing but the prompt"
    if requests.for_tools:
        said += f"; with tools {show_body(requests.for_tools)}"
    if requests.thinking:
        said += f"; thinking is {requests.thinking}"
    yield "requests", said
    for does, body in requests.instead.items():
        yield "", f"{does}: {show_body(body)}"
    if requests.system_prompt:
        yield "", f"its publisher wants {requests.system_prompt} of the repository as the system prompt"
    if requests.why:
        seen = f" ({requests.source.url}, {requests.source.seen})" if requests.source else ""
        yield "", Text(f"{requests.why}{seen}", style="dim")


def show_body(body: Mapping[str, object]) -> str:
    """`temperature 1, top_p 0.95, chat_template_kwargs {"enable_thinking":true}`"""
    return ", ".join(
        f"{name} {_compact(value) if isinstance(value, Mapping) else value}" for name, value in body.items()
    )


def _compact(value: Mapping[str, Any]) -> str:
    """JSON without spaces, as engines print it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def quality_rows(recipe: Recipe) -> Iterator[Row]:
    """Every suite, and once for each publisher where it was read."""
    for index, score in enumerate(recipe.quality):
        yield "" if index else "quality", f"{score.suite} {show_score(score)}"
    for source in {score.source.url: score.source for score in recipe.quality}.values():
        note = f", {source.note}" if source.note else ""
        yield "", Text(f"reported by {source.url}, {source.seen}{note}", style="dim")


def show_score(score: Quality) -> str:
    if not score.baseline:
        return f"{score.this:g}, no baseline published"
    change = "equal" if score.this == score.baseline else f"{score.this / score.baseline - 1:+.1%}"
    return f"{score.this:g} of {score.baseline:g} ({change})"


def speed_band(band: Band) -> str:
    return f"{show_rate(band.expected)} ({show_figure(band.low)} to {show_figure(band.high)})"


def pooled_rows(speed: Speed, rate: Band) -> Iterator[Row]:
    """Of a model that generates no text of its own."""
    text = f"{show_figure(rate.expected)} a second ({show_figure(rate.low)} to {show_figure(rate.high)})"
    if speed.sound_s:
        sound = show_figure(rate.expected * speed.sound_s)
        yield "requests", f"{text} of {speed.sound_s} s of sound, one by one: {sound} s of sound a second"
        yield "", Text(speed.explanation, style="dim")
    elif speed.prefill:
        yield "requests", f"{text} of {speed.prefill.prompt_tokens:,} tokens; it generates no text"


def draft_rows(speed: Speed) -> Iterator[Row]:
    """What drafting gains, on which text it may lose, and why that is believed."""
    band = speed.drafted_tokens_per_s
    if band is None:
        return
    plain = speed.decode_tokens_per_s.expected
    kinds = (
        f"{kind.text} {show_figure(kind.decode_tokens_per_s.low)} to "
        f"{show_figure(kind.decode_tokens_per_s.high)}"
        for kind in speed.drafted
    )
    gain = f"{band.expected / plain:.1f} times as fast as without"
    yield "drafting", f"about {show_figure(band.expected)} tok/s, {gain}, by the kind of text:"
    yield "", f"{', '.join(kinds)} tok/s"
    if speed.loses_on:
        yield "", f"in the worst case slower than without on {', '.join(speed.loses_on)}"
    yield "", Text(f"{speed.drafted[0].explanation}; {speed.drafted[0].sources[0]}", style="dim")


def start_rows(start: StartUp) -> Iterator[Row]:
    """The first start as a whole, then by phase."""
    first, again = start.seconds, start.again_seconds
    low, expected, high = (show_seconds(value) for value in (first.low, first.expected, first.high))
    yield "start", f"{expected} ({low} to {high}); {show_seconds(again.expected)} with warm caches"
    phases = (
        f"{phase.name} {show_seconds(phase.seconds.expected)}{' once' if phase.is_first_only else ''}"
        for phase in start.phases
    )
    yield "", ", ".join(phases)


def users_rows(speed: Speed) -> Iterator[Row]:
    if served := speed.served:
        each, total = speed_band(served.per_user_tokens_per_s), speed_band(served.total_tokens_per_s)
        wait = seconds_band(served.ttft_ms.scaled(1 / 1000))
        yield f"{served.users} users", f"{each} each while an answer arrives, {total} in all"
        yield "", f"first token after {wait}, on average"
        yield "", Text(served.explanation, style="dim")
    elif batch := speed.batch:
        each, total = show_rate(batch.per_user_tokens_per_s.expected), speed_band(batch.total_tokens_per_s)
        yield f"{batch.users} users", f"{each} each, {total} in total, while no prompts arrive"


def seconds_band(band: Band) -> str:
    low, expected, high = (show_seconds(value) for value in (band.low, band.expected, band.high))
    return f"{expected} ({low} to {high})"
