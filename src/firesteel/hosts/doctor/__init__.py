"""`doctor`: examine this host, fix what is wrong with an undo, measure, watch, and bundle it for others.

Reads through `edge.host.probe`, judges by `rules.host`; only `apply.py` changes the host, and what it
changes stands in a journal first.
"""
