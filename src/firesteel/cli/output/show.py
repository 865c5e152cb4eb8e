"""Hosts, plans, findings, models and recipes as text.

`out` prints results to stdout, `err` the rest to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from firesteel.errors import escape_unprintable
from firesteel.units import show_bytes, show_count, show_figure, show_rate, show_seconds

if TYPE_CHECKING:
    from firesteel.catalog.model import Model
    from firesteel.catalog.recipe import Quality, Recipe, RecipeRequests
    from firesteel.facts.host.hardware import Host
    from firesteel.planner.memory.account import MemoryAccount
    from firesteel.planner.plan import Plan
    from firesteel.planner.propose import Proposal
    from firesteel.planner.speed.speed import Speed
    from firesteel.planner.speed.startup import StartUp
    from firesteel.rules.checker import Finding
    from firesteel.units import Band

Row = tuple[str, RenderableType]


_PIPED_WIDTH = 160
_width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH
# Text is printed as it is: `[red]` or `:fire:` in a name or an answer is not markup.
out = Console(markup=False, emoji=False, highlight=False, width=_width)
err = Console(markup=False, emoji=False, highlight=False, stderr=True, soft_wrap=True)

_MAX_BAR_WIDTH = 60
_FILLS = {"weights": ("█", "cyan"), "KV cache": ("▓", "green")}
_REST = ("▒", "yellow")
_ONE_LINE = {"name", "memory", "fits", "needs", "phase", "pid", "check", "figure"}
_RUNGS = {
    "measured here": "measured here",
    "measured recipe": "from measured runs of this recipe",
    "measured model": "from measured runs of this model",
    "fitted": "estimated",
    "roofline": "estimated",
}
LEVEL_STYLE = {"stop": "bold red", "warn": "yellow", "note": "cyan"}


def line(text: str) -> None:
    """A line of the result, which may contain anybody's text."""
    out.print(escape_unprintable(text))


def bytes_band(band: Band) -> str:
    if band.is_exact:
        return show_bytes(round(band.expected))
    low, expected, high = (show_bytes(round(value)) for value in (band.low, band.expected, band.high))
    return f"{expected} ({low} to {high})"


_CONSTANT_CACHE = "does not grow once its windows are full"


def grid(rows: Iterable[Row]) -> Table:
    """Labels on the left, values on the right."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    for name, value in rows:
        table.add_row(name, value)
    return table


def table(columns: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> Table:
    view = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        view.add_column(column, no_wrap=column in _ONE_LINE)
    for row in rows:
        view.add_row(*row)
    return view


def host_rows(host: Host) -> list[Row]:
    gpus = ", ".join(gpu.name for gpu in host.gpus) or ("GB10" if host.hardware == "gb10" else "none")
    total, available = show_bytes(host.memory_total_bytes), show_bytes(host.memory_available_bytes)
    budget, kept_free = show_bytes(host.room_bytes), show_bytes(host.keep_free_bytes)
    if own := gpu_rows(host):
        return own
    rate = host.bandwidth_bytes_per_s
    return [
        ("host", f"{host.title}, {host.cores} cores"),
        ("gpu", gpus),
        ("memory", f"{total}, {available} available"),
        ("budget", f"{budget} for a model; {kept_free} are kept free"),
        ("bandwidth", f"{rate / 1e9:.0f} GB/s, {host.bandwidth_kind}" if rate else "not known"),
    ]


def gpu_rows(host: Host) -> list[Row]:
    """A host with a discrete GPU, whose memory is what a model needs; nothing for any other."""
    gpu = next((gpu for gpu in host.gpus if gpu.memory_bytes and not host.hardware), None)
    if gpu is None or not gpu.memory_bytes:
        return []
    from firesteel.library.plans import gpu_bandwidth  # `check` prints no host

    bandwidth = gpu_bandwidth(gpu.name)
    count = f"{len(host.gpus)} x " if len(host.gpus) > 1 else ""
    total, available = show_bytes(host.memory_total_bytes), show_bytes(host.memory_available_bytes)
    return [
        ("host", f"{host.title}, {host.cores} cores, {total}, {available} available"),
        ("gpu", f"{count}{gpu.name}, compute capability {gpu.compute_capability}, driver {gpu.driver}"),
        ("memory", f"{show_bytes(gpu.memory_bytes)} on the GPU"),
        ("bandwidth", f"{bandwidth / 1e9:,.0f} GB/s, reported" if bandwidth else "not known"),
    ]


def memory_bar(memory: MemoryAccount) -> Text:
    """The host's whole memory as one bar; what exceeds the budget is red and marked `!`."""
    total = max(memory.host_total_bytes, round(memory.needed.expected))
    size = show_bytes(memory.host_total_bytes)
    width = max(10, min(_MAX_BAR_WIDTH, out.width - len(f"[]  {size}")))  # on one line, however narrow
    limit = round(width * memory.budget_bytes / total)
    cells: list[tuple[str, str]] = []
    for part in memory.parts:
        fill = _FILLS.get(part.name, _REST)
        share = part.bytes.expected / total
        cells += [fill] * (round(width * share) or int(part.name == "weights"))
    cells = [cell if position < limit else ("!", "red") for position, cell in enumerate(cells[:width])]
    cells += [("·", "dim")] * (limit - len(cells))
    bar = Text("[")
    for fill_char, style in cells:
        bar.append(fill_char, style)
    bar.append(" " * (width - len(cells)) + f"]  {size}")
    return bar


