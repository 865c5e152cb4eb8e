"""Every rule's own examples, run through the reader as a user would paste them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import identify
from firesteel.engines.engine import grammar
from firesteel.errors import UsageError
from firesteel.reads.launches import read
from firesteel.rules.checker import check, matches
from firesteel.rules.context import Context
from firesteel.rules.linter import LintOptions, lint
from firesteel.rules.rule import Rule, When, explain, rules
from firesteel.values import replace

RULES = rules()
HITS = [(rule, line) for rule in RULES for line in rule.hits]
MISSES = [(rule, line) for rule in RULES for line in rule.misses]


def found(line: str) -> dict[str, str]:
    linted = lint(line, "line", LintOptions(shipped().images, "gb10"))
    assert linted.launches
    return {finding.rule: finding.level for finding in linted.findings}


@pytest.mark.parametrize(("rule", "line"), HITS, ids=[f"{rule.id}: {line[:60]}" for rule, line in HITS])
def test_hits(rule: Rule, line: str) -> None:
    assert rule.id in found(line)


@pytest.mark.parametrize(("rule", "line"), MISSES, ids=[f"{rule.id}: {line[:60]}" for rule, line in MISSES])
def test_misses(rule: Rule, line: str) -> None:
    assert rule.id not in found(line)


def thinner(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """The rule without one of its matchers. Engine and hardware are the same in all its examples."""
    about_the_flag = {"bare", "value", "other_than", "above", "up_to", "number", "key"}
    for gone in rule.when.given - {"engine", "hardware"}:
        out = {gone} | (about_the_flag if gone == "flag" else set())
        kept = {name: getattr(rule.when, name) for name in rule.when.given - out}
        if kept:
            yield gone, replace(rule, when=When(**kept))
    if rule.also:
        yield "also", replace(rule, also=())
    if rule.unless:
        yield "unless", replace(rule, unless=())
    for flag, when in without_a_flag(rule.when):
        yield f"flag: {flag}", replace(rule, when=when)
    for field in ("also", "unless"):
        whens: tuple[When, ...] = getattr(rule, field)
        for at, when in enumerate(whens):
            for flag, changed in without_a_flag(when):
                yield f"{field}: {flag}", replace(rule, **{field: (*whens[:at], changed, *whens[at + 1 :])})


def without_a_flag(when: When) -> Iterator[tuple[str, When]]:
    """The matchers without one of several flags: each of them needs an example of its own."""
    flags = when.flag or ()
    for gone in flags if len(flags) > 1 else ():
        kept = tuple(flag for flag in flags if flag != gone)
        yield gone, When(**{name: getattr(when, name) for name in when.given} | {"flag": kept})


def holds(rule: Rule, line: str) -> bool:
    images = shipped().images
    (launch,) = (reading.launch for reading in read(line, "line", images))
    image = identify(launch.container.image, images) if launch.container else None
    return bool(matches(rule, Context(launch, "gb10", image)))


@pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
def test_every_matcher_is_needed(rule: Rule) -> None:
    for gone, changed in thinner(rule):
        right = all(holds(changed, line) for line in rule.hits)
        right = right and not any(holds(changed, line) for line in rule.misses)
        assert not right, f"no example of {rule.id} needs its `{gone}`"


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.when.hardware], ids=lambda rule: rule.id)
def test_rules_about_a_machine_miss_others(rule: Rule) -> None:
    for line in rule.hits:
        (launch,) = (reading.launch for reading in read(line, "line", shipped().images))
        assert rule.id not in {finding.rule for finding in check(launch, hardware="h100")}


@pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
def test_flags_of_rules_can_be_abbreviated(rule: Rule) -> None:
    """A flag that the grammar does not know would be missed where somebody types its beginning."""
    for when in (rule.when, *rule.also, *rule.unless):
        known = grammar(rule.when.engine).abbreviable if rule.when.engine else frozenset()
        # dead since 0.8.3, and `--speculative` must stay short for `--speculative-config`
        unknown = set(when.flag or ()) - known - {"speculative-disable-by-batch-size"}
        assert not known or not unknown, f"{unknown}: no release of {rule.when.engine} has such a flag"


def test_ids_are_unique_and_can_be_explained() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES) >= 12
    assert explain("vllm-entrypoint-twice").level == "stop"
    with pytest.raises(UsageError, match="no rule `nope`"):
        explain("nope")


@pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
def test_stops_are_certain_and_say_what_to_write(rule: Rule) -> None:
    assert rule.instead
    if rule.level == "stop":
        assert rule.confidence in ("verified", "reported")
