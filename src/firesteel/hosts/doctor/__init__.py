"""`doctor`: examine this host, fix what is wrong with an undo, measure, watch, and bundle it for others.

Reads through `edge.host.machine`, judges by `rules.host`; only `fix` changes the host, and what it
changes is first written to a journal. `nodes` examines several hosts, `measure_rails` measures between them.
"""
