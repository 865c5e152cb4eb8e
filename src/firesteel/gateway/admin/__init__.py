"""Status, metrics and control of a running gateway, and its request log.

Reads the state of the dispatcher and passes actions to it; never changes the state of a model itself, and
never stores a prompt unless asked to.
"""
