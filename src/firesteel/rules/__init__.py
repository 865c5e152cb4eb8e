"""The traps: rules as data, and what they say of a launch.

`check` holds a launch against every rule, `lint` a whole text; `choose` makes plans that break none. Rules
are version-ranged data with sources (`data/rules/`), each with lines that it must hit and miss. Never changes
a launch; a fix changes the text that it was read from, and is proved by reading that again.
"""

from firesteel.rules.allow import NoReason
from firesteel.rules.check import Finding, check
from firesteel.rules.compatibility import CompatibilityRow, CompatibilityTable, SupportRange, compatibility
from firesteel.rules.context import visible
from firesteel.rules.lint import (
    LintOptions,
    LintResult,
    apply_fixes,
    engine_version,
    known_patterns,
    lint,
    release,
)
from firesteel.rules.propose import Proposal, after, insist, propose, propose_checkpoint, service_name
from firesteel.rules.rule import Level, Rule, explain, read_rules, rules

__all__ = [
    "CompatibilityRow",
    "CompatibilityTable",
    "Finding",
    "Level",
    "LintOptions",
    "LintResult",
    "NoReason",
    "Proposal",
    "Rule",
    "SupportRange",
    "after",
    "apply_fixes",
    "check",
    "compatibility",
    "engine_version",
    "explain",
    "insist",
    "known_patterns",
    "lint",
    "propose",
    "propose_checkpoint",
    "read_rules",
    "release",
    "rules",
    "service_name",
    "visible",
]  # fmt: skip
