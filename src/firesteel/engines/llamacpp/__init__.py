"""llama.cpp: command line, KV cache, and how its flags are read from its sources."""
