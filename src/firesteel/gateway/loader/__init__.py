"""Starts and stops models in child processes, so that the gateway's process never loads the planner.

`process.py` and `memory_release.py` run in the gateway, the others only in the child. An `unload` imports
neither `job.py` nor `duration.py`, which load the planner.
"""
