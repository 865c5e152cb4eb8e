"""Curves: what the gateway measured over the last 15 minutes, 24 hours and 30 days, in `curves.db`.

Every five seconds the sampler compares the meter's counters with those of the last time, asks the engines
and the GPU, and writes one row a model. The path of a request is not touched. Never decides anything.
"""
