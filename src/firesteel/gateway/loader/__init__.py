"""Starts and stops models in child processes, so that the gateway's process never loads the planner.

`process.py` runs in the gateway, the others only in the child. An `unload` does not import `job.py`, which
loads the planner: the next model waits for it.
"""
