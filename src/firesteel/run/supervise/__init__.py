"""The supervisor process: runs an engine, restarts it, guards the host's memory, detects hangs.

The decisions (`guard`, `hang`, `exits`) are pure; `supervisor` and `monitor` do the I/O, and write through
`disk_writer`. It stays small, because it lives as long as its model: no planner, no HTTP client library.
"""
