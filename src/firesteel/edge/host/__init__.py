"""This machine: memory, GPUs, kernel log, processes; or a simulated Spark where FIRESTEEL_SIM is set.

Reads and reports; never judges whether a host is good enough: that is `hosts` and `run`.
"""
