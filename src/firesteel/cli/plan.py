"""`firesteel plan MODEL`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import compare_view, out, plan_view
from firesteel.errors import UsageError
from firesteel.launch import Ask, EngineName, Goal
from firesteel.library import documents, plans

if TYPE_CHECKING:
    pass


@click.command("plan")
@click.argument("models", metavar="MODEL", nargs=-1, required=True, shell_complete=options.complete_recipe)
@click.option("--compare", is_flag=True, help="Show two or more MODELs side by side.")
@click.option("--goal", type=click.Choice(get_args(Goal)), help="Choose the recipe by this.")
@click.option("--chart", metavar="FILE.svg", type=options.FILE, help="Draw the plan.")
@options.host_option
@options.size_options
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="Consider only this engine.")
@click.option("--engine-version", "version", metavar="VERSION", help="Plan for this release of the engine.")
@options.runtime_options
@options.adapter_option
@options.despite_option
@click.option(
    "--quant", metavar="NAME", help="Say how the weights of a config are stored: nvfp4, fp8, q4_k_m, ..."
)
@click.option(
    "--weights-bytes", type=click.IntRange(1, 2**50), help="Give the size of the weights, if you know it."
)
@click.option("--kv-cache-dtype", metavar="TYPE", help="Store the KV cache so: fp8, auto, q8_0, ...")
@click.option(
    "--kv-cache-memory-bytes",
    "kv_cache_bytes",
    type=click.IntRange(1, 2**50),
    help="Give the KV cache exactly this much.",
)
@click.option(
    "--prompt",
    "prompt_tokens",
    type=options.TOKENS,
    help="Users send prompts of this length (default: the --context).",
)
@click.option(
    "--answer", "answer_tokens", type=options.TOKENS, help="They get answers of this length (default 512)."
)
@click.option("--shared", type=options.TOKENS, help="So much of each prompt is already in the prefix cache.")
@click.option("--nodes", type=click.IntRange(1, 8), help="Split the model over this many Sparks.")
@click.option("--cluster", "is_cluster", is_flag=True, help="Split it over this host and all its nodes.")
@options.json_option
def command(
    models: tuple[str, ...],
    compare: bool,
    chart: Path | None,
    host_name: str | None,
    shared: int | None,
    nodes: int | None,
    is_cluster: bool,
    as_json: bool,
    **asked: Any,
) -> int:
    """Show whether MODEL fits and how fast it will be, before any download.

    MODEL is a name from `firesteel models`, a Hub id, a GGUF file, a folder with safetensors, or a
    config.json alone, for which --quant says how the weights are stored. Exits 4 when it does not fit, 3
    when a rule stops it.
    """
    _check_arguments(models, compare, chart)
    ask = Ask(models[0], sparks=nodes, shared_tokens=shared or 0, **asked)
    if compare:
        proposals = plans.plan_side_by_side(models, ask, host_name, on_all_nodes=is_cluster)
        if as_json:
            options.print_json(documents.plans.plan_compare_json(proposals))
        else:
            out.print(compare_view(proposals))
        return plans.exit_code_of(proposals)
    planned = plans.plan_model(ask, host_name, on_all_nodes=is_cluster)
    best, gain = planned.best, planned.over_hosts
    if chart:
        plans.write_chart(best, chart)
    if as_json:
        options.print_json(documents.plans.plan_json(best, planned.others, gain))
    else:
        out.print(plan_view(best, planned.others))
        if gain:
            out.print(f"\n{gain.hosts} hosts    {gain.verdict} ({gain.published})")
        # a command in two lines would not be one
        out.print(typed(f"\nnext: {plans.next_command(planned)}"), soft_wrap=True)
    return best.exit_code


def _check_arguments(models: tuple[str, ...], compare: bool, chart: Path | None) -> None:
    if compare and (len(models) < 2 or chart):
        raise UsageError(
            "--compare takes two or more MODELs and draws no chart", next="firesteel plan --help"
        )
    if len(models) > 1 and not compare:
        raise UsageError("one MODEL at a time", next=f"firesteel plan --compare {' '.join(models)}")
