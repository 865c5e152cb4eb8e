"""HTTP clients: `sync_client` for small GETs with a byte limit and a deadline and for the supervisor's polls,
`engine_client` (asynchronous) for an engine's API, `answer` for what comes back, whole or as an event stream.

Never serves HTTP: that is `gateway` and, for simulated engines, `edge.sim`.
"""
