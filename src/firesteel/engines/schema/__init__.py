"""Flags, JSON keys and environment variables of every engine release, generated from its sources."""
