"""Docker's own words, for whoever reads a `docker run` and whoever writes one."""

from __future__ import annotations

import re

_DOCKER_HUB = ("docker.io/", "index.docker.io/", "registry-1.docker.io/")

SWITCHES = frozenset({
    "detach", "disable-content-trust", "help", "init", "interactive", "no-healthcheck", "oom-kill-disable",
    "privileged", "publish-all", "quiet", "read-only", "rm", "sig-proxy", "tty", "use-api-socket",
    # podman's own
    "env-host", "http-proxy", "no-hostname", "no-hosts", "passwd", "read-only-tmpfs", "replace", "rmi",
})  # fmt: skip
"""Options of `docker run` that take no value."""


def container_name(name: str) -> str:
    """The container that firesteel makes for a launch of this name."""
    return "firesteel-" + (re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "launch")


def plain_reference(reference: str) -> str:
    """An image of Docker Hub without the host that docker would put there itself."""
    return next(
        (reference.removeprefix(host) for host in _DOCKER_HUB if reference.startswith(host)), reference
    )
