"""From a proposal to a running engine: host checks, exact steps, start, progress.

It starts supervisors, never engines: those are the supervisor's children.
"""
