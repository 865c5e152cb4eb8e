"""The supervisor process: keeps an engine alive, guards the host's memory, detects hangs."""
