"""`firesteel choose`: the answer, its figures with their sources, the alternatives; and claims of guides."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.cli.output.show import Row, grid, out, table, terms_rows
from firesteel.errors import UsageError
from firesteel.launch import Matter, Who
from firesteel.library import documents, plans

if TYPE_CHECKING:
    from firesteel.planner.choose import Candidate, Choice, GuideClaim


_LENGTHS = {"line": 300, "page": 2000, "file": 16_000, "repository": 100_000, "book": 200_000}
"""What people know of their prompts, in tokens."""


class _PromptLength(click.ParamType[int]):
    name = "length"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return _LENGTHS.get(value) or options.TOKENS.convert(value, param, ctx)


@click.command("choose")
@click.option("--who", type=click.Choice(get_args(Who)), help="Say who uses it.")
@click.option(
    "--prompt",
    type=_PromptLength(),
    metavar="LENGTH",
    help=f"Say how long prompts are: {', '.join(_LENGTHS)}, or tokens as 30k.",
)
@click.option("--matters", type=click.Choice(get_args(Matter)), help="Say what matters most.")
@click.option("--users", type=click.IntRange(1, 1024), help="Number of users at once (default: by --who).")
@click.option("--takes", type=click.Choice(("image", "video", "audio")), help="Require that it takes this.")
@click.option("--guides", is_flag=True, help="Hold the tables of two known guides against our plans.")
@options.host_option
@options.json_option
def command(
    who: Who | None,
    prompt: int | None,
    matters: Matter | None,
    users: int | None,
    takes: str | None,
    guides: bool,
    host_name: str | None,
    as_json: bool,
) -> None:
    """Choose engine, model, quantization and recipe for a use, with two alternatives and why.

    Three questions: who uses it, how long prompts are, what matters. What no option says is asked for on a
    terminal.
    """
    if guides:
        claims = plans.guide_claims(plans.host(host_name or "gb10"))
        if as_json:
            options.print_json(documents.plans.ChooseGuidesJson.of(claims=claims))
        else:
            out.print(guides_view(claims))
        return
    if sys.stdin.isatty() and not as_json:
        who = who or _answer("Who uses it?", get_args(Who))
        prompt = prompt or _LENGTHS[_answer("How long are prompts?", _LENGTHS)]
        matters = matters or _answer("What matters most?", get_args(Matter))
    if who is None or prompt is None or matters is None:
        raise UsageError(
            "three things must be known: who uses it, how long prompts are, what matters",
            next="firesteel choose --who agent --prompt 30k --matters speed",
        )
    choice = plans.choose_for(who, prompt, matters, users=users, takes=takes, host_name=host_name)
    if as_json:
        options.print_json(documents.plans.choice_json(choice))
        return
    out.print(choice_view(choice))
    size = choice.best.proposal.plan.cache
    sizes = f"--context {size.context} --users {size.users}"
    where = f" --host {host_name}" if host_name else ""
    command = "plan" if host_name else "up"
    out.print(typed(f"\nnext: firesteel {command} {choice.best.name} {sizes}{where}"), soft_wrap=True)


def _answer(question: str, answers: Iterable[str]) -> Any:
    names = tuple(answers)
    return click.prompt(question, type=click.Choice(names), default=names[0], err=True)


# --- as text ---


_AGREES = {True: Text("agrees", style="green"), False: Text("differs", style="yellow"), None: Text("-")}


def choice_view(choice: Choice) -> Group:
    best = choice.best
    rows: list[Row] = [
        ("for", _use_row(choice)),
        ("engine", _engine(best)),
        ("model", best.proposal.plan.launch.model),
    ]
    found = best.proposal.recipe
    recipe = f"{found.title} ({found.status})" if found else best.name
    rows += [("weights", best.quantization), ("recipe", recipe), ("why", best.why)]
    if best.proposal.model:
        rows += terms_rows(best.proposal.model)
    views: list[RenderableType] = [Text(best.name, style="bold"), grid(rows), Text(), _figures(best)]
    for other in choice.others:
        views += [Text(), Text.assemble(("or ", "dim"), (other.name, "bold"), f"  {_engine(other)}, "
                                        f"{other.quantization}: {other.why}"), _figures(other)]  # fmt: skip
    views += [Text(), Text(f"{len(choice.left_out)} recipes were left out; --json says why", style="dim")]
    return Group(*views)


def _use_row(choice: Choice) -> str:
    ask = choice.use.ask
    cached = f", {ask.shared_tokens:,} of them cached," if ask.shared_tokens else ""
    users = f"{ask.users} at once" if (ask.users or 1) > 1 else "one at a time"
    return f"prompts of {ask.prompt_tokens:,} tokens{cached} and answers of {ask.answer_tokens:,}, {users}"


def _engine(candidate: Candidate) -> str:
    launch = candidate.proposal.plan.launch
    return f"{launch.engine} {launch.version or ''}".rstrip()


def _figures(candidate: Candidate) -> Table:
    return table(
        ("figure", "value", "basis", "source"),
        [
            (figure.what, figure.value, figure.basis, Text(figure.source, style="dim"))
            for figure in candidate.figures
        ],
    )


def guides_view(claims: Iterable[GuideClaim]) -> Table:
    """Each claim, what our plan says, and why where that differs."""
    return table(
        ("claim", "our plan", "verdict", "why"),
        [
            (claim.says, claim.ours, _AGREES[claim.agrees], Text(claim.why or "", style="dim"))
            for claim in claims
        ],
    )
