"""The embedded engine: llama.cpp's server as a Python package, installed and run as a process."""
