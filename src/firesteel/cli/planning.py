"""`firesteel plan`, worked out: words -> proposals -> what is printed, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import RenderableType

from firesteel import library
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import compare_view, out, plan_view
from firesteel.edge.files import text_files
from firesteel.edge.kept import Answer
from firesteel.errors import UsageError
from firesteel.launch import Ask, EngineName, Goal
from firesteel.proposals import Proposal


def answer(
    models: tuple[str, ...],
    compare: bool,
    goal: Goal | None,
    chart: Path | None,
    host_name: str | None,
    context: int | None,
    users: int | None,
    port: int | None,
    engine: EngineName | None,
    version: str | None,
    quant: str | None,
    weights_bytes: int | None,
    kv_cache_dtype: str | None,
    kv_cache_memory_bytes: int | None,
    nodes: int | None,
    as_json: bool,
) -> Answer:
    """The parameters are the words of `firesteel plan`."""
    if compare and (len(models) < 2 or chart):
        raise UsageError(
            "--compare takes two or more MODELs, and draws nothing", next="firesteel plan --help"
        )
    if nodes and nodes & (nodes - 1):
        raise UsageError(
            f"attention heads are not split in {nodes}; only 1, 2, 4 and 8 are planned", next="--nodes 2"
        )
    if len(models) > 1 and not compare:
        raise UsageError("one MODEL at a time", next=f"firesteel plan --compare {' '.join(models)}")
    ask = Ask(
        models[0],
        context,
        users,
        port,
        engine=engine,
        version=version,
        quant=quant,
        weights_bytes=weights_bytes,
        kv_cache_dtype=kv_cache_dtype,
        kv_cache_bytes=kv_cache_memory_bytes,
        sparks=nodes,
        goal=goal,
    )
    host = library.host(host_name)
    found = [library.propose(replace(ask, model=model), host) for model in models]
    firsts = [ways[0] for ways in found]
    lasts = host.name == host.hardware and not chart and all(way.recipe for way in firsts)
    if compare:
        text = _compared(firsts, as_json)
        return Answer(text, min(_exit_code(way) for way in firsts), lasts)
    best, *rest = found[0]
    if chart:
        from firesteel.cli.output.plan_chart import picture  # only now is a renderer needed

        text_files.write_new(chart, picture(best))
    return Answer(_planned(best, tuple(rest), models[0], as_json), _exit_code(best), lasts)


def _planned(best: Proposal, rest: tuple[Proposal, ...], model: str, as_json: bool) -> str:
    if as_json:
        from firesteel.proposals.documents import (
            plan_json,  # the documents take a tenth of a second to define
        )

        return f"{plan_json(best, rest).model_dump_json(indent=1)}\n"
    return _text(plan_view(best, rest), typed(f"\nnext: {_next(best, model)}"))


def _compared(ways: Sequence[Proposal], as_json: bool) -> str:
    """Side by side; the command exits as the first that can run would."""
    if as_json:
        from firesteel.proposals.documents import plan_compare_json

        return f"{plan_compare_json(ways).model_dump_json(indent=1)}\n"
    return _text(compare_view(ways))


def _text(*views: RenderableType) -> str:
    """As this terminal shows it."""
    with out.capture() as said:
        for view in views:
            out.print(view)
    return said.get()


def _exit_code(best: Proposal) -> int:
    if not best.plan.fits:
        return 4
    return 3 if best.stops else 0


def _next(best: Proposal, model: str) -> str:
    if best.plan.host.name != "local":
        return f"firesteel up {model}, on that machine; firesteel render {model} prints its docker run"
    if best.can_run:
        return f"firesteel up {model}"
    if best.stops:
        return f"firesteel check --explain {best.stops[0].rule}"
    return f"firesteel plan {model} --host gb10, for a Spark; firesteel models, for what fits here"
