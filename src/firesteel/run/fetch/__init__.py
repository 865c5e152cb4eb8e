"""Weights and images: what a launch needs, fetching it, and removing what nothing needs."""
