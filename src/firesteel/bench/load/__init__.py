"""Load generation: prompts, requests, streamed responses, and what the host did meanwhile."""
