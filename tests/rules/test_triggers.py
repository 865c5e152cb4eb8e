"""Rules are looked up by what a launch has, and none that matches is missed."""

from __future__ import annotations

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import identify
from firesteel.reads.launches import read
from firesteel.rules.context import Context
from firesteel.rules.match import matches
from firesteel.rules.predicates import PREDICATES
from firesteel.rules.rule import rules
from firesteel.rules.triggers import _PREDICATES, RuleIndex, names

IMAGES = shipped().images
EXAMPLES = sorted({line for rule in rules() for line in (*rule.hits, *rule.misses)})
LAUNCH_RULES = [rule for rule in rules() if not rule.when.across]
INDEX = RuleIndex(LAUNCH_RULES)


def contexts(text: str) -> list[Context]:
    found = []
    for reading in read(text, "run.sh", IMAGES):
        container = reading.launch.container
        image = identify(container.image, IMAGES) if container else None
        flaws = frozenset(key[5:] for key in reading.spots if key.startswith("flaw:"))
        found.append(Context(reading.launch, "gb10", image, flaws, program=reading.spots["program"].text))
    return found


def test_every_rule_that_matches_an_example_is_looked_up() -> None:
    for context in (context for line in EXAMPLES for context in contexts(line)):
        tried = {rule.id for rule in INDEX.find(names(context))}
        missed = [rule.id for rule in LAUNCH_RULES if rule.id not in tried and matches(rule, context)]
        assert not missed, context.launch


def test_every_predicate_with_a_trigger_exists() -> None:
    assert _PREDICATES.keys() <= PREDICATES.keys()


def test_a_bare_launch_has_few_rules() -> None:
    (context,) = contexts("vllm serve org/m")
    assert len(list(INDEX.find(names(context)))) < len(LAUNCH_RULES) / 4
