"""Engine logs -> start-up progress, reported memory, and the cause of a failed start.

The log lines that firesteel knows are data, in `data/logs/*.yaml`; `data` is their schema. Never opens a log
file: callers pass text.
"""
