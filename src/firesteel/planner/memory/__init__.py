"""The memory account: weights as loaded, KV cache, overheads, and whether they fit."""
