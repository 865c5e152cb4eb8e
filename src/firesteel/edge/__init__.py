"""I/O for the planning side: files, processes, containers, HTTP, the Hub, pip, and the host itself.

Decides nothing: what to start, how much memory must be free and what an answer means is settled in the pure
packages. Every failure leaves here as a FiresteelError that says what to type next.
"""
