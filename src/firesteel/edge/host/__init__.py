"""This machine: memory, GPUs, kernel log, processes."""
