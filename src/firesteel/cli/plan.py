"""`firesteel plan MODEL`"""

from __future__ import annotations

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.fill import plan_json
from firesteel.cli.show import out, plan_view
from firesteel.cli.typed import typed
from firesteel.launch import Ask
from firesteel.rules import Proposal


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
        out.print(typed(f"\nnext: {_next(best, model)}"))
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
