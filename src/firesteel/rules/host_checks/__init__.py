"""Host checks: facts of a host in, findings out. Used by `doctor`, `cluster`, `up`, `ps` and `bench`.

    findings = judge(host_facts(parse_probe(output)))

Never reads a host: `facts.host.probe` has the script that does, and `edge.host.probe` runs it here.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.rules.host_checks.check import HostCheck, host_check, host_checks
    from firesteel.rules.host_checks.findings import WATCHED_CHECKS, HostFinding, judge, judge_one, worst
    from firesteel.rules.host_checks.parity import NodeDifference, differences
    from firesteel.rules.host_checks.verdict import BAD, CheckLevel
else:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(__name__)
