"""A simulated `docker` command line and its containers."""
