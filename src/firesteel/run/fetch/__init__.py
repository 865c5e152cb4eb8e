"""Weights and images: what a launch needs, fetching it, and removing what nothing needs.

Nothing is removed that a recipe of the catalog or a running service uses.
"""
