"""Rule files: what may stand in them, and where the mistakes are."""

from __future__ import annotations

import sys

import pytest

from firesteel.errors import InvalidFile
from firesteel.rules.rule import read_rules, rules
from firesteel.units import check_range
from firesteel.values import YamlFile

GOOD = """\
rules:
  - id: a-rule
    level: stop
    says: it dies
    when: {engine: vllm, version: ">=0.8.3", flag: x, above: 0.9}
    instead: something else
    confidence: verified
    sources: [{url: https://example.org, seen: 2026-11-15}]
    hits: [vllm serve m --x 1]
    misses: [vllm serve m]
"""


def test_a_good_file() -> None:
    (rule,) = read_rules(YamlFile.parse("rules/a.yaml", GOOD))
    assert (rule.id, rule.when.flag, rule.when.above, rule.unless) == ("a-rule", ("x",), 0.9, ())
    assert str(rule.sources[0].seen) == "2026-11-15"


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("level: stop", "level: die", 3, "should be `stop`, `warn` or `note`, got `die`"),
        ("flag: x,", "flagg: x,", 5, "no such key"),
        ('">=0.8.3"', "0.8.3 up", 5, "should be a version range"),
        ("flag: x, above: 0.9", "above: 0.9", 5, "`above` needs a `flag`"),
        ("above: 0.9", "above: much", 5, "got `much`"),
        (
            'when: {engine: vllm, version: ">=0.8.3", flag: x, above: 0.9}',
            "when: {}",
            5,
            "at least one matcher",
        ),
        ("flag: x", "predicate: nope, flag: x", 5, "no such predicate; there are"),
        ("confidence: verified", "confidence: sure", 7, "confidence"),
        ("[{url: https://example.org, seen: 2026-11-15}]", "[]", 8, "at least 1 item"),
        ("seen: 2026-11-15", "seen: lately", 8, "date"),
        ("hits: [vllm serve m --x 1]", "hits: []", 9, "at least 1 item"),
        ("    misses: [vllm serve m]\n", "", 2, "misses"),
        ("id: a-rule", "id: A Rule", 2, "pattern"),
        ("    level: stop", "    level: stop\n    level: warn", 4, "given twice"),
    ],
)
def test_a_mistake_has_its_line(old: str, new: str, line: int, says: str) -> None:
    assert old in GOOD
    with pytest.raises(InvalidFile) as caught:
        read_rules(YamlFile.parse("rules/a.yaml", GOOD.replace(old, new)))
    assert f"rules/a.yaml:{line}: " in caught.value.what
    assert says in caught.value.what
    assert caught.value.next.startswith("correct rules/a.yaml")


def test_two_rules_of_one_name() -> None:
    with pytest.raises(InvalidFile, match=r"rules/a.yaml:11: there are two rules `a-rule`"):
        read_rules(YamlFile.parse("rules/a.yaml", GOOD + GOOD.removeprefix("rules:\n")))


def test_no_shipped_range_needs_packaging_specifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it takes as long as a fifth of a check."""
    monkeypatch.setitem(sys.modules, "packaging.specifiers", None)
    whens = (when for rule in rules() for when in (rule.when, *rule.also, *rule.unless))
    assert [when.version for when in whens if when.version and check_range(when.version)]
