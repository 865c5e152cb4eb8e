"""Several hosts that serve one model: nodes over ssh, what joins them, ranks with a lease.

`DESIGN.md` has the idea. `nodes`, `add`, `check` and `topology` are for `cluster add, list, check, remove`;
`ranks`, `rank_specs`, `stage` and `up` start a service over several hosts; `runner` is the process that
watches it; `agent` and `probe` run on the nodes. `elsewhere` and `on_nodes` run commands and models on one
node. The decisions (`judge_pairs`, `watch`, `ranks`, `topology`) are pure.
"""