_LEGEND = Text(
    "█ weights  ▓ KV cache  ▒ engine  · left  ! over the budget  blank: in use or kept free", style="dim"
)


def plan_view(proposal: Proposal, others: tuple[Proposal, ...]) -> Group:
    plan = proposal.plan
    status = f", {proposal.recipe.status}" if proposal.recipe else ""
    engine = f"{plan.launch.engine} {plan.launch.version or ''}".rstrip()
    views: list[RenderableType] = [
        Text.assemble((proposal.name, "bold"), f"  {plan.launch.model} on {plan.machine}, {engine}{status}"),
        verdict(proposal),
        Text(),
        _memory_table(plan.memory),
        memory_bar(plan.memory),
        _LEGEND,
        Text(),
        grid(_figures(proposal, others)),
    ]
    if proposal.findings:
        views += [Text(), findings_view(proposal.findings)]
    return Group(*views)


def _memory_table(memory: MemoryAccount) -> Table:
    rows: list[Sequence[RenderableType]] = [
        (part.name, bytes_band(part.bytes), part.basis, Text(part.explanation, style="dim"))
        for part in memory.parts
    ]
    budget = f"of a budget of {show_bytes(memory.budget_bytes)}"
    rows.append((Text("needed", style="bold"), Text(bytes_band(memory.needed), style="bold"), "", budget))
    return table(("memory", "bytes", "basis", "why"), rows)


def _figures(proposal: Proposal, others: tuple[Proposal, ...]) -> list[Row]:
    from firesteel.library.plans import compared_with_best  # `check` prints no plan

    plan = proposal.plan
    cache, speed = plan.cache, plan.speed
    growth = f"{show_bytes(cache.bytes_per_token)} per token" if cache.bytes_per_token else _CONSTANT_CACHE
    rows: list[Row] = [("KV", f"{growth}; {cache.users} x {show_count(cache.context)} tokens")]
    rows += _printed_rows(plan)
    if speed:
        rows += _speed_rows(speed)
    rows += recipe_rows(proposal)
    rows += [("note", note) for note in plan.notes]
    rows += [
        ("also" if not index else "", f"{other.name}: {compared_with_best(proposal, other)}")
        for index, other in enumerate(others)
    ]
    return rows


def _printed_rows(plan: Plan) -> list[Row]:
    """The two figures that vLLM prints about its cache when it starts."""
    rows: list[Row] = []
    engine = f"{plan.launch.engine} {plan.launch.version or '(version not known)'}"
    for kv in plan.printed:
        text = f"will print: {kv.tokens:,} tokens, {kv.concurrency_text}x at {kv.context:,}"
        if kv.refused:
            text = f"will refuse to start: this cache holds at most {kv.refused.largest_context:,} tokens"
        rows.append(("", f"{engine} {text}"))
    pool = plan.cache.pool
    if pool and plan.printed and (many := pool.resident(plan.kv_bytes)) > plan.printed[0].concurrency + 1:
        text = (
            f"{many:,} such requests fit at once: each keeps its windows, and they share the tokens of a step"
        )
        rows.append(("", text))
    if pool and pool.unsure:
        rows.append(("", Text(f"may differ slightly: {pool.unsure}", style="dim")))
    return rows


