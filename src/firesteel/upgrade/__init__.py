"""Change the release of an engine under a model: try the other one, prove it, compare it, switch or keep.

`verdict.py` decides (pure) whether a candidate may take the place of what runs; `trial.py` measures two
services against each other for it; `upgrade.py` does both for a model that runs, and goes back again.
Which release a model uses is a file under FIRESTEEL_HOME (`edge.files.chosen_releases`) that every plan
reads, so `up`, `serve` and a restart after a crash use the same one. The image factory compares by the same
rules, and never changes what runs.
"""
