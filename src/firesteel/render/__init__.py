"""Launch -> text: the same launch in the words of another tool; and figures as pictures.

`docker` is the first; `reads` is its inverse, and tests hold the two together. Pure and deterministic:
the same launch gives the same text, byte for byte. It decides nothing and runs nothing.
"""

from firesteel.render.chart import Bar, Panel, chart
from firesteel.render.docker import contained, docker, docker_argv

__all__ = ["Bar", "Panel", "chart", "contained", "docker", "docker_argv"]
