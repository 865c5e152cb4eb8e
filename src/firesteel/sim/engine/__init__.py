"""A simulated engine: boot log, batching, HTTP server and metrics."""
