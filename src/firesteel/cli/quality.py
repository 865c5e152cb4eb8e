"""`firesteel compare --quality`: asks two servers the same, and shows how their answers differ."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from firesteel.cli.options import common
from firesteel.cli.output.show import err, out
from firesteel.errors import printable
from firesteel.library import documents
from firesteel.library.bench import ask_both
from firesteel.library.run import environment_key

if TYPE_CHECKING:
    from firesteel.bench.compare.servers import QualityComparison
    from firesteel.bench.measurements import MeasuredFigure


def compare_answers(names: Sequence[str], options: Mapping[str, Any], as_json: bool) -> int:
    found = asyncio.run(_ask(names, options))
    if as_json:
        common.print_json(documents.bench.CompareQualityJson.of(comparison=found))
    else:
        _show(found)
    return 0


async def _ask(names: Sequence[str], options: Mapping[str, Any]) -> QualityComparison:
    first, second = names
    events = ask_both(
        first, second, model=options["model"], key=environment_key(), budget_s=options["budget"],
        answer_tokens=next(iter(options["answer"]), None),
    )  # fmt: skip
    async for event in events:
        if not isinstance(event, int):
            return event
        if event % 10 == 0:
            err.print(f"asked {event} prompts ...")
    raise AssertionError("the last event is the comparison")


def _show(found: QualityComparison) -> None:
    score = found.questions
    lines = [
        ("answers", f"{_share(found.agreement)} are equal word for word at temperature 0"),
        (
            "until apart",
            f"{_share(found.tokens_until_apart)} of the tokens" if found.tokens_until_apart else "",
        ),
        ("KL", f"{_number(found.kl)} nats per token, B from A" if found.kl else ""),
        (
            "next token",
            f"{_share(found.top_token_agreement)} the same likeliest one"
            if found.top_token_agreement
            else "",
        ),
        (
            "questions",
            f"A {_share(score.first)}, B {_share(score.second)} right; {score.only_first} only by A, "
            f"{score.only_second} only by B",
        ),
        ("verdict", score.verdict + (f", p = {score.p:.3f}" if score.verdict != "cannot tell" else "")),
    ]
    names = f"A {printable(found.first)}, B {printable(found.second)}"
    out.print(f"{names}: {found.prompts} prompts")
    for name, text in lines:
        if text:
            out.print(f"{name:<12} {text}")
    for ask, first, second in found.differing[:2]:
        out.print(f"differs      {printable(ask, 100)}")
        out.print(f"  A          {printable(first, 100)}")
        out.print(f"  B          {printable(second, 100)}")
    for note in found.notes:
        out.print(f"note         {note}")


def _share(figure: MeasuredFigure) -> str:
    low, high = max(0.0, figure.low), min(1.0, figure.high)
    return f"{figure.value:.1%} ({low:.1%} to {high:.1%}, n {figure.n})"


def _number(figure: MeasuredFigure) -> str:
    return f"{figure.value:.4f} ({max(0.0, figure.low):.4f} to {figure.high:.4f}, n {figure.n})"
