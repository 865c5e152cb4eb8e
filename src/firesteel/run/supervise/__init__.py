"""The supervisor process: runs an engine, restarts it, guards the host's memory, detects hangs.

The decisions (`guard`, `hang`, `restart`) are pure; `supervisor` does the I/O. It stays small, because it
lives as long as its model: no planner, no HTTP client library.
"""
