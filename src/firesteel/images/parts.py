"""Which part of an image a file belongs to, and whether a server needs it. Decided by its path alone."""

from __future__ import annotations

import re

_PACKAGE = re.compile(r"(?:site|dist)-packages/(?P<name>[^/]+)(?P<below>/[^/]+)?")
_PARTS = (
    (re.compile(r"usr/local/cuda(-[\d.]+)?/|opt/nvidia/"), "CUDA toolkit"),
    (re.compile(r"(usr/)?lib(64)?/|usr/local/lib/"), "system libraries"),
    (re.compile(r"(usr/(local/)?)?s?bin/"), "programs"),
    (re.compile(r"usr/share/"), "shared files"),
)
_WASTE = (
    (re.compile(r"var/lib/apt/lists/|var/cache/apt/"), "apt lists: rm -rf /var/lib/apt/lists/*"),
    (re.compile(r"root/\.cache/|home/[^/]+/\.cache/|tmp/"), "caches: pip --no-cache-dir, or a cache mount"),
    (re.compile(r".*/nsight[^/]*/|opt/nvidia/nsight"), "profilers (Nsight)"),
    (re.compile(r"usr/share/(doc|man|info)/"), "documentation"),
    (re.compile(r"(.*/)?\.git/"), "git history"),
    (re.compile(r".*\.a$"), "static libraries: only a compiler needs them"),
)


def part_of(path: str) -> str:
    """`torch`, `nvidia/cublas`, `CUDA toolkit`, `system libraries`, `programs`, `/workspace` ..."""
    if match := _PACKAGE.search(path):
        name = match["name"].partition("-")[0].removesuffix(".libs")
        return f"nvidia{match['below'] or ''}" if name == "nvidia" else name
    for pattern, part in _PARTS:
        if pattern.match(path):
            return part
    head, slash, _ = path.partition("/")
    return f"/{head}" if slash else "/"


def waste_of(path: str) -> str | None:
    return next((what for pattern, what in _WASTE if pattern.match(path)), None)
