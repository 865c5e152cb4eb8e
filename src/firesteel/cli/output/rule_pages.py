"""`check --explain RULE`: what a rule says, with its examples and sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from firesteel.cli.options import common
from firesteel.cli.output.ci_annotations import filled
from firesteel.library import documents
from firesteel.library.check import explain

if TYPE_CHECKING:
    from firesteel.rules.rule import Rule


def show(pattern: str, as_json: bool) -> None:
    matching = explain(pattern)
    if not as_json:
        click.echo("\n\n".join(_page(rule) for rule in matching))
        return
    rule = matching[0]
    instead = filled(rule.instead) if rule.instead else None
    says = filled(rule.says)
    common.print_json(documents.rules.RuleJson.of(rule, rule=rule.id, says=says, instead=instead))


def _page(rule: Rule) -> str:
    lines = [
        f"{rule.id}  ({rule.level}, {rule.confidence})",
        filled(rule.says),
        *([f"use   {filled(rule.instead)}"] if rule.instead else []),
        *(["fix   firesteel check --fix fixes it"] if rule.fix else []),
        *(f"hit   {line}" for line in rule.hits),
        *(f"miss  {line}" for line in rule.misses),
        *(f"seen  {source.seen}  {source.url}" for source in rule.sources),
    ]
    return "\n".join(lines)