def _speed_rows(speed: Speed) -> list[Row]:
    """One line per figure; the first is followed by where it comes from."""
    rows: list[Row] = [
        ("decode", f"{speed_band(speed.decode_tokens_per_s)} for one user, {_RUNGS[speed.basis]}"),
        ("", Text(f"{speed.explanation}; {show_bytes(speed.bytes_per_token)} read per token", style="dim")),
    ]
    if speed.requests_per_s:
        rows = list(pooled_rows(speed, speed.requests_per_s))
    deeper = [(depth, rate) for depth, rate in speed.at_depth if depth > 1024]
    if deeper:
        rates = (f"{show_rate(rate.expected)} at {show_count(depth)} tokens" for depth, rate in deeper)
        rows.append(("at depth", ", ".join(rates)))
    rows += users_rows(speed)
    rows += draft_rows(speed)
    if speed.prefill:
        ttft = speed.prefill.ttft_ms
        seconds = seconds_band(ttft.scaled(1 / 1000))
        cached = f", {speed.prefill.cached_tokens:,} of them cached," if speed.prefill.cached_tokens else ""
        text = f"{speed.prefill.prompt_tokens:,} tokens{cached} in {seconds}"
        if extra := speed.prefill.first_prompts_ms:
            text += f"; the first after a start {show_seconds(extra.expected / 1000)} more"
        rows.append(("prompt", text))
    if speed.start_up:
        rows += start_rows(speed.start_up)
    return rows


def verdict(proposal: Proposal) -> Text:
    memory = proposal.plan.memory
    if memory.verdict == "does not fit":
        return Text(f"does not fit: {show_bytes(memory.short_bytes)} short", style="bold red")
    if proposal.plan.is_refused:
        return Text("does not fit: the cache cannot hold one request", style="bold red")
    if proposal.stops:
        return Text(f"{memory.verdict}, but {proposal.stops[0].rule} stops it", style="bold red")
    if not proposal.suits_host:
        return Text(f"{memory.verdict}, but this host has no NVIDIA GPU", style="yellow")
    if memory.verdict == "tight":
        return Text("tight: the expected size fits, the high end of the estimate does not", style="yellow")
    return Text("fits", style="bold green")


def compare_view(proposals: Sequence[Proposal]) -> Table:
    """One column per proposal, one row per figure."""
    rows: list[Sequence[RenderableType]] = [("verdict", *(verdict(proposal) for proposal in proposals))]
    plans = [proposal.plan for proposal in proposals]
    rows.append(("engine", *(f"{plan.launch.engine} {plan.launch.version or ''}".rstrip() for plan in plans)))
    parts = [{part.name: bytes_band(part.bytes) for part in plan.memory.parts} for plan in plans]
    for name in dict.fromkeys(name for sizes in parts for name in sizes):
        rows.append((name, *(sizes.get(name, "-") for sizes in parts)))
    rows.append(("needed", *(bytes_band(plan.memory.needed) for plan in plans)))
    left = [plan.memory.budget_bytes - round(plan.memory.needed.expected) for plan in plans]
    rows.append(("left", *(show_bytes(max(0, size)) for size in left)))
    rows.append(("context", *(f"{plan.cache.users} x {plan.cache.context:,}" for plan in plans)))
    rows.append(("decode", *(_speed_cell(plan.speed) for plan in plans)))
    if any(plan.cache.users > 1 for plan in plans):
        rows.append(("several users", *(_users_cell(plan.speed) for plan in plans)))
    rows.append(("prompt", *(_prompt_cell(plan.speed) for plan in plans)))
    rows.append(("quality", *(_quality(proposal.recipe) for proposal in proposals)))
    rows.append(("findings", *(_finding_counts(proposal) for proposal in proposals)))
    return table(("", *(proposal.name for proposal in proposals)), rows)


def _speed_cell(speed: Speed | None) -> str:
    if speed and speed.requests_per_s:
        return "none"
    return f"{speed_band(speed.decode_tokens_per_s)}, {speed.basis}" if speed else "not known"


