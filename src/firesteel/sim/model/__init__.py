"""What a simulated model answers: arithmetic, a few facts, tool calls by schema, prose. Deterministic."""
