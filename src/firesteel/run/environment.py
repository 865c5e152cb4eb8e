"""Which of the caller's environment variables a supervisor and its engine get. Pure.

A shell has cloud keys and tokens, and an engine runs for weeks with other people's code in it. So variables
are passed by an allow-list: what programs need to find their files, libraries, GPU and docker. What a launch
names beyond that (`-e NAME`, for example the Hub token of a launch that downloads) goes through the service's
secrets file, to the engine alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

_NAMES = frozenset(
    (
        "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LD_LIBRARY_PATH",
        "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
        "PYTHONPATH", "PYTHONDONTWRITEBYTECODE",
        "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY",
        "DOCKER_API_VERSION",
    )
)  # fmt: skip
"""XDG_RUNTIME_DIR: where the socket of a rootless docker is. DOCKER_AUTH_CONFIG holds credentials."""
_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "FIRESTEEL_")
_SECRET = re.compile(r"(?:KEY|KEYS|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH)$", re.IGNORECASE)
"""NVIDIA_API_KEY and FIRESTEEL_API_KEY have an allowed prefix."""


def allowed(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if _is_allowed(name)}


def _is_allowed(name: str) -> bool:
    return name in _NAMES or (name.startswith(_PREFIXES) and not _SECRET.search(name))


def named_by(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The variables that a `docker run` passes on from its own environment: `-e NAME`."""
    return tuple(word for option, word in pairwise(argv) if option == "-e" and "=" not in word)
