"""Hardware tables, and what a host tells of itself: memory, GPUs, pressure."""
