"""Launch -> text: the same launch in the words of another tool.

`docker` is the first; `reads` is its inverse, and tests hold the two together. Pure and deterministic:
the same launch gives the same text, byte for byte. It decides nothing and runs nothing.
"""

from firesteel.render.docker import contained, docker, docker_argv

__all__ = ["contained", "docker", "docker_argv"]
