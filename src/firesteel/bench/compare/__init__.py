"""Statistics: run against run, run against plan, run against published figures."""
