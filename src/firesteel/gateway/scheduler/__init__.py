"""Decides which of the requests run, which wait, and which models are loaded or evicted.

Pure: `Scheduler.handle(event, now_s)` returns the effects for the executor (`gateway/executor.py`) to carry
out; it never reads a clock, waits or does I/O. `scheduler.py` decides, `capacity.py` knows what fits,
`model_state.py` is one model, `events.py` has events and effects.
"""
