"""Engine logs: start-up phases, reported memory, and known failures."""
