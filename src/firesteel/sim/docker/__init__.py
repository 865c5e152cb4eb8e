"""A simulated `docker` command line: its commands, its containers as records on disk, its images."""
