"""Load generation: prompts of an exact length, timed streams, and the state of the host meanwhile.

It measures one server and yields events. It stores nothing and compares nothing.
"""
