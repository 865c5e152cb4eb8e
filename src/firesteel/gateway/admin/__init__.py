"""The control API, metrics, and the request log."""
