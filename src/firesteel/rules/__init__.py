"""Known mistakes as data, and the findings they give for a launch.

`check` checks a launch against every rule, `lint` a whole text.
Rules are version-ranged data with sources (`data/rules/`), each with examples that it must hit and miss.
Rules never modify a launch; a fix edits the text that it was read from, and is verified by
reading that again.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.rules.allow import NoReason
    from firesteel.rules.checker import Finding, check
    from firesteel.rules.compatibility_tables import (
        CompatibilityTable,
        SupportRange,
        compatibility,
    )
    from firesteel.rules.linter import (
        LintOptions,
        LintResult,
        apply_fixes,
        engine_version,
        known_patterns,
        lint,
        machine_to_check,
        release,
    )
    from firesteel.rules.rule import Level, Rule, explain, read_rules, rules
else:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(__name__)
