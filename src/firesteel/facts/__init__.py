"""Facts about hardware, hosts, model architectures, tensors and checkpoint headers.

Pure: bytes and text in, values out. A fact has a source; what is not known is None, never a guess.
Never reads a user's file, the network, the clock or the environment: callers pass those in.
"""
