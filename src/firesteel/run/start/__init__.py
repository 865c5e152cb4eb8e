"""From a proposal to a running engine: host checks, exact steps, start, progress."""
