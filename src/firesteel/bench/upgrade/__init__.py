"""Change the release of an engine under a model: try the other one, verify it, compare it, switch or keep.

`trial` measures a candidate against what it would replace, and decides whether it may take its place;
`upgrade` does so for a model that runs, and goes back again; `result` loads nothing of that. Which release a
model uses is a file under FIRESTEEL_HOME (`edge.home`) that every plan reads, so `up`,
`serve` and a restart after a crash use the same one. The image factory compares by the same rules, and never
changes what runs.
"""
