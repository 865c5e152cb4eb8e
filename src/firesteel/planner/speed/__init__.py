"""Predicted speed: decode, prefill, speculation and start-up time, from measured runs or from bandwidth."""
