"""`firesteel plan MODEL`"""

from __future__ import annotations

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.fill import plan_json
from firesteel.cli.show import out, plan_view
from firesteel.launch import Ask


@click.command("plan")
@click.argument("model")
@words.host_option
@words.size_options
@words.json_option
def command(
    model: str, host_name: str | None, context: int | None, users: int | None, port: int | None, as_json: bool
) -> int:
    """Does MODEL fit, and how fast will it be, before any download.

    MODEL is a name from `firesteel models`, a Hub id, a GGUF file or a folder with safetensors.
    Exits 4 when it does not fit, 3 when a rule stops it.
    """
    ask = Ask(model, context, users, port)
    best, *rest = library.propose(ask, library.host(host_name))
    others = tuple(each.name for each in rest)
    if as_json:
        words.print_json(plan_json(best, others))
    else:
        out.print(plan_view(best, others))
    if not best.plan.fits:
        return 4
    return 3 if best.stops else 0
