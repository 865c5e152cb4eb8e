"""firesteel takes an NVIDIA DGX Spark from bare to a fast, correct, safe LLM service."""

__version__ = "0.1.0"
