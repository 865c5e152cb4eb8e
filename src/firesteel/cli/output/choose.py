"""A choice as text: the answer, its figures with their sources, the alternatives; and claims of guides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from firesteel.cli.output.recipe_rows import Row, terms_rows
from firesteel.cli.output.show import grid, table

if TYPE_CHECKING:
    from firesteel.planner.choose import Candidate, Choice, GuideClaim

_AGREES = {True: Text("agrees", style="green"), False: Text("differs", style="yellow"), None: Text("-")}


def choice_view(choice: Choice) -> Group:
    best = choice.best
    rows: list[Row] = [
        ("for", _use(choice)),
        ("engine", _engine(best)),
        ("model", best.proposal.plan.launch.model),
    ]
    rows += [("weights", best.quantization), ("recipe", _recipe(best)), ("why", best.why)]
    if best.proposal.model:
        rows += terms_rows(best.proposal.model)
    views: list[RenderableType] = [Text(best.name, style="bold"), grid(rows), Text(), _figures(best)]
    for other in choice.others:
        views += [Text(), Text.assemble(("or ", "dim"), (other.name, "bold"), f"  {_engine(other)}, "
                                        f"{other.quantization}: {other.why}"), _figures(other)]  # fmt: skip
    views += [Text(), Text(f"{len(choice.left_out)} recipes were left out; --json says why", style="dim")]
    return Group(*views)


def _use(choice: Choice) -> str:
    ask = choice.use.ask
    cached = f", {ask.shared_tokens:,} of them cached," if ask.shared_tokens else ""
    users = f"{ask.users} at once" if (ask.users or 1) > 1 else "one at a time"
    return f"prompts of {ask.prompt_tokens:,} tokens{cached} and answers of {ask.answer_tokens:,}, {users}"


def _engine(candidate: Candidate) -> str:
    launch = candidate.proposal.plan.launch
    return f"{launch.engine} {launch.version or ''}".rstrip()


def _recipe(candidate: Candidate) -> str:
    recipe = candidate.proposal.recipe
    return f"{recipe.title} ({recipe.status})" if recipe else candidate.name


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
