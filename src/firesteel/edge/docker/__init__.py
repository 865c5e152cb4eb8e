"""Containers through the command line of docker or podman: availability, images, the GPU inside, sources.

Never builds a `docker run` line: that is `render`.
"""
