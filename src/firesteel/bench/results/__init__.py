"""Samples to figures, the history database, and files of runs: our own and those of other tools.

It sends no request: everything here works from samples that were taken before.
"""
