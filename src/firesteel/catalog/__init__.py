"""What is known to work: recipes, the models they serve, the images they run in.

Finds recipes by name and identifies images by their references.
Pure: shipped files are package data and count as code; a user's files come in as (path, text).
Never plans, checks rules or does I/O.
"""
