"""The traps: rules as data, and what they say of a launch.

`check` holds a launch against every rule; `choose` makes plans that break none. Rules are version-ranged
data with sources (`data/rules/`), each with lines that it must hit and miss. Never reads what a user wrote
(that is `reads`), and never changes a launch.
"""

from firesteel.rules.check import Finding, check
from firesteel.rules.choose import Proposal, insist, propose, propose_checkpoint, service_name
from firesteel.rules.rule import Rule, explain, read_rules, rules

__all__ = [
    "Finding", "Proposal", "Rule", "check", "explain", "insist", "propose", "propose_checkpoint",
    "read_rules", "rules", "service_name",
]  # fmt: skip
