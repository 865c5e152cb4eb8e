"""What things are: hardware, hosts, model architectures, tensors and the headers that name them.

Pure: bytes and text in, values out. A fact has a source; what is not known is None, never a guess.
Never reads a file of the user, the network, the clock or the environment: callers hand those in.
"""
