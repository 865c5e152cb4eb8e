"""Starts and stops models in child processes, so that the gateway's process never loads the planner.

`process.py` runs in the gateway; `job.py` and `duration.py` run only in the child.
"""
