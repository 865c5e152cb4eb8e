"""Maintainers' tools: fit the speed model to published runs, and tabulate model sizes for the
documentation.

`scripts/calibrate` and `scripts/make-docs` import it; it does not ship with the `firesteel` package. It
reads the package's data and returns text and values. The scripts write the files.
"""
