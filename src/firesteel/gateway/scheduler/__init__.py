"""Decides which requests run, which requests wait, and which models are loaded or evicted.

Pure: `Scheduler.handle(event, now_s)` returns the effects for the executor (`gateway/executor.py`) to carry
out; it never reads a clock, waits or does I/O. `scheduler` decides, `capacity` knows what fits,
`model_state` is one model, `events` has events and effects.
"""
