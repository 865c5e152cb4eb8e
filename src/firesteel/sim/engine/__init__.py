"""A simulated engine: its boot log, its continuous batching, its HTTP server and metrics."""
