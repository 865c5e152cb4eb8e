"""I/O for the planning side: files, processes, containers, HTTP, the Hub, pip, and the host itself.

The planning side (facts, engines, catalog, reads, rules, planner, proposals, render) does no I/O: what it
needs to know is read here and passed in. `run`, `bench`, `gateway` and `cli` also do I/O of their own, with
processes, sockets and SQLite; `tests/test_structure.py` lists who may.

`home` is FIRESTEEL_HOME, `files` are the user's; `measured_memory`, `records` and `learned_engines` keep what
was found out, `checkpoints` and `contents` open models; `ssh` reaches other hosts. Packages: `host`, `http`,
`docker`, `hub`, `programs` (engines without a container) and `sim` (a simulated Spark). Nothing is exported
here: a supervisor imports a few of these modules and stays small.

Decides nothing: what to start, how much memory must be free and what an answer means is settled in the pure
packages. Every failure leaves here as a FiresteelError that says what to type next.
"""
