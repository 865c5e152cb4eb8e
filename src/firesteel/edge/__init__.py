"""The doors to the world: files, processes, HTTP, pip, the machine itself. Nothing else touches it.

Decides nothing: what to start, how much must be free and what an answer means is settled in the pure
rooms. Every failure leaves here as a FiresteelError that says what to type next.
"""
