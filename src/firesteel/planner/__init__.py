"""Ways to serve what was asked for, each planned before anything is downloaded.

`propose` finds the launches for an Ask, best first; `plan` predicts memory and speed of one: counted parts
are exact, estimated parts have a band, and every figure says where it comes from. Pure: what is known of host
and user comes in as values, which `workspace` gathers. Judging a launch is `rules`, changing one is
`catalog.launches`. Public: `propose`, `advice`, `choose`, `plan`, `rendered`; the values in `memory.account`,
`memory.measured`, `speed.speed`, `speed.speculation`, `speed.startup` and `speed.own_runs`; fitted costs in
`speed.decode`, and what others measured in `speed.published`.
"""
