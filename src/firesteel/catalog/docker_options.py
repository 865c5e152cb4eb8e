"""Facts about `docker run` that both its readers and its writers need."""

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
    """The name of the container that firesteel creates for a launch of this name."""
    return "firesteel-" + (re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "launch")


def plain_reference(reference: str) -> str:
    """An image reference without the Docker Hub host, which is the default."""
    return next(
        (reference.removeprefix(host) for host in _DOCKER_HUB if reference.startswith(host)), reference
    )
