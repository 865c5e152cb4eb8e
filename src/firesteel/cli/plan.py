"""`firesteel plan MODEL`: its words, and the answer, kept from the last time or worked out."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any, get_args

import click

from firesteel.cli.options import common
from firesteel.edge import kept
from firesteel.edge.files.home import find_home
from firesteel.edge.model_reference import is_path
from firesteel.launch import EngineName, Goal


@click.command("plan")
@click.argument("models", metavar="MODEL", nargs=-1, required=True)
@click.option("--compare", is_flag=True, help="Two or more MODELs side by side.")
@click.option("--goal", type=click.Choice(get_args(Goal)), help="What to choose the way by.")
@click.option("--chart", metavar="FILE.svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw it.")
@common.host_option
@common.size_options
@click.option("--engine", type=click.Choice(get_args(EngineName)), help="Only ways through this engine.")
@click.option("--engine-version", "version", metavar="VERSION", help="Figures as this release gives them.")
@click.option("--quant", metavar="NAME", help="How a config's weights are stored: nvfp4, fp8, q4_k_m, ...")
@click.option("--weights-bytes", type=click.IntRange(1, 2**50), help="Their sum, in place of an assumed one.")
@click.option("--kv-cache-dtype", metavar="TYPE", help="fp8, auto, q8_0, ...")
@click.option(
    "--kv-cache-memory-bytes", type=click.IntRange(1, 2**50), help="The engine's figures for this cache."
)
@click.option("--nodes", type=click.IntRange(1, 8), help="Sparks to split it over.")
@common.json_option
def command(**asked: Any) -> int:
    """Does MODEL fit, and how fast will it be, before any download.

    MODEL is a name from `firesteel models`, a Hub id, a GGUF file, a folder with safetensors, or a
    config.json alone, for which --quant says how the weights are stored. Exits 4 when it does not fit, 3
    when a rule stops it.
    """
    home = find_home()
    name = kept.name(asked, home) if _may_be_kept(asked) else None
    found = kept.recall(home, name) if name else None
    if found is None:
        found = _worked_out(asked)
        if name and found.lasts:
            kept.keep(home, name, found)
    click.echo(found.text, nl=False, color=True)  # it has the colours that it should have
    return found.code


def _worked_out(asked: dict[str, Any]) -> kept.Answer:
    """Loading what a plan needs takes longer than planning."""
    gc.disable()  # the process ends with its answer; a tenth of the time would go on finding no garbage
    from firesteel.cli.planning import answer  # not for an answer that is kept

    return answer(**asked)


def _may_be_kept(asked: dict[str, Any]) -> bool:
    """A name, for a machine of the data. What lies on disk may be anything by now, and so may this host."""
    return asked["host_name"] is not None and not any(map(is_path, asked["models"]))
