"""`firesteel upgrade MODEL`"""

from __future__ import annotations

import asyncio

import click

from firesteel.cli.options import json_option, one, print_json, seconds
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.progress import last_of, told_on_interrupt
from firesteel.cli.output.show import err, line
from firesteel.errors import UsageError
from firesteel.library import run
from firesteel.library.run import UpgradeOptions, UpgradeResult


@click.command("upgrade")
@click.argument("model", required=False)
@click.option("--to", metavar="RELEASE", help="This release: a version, an image, or the path of an engine.")
@click.option("--rollback", "goes_back", is_flag=True, help="Go back to the release before the last upgrade.")
@click.option(
    "--answers",
    type=click.Choice(["equal", "as-good"]),
    default="equal",
    show_default=True,
    help="At temperature 0: the same words, or as many right answers.",
)
@click.option(
    "--budget",
    default="4m",
    show_default=True,
    metavar="TIME",
    callback=one(seconds),
    help="Measure both for this long.",
)
@click.option("--unmeasured", is_flag=True, help="Switch once the candidate is verified, without measuring.")
@json_option
def command(
    model: str | None,
    to: str | None,
    goes_back: bool,
    answers: str,
    budget: float,
    unmeasured: bool,
    as_json: bool,
) -> int:
    """Try another release of the engine next to a running MODEL; switch if it is as good, else keep.

    Without --to the newest release is tried: of the image in its registry, of the embedded engine on PyPI, of
    the programs that `firesteel engine` installed. The candidate starts next to the model, or after it where
    both do not fit, is verified and measured against it. Clients of the gateway wait during the switch and
    see no error. The choice holds for every later start.

    \b
    Exits 0  switched, or there is no newer release
          3  the candidate was refused, and the model runs as before
    """
    if goes_back and to:
        raise UsageError("--rollback goes back, and --to names a release", next="give one of them")
    options = UpgradeOptions(to, "as_good" if answers == "as-good" else "equal", budget, not unmeasured)
    again = f"firesteel up {model or 'MODEL'}"
    events = run.roll_back_model(model) if goes_back else run.upgrade_model(model, options)
    with told_on_interrupt(f"firesteel ps says what runs; if it was switching, {again} starts it"):
        result = asyncio.run(last_of(events, UpgradeResult))
    if as_json:
        print_json(result)
    else:
        _show(result)
    return 3 if result.outcome == "kept" else 0


def _show(result: UpgradeResult) -> None:
    name = result.model
    if result.outcome == "newest":
        line(f"{name} runs on {result.before}; there is no newer release")
        return
    did = "switched to" if result.outcome == "switched" else "stays on"
    line(f"{name} {did} {result.after}")
    for reason in result.reasons:
        line(f"  {'because' if result.outcome == 'switched' else 'refused'}  {result.tried}: {reason}")
    for figure in result.figures:
        line(f"  measured {figure}")
    if result.outcome == "switched":
        hint = f"firesteel upgrade {name} --rollback, if you want {result.before} again"
    elif any("answers changed" in reason for reason in result.reasons):
        hint = f"firesteel upgrade {name} --answers as-good, if other words will do"
    elif any("too few" in reason for reason in result.reasons):
        hint = f"firesteel upgrade {name} --to {result.tried.version if result.tried else ''} --budget 15m"
    else:
        hint = f"firesteel logs {name}{'-next' if result.how == 'beside' else ''}"
    err.print(typed(f"next: {hint}"), soft_wrap=True)
