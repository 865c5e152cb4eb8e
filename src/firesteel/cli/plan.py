"""`firesteel plan MODEL`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import CompareJson
from firesteel.cli.fill import plan_json
from firesteel.cli.picture import picture
from firesteel.cli.show import compare_view, out, plan_view
from firesteel.cli.typed import typed
from firesteel.edge import texts
from firesteel.errors import UsageError
from firesteel.launch import Ask, EngineName, Goal
from firesteel.rules import Proposal, release


@click.command("plan")
@click.argument("models", metavar="MODEL", nargs=-1, required=True)
@click.option("--compare", is_flag=True, help="Two or more MODELs side by side.")
@click.option("--goal", type=click.Choice(get_args(Goal)), help="What to choose the way by.")
@click.option("--chart", metavar="FILE.svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw it.")
@words.host_option
@words.size_options
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="Only ways through this engine.")
@click.option("--engine-version", "version", metavar="VERSION", help="Figures as this release gives them.")
@click.option("--quant", metavar="NAME", help="How a config's weights are stored: nvfp4, fp8, q4_k_m, ...")
@click.option("--weights-bytes", type=click.IntRange(1, 2**50), help="Their sum, in place of an assumed one.")
@click.option("--kv-cache-dtype", metavar="TYPE", help="fp8, auto, q8_0, ...")
@click.option(
    "--kv-cache-memory-bytes", type=click.IntRange(1, 2**50), help="The engine's figures for this cache."
)
@click.option("--nodes", type=click.IntRange(1, 8), help="Sparks to split it over.")
@words.json_option
def command(
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
) -> int:
    """Does MODEL fit, and how fast will it be, before any download.

    MODEL is a name from `firesteel models`, a Hub id, a GGUF file, a folder with safetensors, or a
    config.json alone, for which --quant says how the weights are stored. Exits 4 when it does not fit, 3
    when a rule stops it.
    """
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
        version=release(engine, version) if version else None,
        quant=quant,
        weights_bytes=weights_bytes,
        kv_cache_dtype=kv_cache_dtype,
        kv_cache_bytes=kv_cache_memory_bytes,
        sparks=nodes,
        goal=goal,
    )
    host = library.host(host_name)
    found = [library.propose(replace(ask, model=model), host) for model in models]
    if compare:
        return _compare([ways[0] for ways in found], as_json)
    best, *rest = found[0]
    if chart:
        texts.write_new(chart, picture(best))
    if as_json:
        words.print_json(plan_json(best, tuple(rest)))
    else:
        out.print(plan_view(best, tuple(rest)))
        out.print(typed(f"\nnext: {_next(best, models[0])}"))
    return _exit_code(best)


def _exit_code(best: Proposal) -> int:
    if not best.plan.fits:
        return 4
    return 3 if best.stops else 0


def _compare(ways: list[Proposal], as_json: bool) -> int:
    """Side by side; exits as the first that can run would."""
    if as_json:
        words.print_json(CompareJson(plans=[plan_json(way, ()) for way in ways]))
    else:
        out.print(compare_view(ways))
    return min(_exit_code(way) for way in ways)


def _next(best: Proposal, model: str) -> str:
    if best.plan.host.name != "local":
        return f"firesteel up {model}, on that machine; firesteel render {model} prints its docker run"
    if best.can_run:
        return f"firesteel up {model}"
    if best.stops:
        return f"firesteel check --explain {best.stops[0].rule}"
    return f"firesteel plan {model} --host gb10, for a Spark; firesteel models, for what fits here"
