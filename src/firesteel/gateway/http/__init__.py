"""HTTP/1.1 between clients and engines, parsed strictly and forwarded with as little work as possible.

It knows nothing about the memory of the host, the states of models or keys: a `Dispatcher`
(`gateway/interfaces.py`) decides who may send a request and where it goes.
"""
