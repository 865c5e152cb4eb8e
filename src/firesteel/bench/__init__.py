"""How fast it is: measured with known load, kept, compared, and made faster by trying.

`DESIGN.md` has the whole. It asks engines over HTTP and starts none itself, but for `tune`, which goes
through `run`.
"""
