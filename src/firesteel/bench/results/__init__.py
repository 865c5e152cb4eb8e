"""Samples -> figures; the history; import and export."""
