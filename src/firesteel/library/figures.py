"""Figures of measured runs as text: the same in the terminal and in the HTML report."""

from __future__ import annotations

from firesteel.bench.report.tables import band, client_cost, figure, found_text, load, number

__all__ = ["band", "client_cost", "figure", "found_text", "load", "number"]
