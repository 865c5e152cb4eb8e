"""Measure how fast a server is, store the runs, compare them, and search for faster settings or releases.

`bench` sends a known load to an OpenAI endpoint over HTTP and turns the samples into figures with intervals.
It never starts or stops an engine, except in `tune` and `upgrade`, which do so through `firesteel.run`.
`DESIGN.md` explains what makes two figures comparable. Import from `measurements` (the values that all parts
exchange) and from the modules of `load`, `results`, `compare`, `report`, `tune` and `upgrade`.
"""
