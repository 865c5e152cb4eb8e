"""Bytes between clients and engines: HTTP/1.1 on both sides, done strictly.

Knows nothing of memory, models' states or keys: a `Desk` (`gateway/interfaces.py`) says who may and where to.
"""
