"""Several hosts that serve one model: nodes over ssh, what joins them, ranks with a lease.

`DESIGN.md` has the idea. `nodes`, `add` and `check` are for `cluster add, list, check, remove`; `ranks` and
`up` start a service over several hosts; `runner` is the process that watches it; `agent` and `probe` run on
the nodes. Decisions (`pairs`, `watch`, `ranks`, `topology`) are pure.
"""
