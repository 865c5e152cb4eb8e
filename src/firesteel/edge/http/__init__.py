"""HTTP clients: `sync_client` for small GETs with a byte limit and a deadline, `engine_client` (asynchronous)
for an engine's API, `sse` for event streams, `poll` for the supervisor's health checks.

Never serves HTTP: that is `gateway` and, for simulated engines, `edge.sim`.
"""
