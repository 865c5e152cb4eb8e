"""A server that is wrong, or merely odd, in exactly one named way: what `firesteel verify` is tested against.

`faults.py` and `oddities.py` are the lists, `change.py` the means to write an entry in a line, `server.py`
the proxy that applies one entry to an honest server's answers, `honest.py` those answers.
"""
