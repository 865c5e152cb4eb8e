"""The embedded engine (xllamacpp) and its weights, and engines' sources, all downloaded with pip.

Never imports an engine into this process: `server.py` runs in the engine's own environment.
"""
