"""A run as an HTML page with charts."""
