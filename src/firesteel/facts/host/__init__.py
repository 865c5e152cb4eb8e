"""Hardware data, and what a host reports about itself: memory, GPUs, pressure."""
