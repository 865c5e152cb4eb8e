"""This machine: memory, GPUs, kernel log, processes; or a simulated Spark where FIRESTEEL_SIM is set.

`machine` is this host as a Host, with what `doctor` probes and measures; `memory` is its memory now,
`process` its processes; `nvidia_smi` asks the driver, `signals` end work in order. `reaper` runs as a
program. Reads and reports; never judges whether a host is good enough: that is `hosts` and `run`.
"""
