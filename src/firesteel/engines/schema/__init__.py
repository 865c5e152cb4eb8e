"""Flags, JSON keys and environment variables of every engine release, generated from its sources.

`releases` answers what a release accepts; `symbols` finds the flag that an argument means. `history` is the
file format; `sources` parses the Python sources of a release, which are never executed, and `arguments` reads
the flags that they add.
"""
