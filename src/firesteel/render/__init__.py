"""Launch -> text: the same launch in the formats of other tools; charts; and the settings of clients.

One module for each format; `reads` is the inverse, and tests check it. `LaunchFacts` is what a format shows
beside the launch: reasons, sizes, times, digests. Pure and deterministic: the same launch gives the same
text, byte for byte. It decides nothing and runs nothing.
"""

from firesteel.render.compose import compose
from firesteel.render.docker import containerized, docker, docker_argv
from firesteel.render.kubernetes import Cluster, kubernetes, swap_script
from firesteel.render.launch_facts import LaunchFacts, find_digest, pin
from firesteel.render.quadlet import quadlet
from firesteel.render.sparkrun import sparkrun
from firesteel.render.systemd import systemd

__all__ = [
    "Cluster",
    "LaunchFacts",
    "compose",
    "containerized",
    "docker",
    "docker_argv",
    "find_digest",
    "kubernetes",
    "pin",
    "quadlet",
    "sparkrun",
    "swap_script",
    "systemd",
]  # fmt: skip
