"""Engines without a container: find the programs of this machine and ask each for its release.

`programs` finds an engine where the user said, among those under FIRESTEEL_HOME, in PATH and in the active
virtual environment. `installed` knows what `firesteel engine` put under FIRESTEEL_HOME. Neither starts a
server.
"""
