"""Search for faster settings: start a candidate, verify it, measure it, and keep the best as a recipe.

Engines are started and stopped through `firesteel.run` only, and what ran before runs again at the end.
"""
