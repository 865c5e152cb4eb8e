"""What a simulated model answers."""