def _users_cell(speed: Speed | None) -> str:
    several = speed and (speed.served or speed.batch)
    if not several:
        return "not known"
    each, total = (
        show_rate(several.per_user_tokens_per_s.expected),
        show_rate(several.total_tokens_per_s.expected),
    )
    return f"{several.users}: {each} each, {total} in all"


def _prompt_cell(speed: Speed | None) -> str:
    if not speed or not speed.prefill:
        return "not known"
    return f"{speed.prefill.tokens_per_s.expected:,.0f} tok/s at {speed.prefill.prompt_tokens:,}"


def _finding_counts(proposal: Proposal) -> str:
    levels: list[str] = [finding.level for finding in proposal.findings]
    counts = {level: levels.count(level) for level in LEVEL_STYLE}
    return ", ".join(f"{count} {level}" for level, count in counts.items() if count) or "none"


def findings_view(findings: tuple[Finding, ...]) -> Group:
    """Level, rule and what happens; where; what to write instead; the source."""
    views: list[Text] = []
    for finding in findings:
        level = Text(f"{finding.level:<6}", LEVEL_STYLE[finding.level])
        views.append(level + Text(finding.rule, "bold") + Text(f": {finding.says}"))
        location = finding.location
        shown = (
            f"{escape_unprintable(location.path)}:{location.line}:{location.column}" if location else "found"
        )
        views.append(Text(f"      {shown:<6} {finding.saw}"))
        if finding.instead:
            views.append(Text(f"      use    {finding.instead}"))
        source = finding.sources[0]
        seen = f"{finding.scope}, {finding.confidence}, {source.seen}, {source.url}"
        views.append(Text(f"      seen   {seen}", style="dim"))
    return Group(*views)


def models_view(proposals: tuple[Proposal, ...]) -> Table:
    columns = (
        "name", "fits", "needs", "decode, estimated", "engine", "weights", "recipe", "licence",
        "quality, reported",
    )  # fmt: skip
    shown = len(columns) if out.width >= 118 else 5
    return table(columns[:shown], [_model_row(proposal)[:shown] for proposal in proposals])


def _model_row(proposal: Proposal) -> Sequence[RenderableType]:
    plan, recipe, model = proposal.plan, proposal.recipe, proposal.model
    return (
        proposal.name,
        _short_verdict(proposal),
        show_bytes(round(plan.memory.needed.expected)),
        _decode_cell(plan.speed),
        f"{plan.launch.engine} {plan.launch.version or ''}".rstrip(),
        model.weights.provenance if model else "counted",
        recipe.status if recipe else "-",
        _terms(model),
        _quality(recipe),
    )


def _decode_cell(speed: Speed | None) -> str:
    """Without drafting, and with it where the launch drafts."""
    if speed is None:
        return "not known"
    drafted = speed.drafted_tokens_per_s
    if drafted is None:
        return speed_band(speed.decode_tokens_per_s)
    low, expected, high = map(show_figure, (drafted.low, drafted.expected, drafted.high))
    plain = show_rate(speed.decode_tokens_per_s.expected)
    return f"{plain}, drafted {expected} ({low} to {high})"


def _terms(model: Model | None) -> str:
    """With a word where there is more to know."""
    if model is None:
        return "-"
    return model.license + (", gated" if model.gated else "") + (", safety note" if model.safety else "")


def _quality(recipe: Recipe | None) -> str:
    """The first suite, and how many there are: `plan` shows all of them."""
    quality = recipe.quality if recipe else ()
    if not quality:
        return "-"
    more = f" and {len(quality) - 1} more" if len(quality) > 1 else ""
    return f"{quality[0].suite} {show_score(quality[0])}{more}"


def _short_verdict(proposal: Proposal) -> Text:
    if not proposal.plan.fits:
        return Text("no", style="red")
    if proposal.stops:
        return Text("stopped", style="red")
    if not proposal.suits_host:
        return Text("no GPU", style="yellow")
    tight = proposal.plan.memory.verdict == "tight"
    return Text("tight", style="yellow") if tight else Text("yes", style="green")


# --- what a recipe and its model say beyond flags, as rows ---


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
    """Of a model that generates no text."""
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
