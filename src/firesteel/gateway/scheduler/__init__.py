"""Decides which requests run, which wait, and which models are loaded or evicted.

Pure: `Scheduler.handle(event, now_s)` returns effects; it never reads a clock, waits or does I/O. The
executor (`gateway/executor.py`) drives it.
"""
