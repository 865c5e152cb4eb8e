"""Which requests run, which wait, and which models are loaded or evicted. Pure: events in, effects out."""
