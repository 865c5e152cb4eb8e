"""Containers through the command line of docker or podman: `containers` and images, and the `gpu` in them;
`image_sources` reads an engine's sources out of an image, `registry` what a registry has.

Never builds a `docker run` line: that is `render`.
"""
