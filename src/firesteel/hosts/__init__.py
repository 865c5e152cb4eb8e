"""Hosts: what `doctor` checks, fixes and measures on one machine, and what `cluster` does over several.

Facts about a host are values of `facts.host`, read by `edge`; judgements over them are pure and stand in
`rules`, so that preflight, `ps` and `bench` use the same ones. This package applies fixes with their undo,
measures, and reaches other hosts over ssh. It never plans, and a service over several hosts is started by the
stages of `run.up`. Import names from their modules: `doctor` on one host needs no ssh.
"""
