"""Host checks: facts of a host in, findings out. Used by `doctor`, `cluster`, `up`, `ps` and `bench`.

    findings = judge(HostFacts.of(Probe.parse(output)))

Never reads a host: `facts.host.probe` has the script that does, and `edge.host.machine` runs it here.
Public: `findings`, `check` (a check as data, its levels) and `fixes` (what `doctor --fix` would change).
"""
