"""Docker through its command line."""
