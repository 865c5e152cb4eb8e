"""Readers of checkpoint file formats: safetensors and GGUF, from their headers alone."""
