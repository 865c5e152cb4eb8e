"""Launch -> text: the same launch in the formats of other tools; charts; and the settings of clients.

A module for each format (`docker`, `compose`, `kubernetes`, `systemd`, `sparkrun`, `dockerfile`, `factory`);
`reads` is the inverse, and tests check it. `launch_facts` is what a format shows besides the launch:
reasons, sizes, times, digests. Also public: `clients` and `client_config`, `charts` and `svg`. Pure and
deterministic: the same launch gives the same text, byte for byte. It decides nothing and runs nothing.
"""

from firesteel.render.compose import compose
from firesteel.render.docker import containerized, docker, docker_argv
from firesteel.render.kubernetes import Cluster, kubernetes, swap_script
from firesteel.render.launch_facts import LaunchFacts, find_digest, pin
from firesteel.render.sparkrun import sparkrun
from firesteel.render.systemd import quadlet, systemd

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
