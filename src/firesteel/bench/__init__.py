"""Measure how fast a server is, store the runs, compare them, and search for faster settings.

`bench` sends a known load to an OpenAI endpoint over HTTP and turns the samples into figures with intervals.
It never starts or stops an engine, except in `bench.tune`, which does so through `firesteel.run`. `DESIGN.md`
explains what makes two figures comparable. Import from the sub-packages: `load`, `results`, `compare`,
`tune`, `report`.
"""
