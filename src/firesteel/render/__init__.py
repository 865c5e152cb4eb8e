"""Launch -> text: the same launch in the words of another tool; and figures as pictures.

One file a form; `reads` is the inverse of each, and tests hold the two together. `Known` is what a form
shows beside the launch: reasons, sizes, times, digests. Pure and deterministic: the same launch gives the
same text, byte for byte. It decides nothing and runs nothing.
"""

from firesteel.render.compose import compose
from firesteel.render.docker import contained, docker, docker_argv
from firesteel.render.kubernetes import Cluster, kubernetes, swap_script
from firesteel.render.launch_facts import LaunchFacts, digest_of, pinned
from firesteel.render.quadlet import quadlet
from firesteel.render.sparkrun import sparkrun
from firesteel.render.systemd import systemd

__all__ = [
    "Cluster",
    "LaunchFacts",
    "compose",
    "contained",
    "digest_of",
    "docker",
    "docker_argv",
    "kubernetes",
    "pinned",
    "quadlet",
    "sparkrun",
    "swap_script",
    "systemd",
]  # fmt: skip
