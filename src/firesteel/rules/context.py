"""The input of a rule: a launch, the machine it is meant for, and what is known about its image."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from math import isfinite

from packaging.version import InvalidVersion, Version

from firesteel.catalog.image import Image
from firesteel.engines.engine import expand_shortcuts
from firesteel.engines.schema.symbols import Schema
from firesteel.launch import EngineName, FlagValue, Launch
from firesteel.values import Value

_PLACEHOLDER = re.compile(
    r"""[$`<>\u2039\u203a]            # $DTYPE, <dtype>
      | \{\{ | ^\{[\w\s.-]*\}$         # {{ .Values.x }}, {dtype}
      | ^%\w+%$ | ^@\w+@$ | ^__\w+__$ | ^\[[\w\s.-]*\]$
      | \.\.\. | \u2026                # ...
      | ^(?:your|my|replace)[_-] | ^[xX]{2,}$ | ^change_?me
      | ^(?:\d+(?:\.\d+)?|\.\d+)\s*[-\u2013]\s*(?:\d+(?:\.\d+)?|\.\d+)$   # 0.7-0.8
    """,
    re.VERBOSE | re.IGNORECASE,
)

_ONLY_OF_LLMS = frozenset(
    {"context-length", "reasoning-parser", "tool-call-parser", "kv-cache-dtype", "max-running-requests",
     "chunked-prefill-size", "speculative-algorithm", "cuda-graph-max-bs", "max-total-tokens"}
)  # fmt: skip
"""The parser for diffusion models has none of these. Source, seen 2026-11-16:
https://github.com/sgl-project/sglang/blob/main/python/sglang/multimodal_gen/runtime/server_args.py"""

NEWEST_KNOWN: dict[EngineName, str] = {"vllm": "0.32.0", "sglang": "0.5.23", "llamacpp": "11549"}
"""The newest releases that the rules were checked against, November 2026. A moving tag counts as these."""


class Match(Value):
    """A part of the launch that a rule matched: its key (`flag:NAME`), its text, its name and value."""

    key: str
    shown: str
    name: str = ""
    value: str = ""


class Context(Value, dict=True):
    launch: Launch
    hardware: str | None
    image: Image | None
    flaws: frozenset[str] = frozenset()
    """Errors in the text itself: see `reads.ReadLaunch`."""
    releases: Mapping[tuple[EngineName, str], Schema] = {}
    """Releases learned on this machine (`firesteel engine learn`)."""

    is_own_build: bool = False
    """The engine is not a release, so it may have any flag: see `reads.ReadLaunch`."""
    program: str = ""
    """The line that starts the engine, where it was read from a text."""
    is_gpu_pod: bool = False
    """A manifest gives it the runtime class `nvidia`."""

    @property
    def is_sglang_serve(self) -> bool:
        container = self.launch.container
        in_container = container is not None and container.program[:2] == ("sglang", "serve")
        return in_container or (self.launch.engine == "sglang" and "sglang serve" in self.program)

    @property
    def may_serve_images(self) -> bool:
        """`sglang serve` hands diffusion models to another parser, which has other flags. It is an LLM where
        the launch has a flag that only the parser for LLMs knows."""
        return self.is_sglang_serve and not _ONLY_OF_LLMS & self.launch.flags.keys()

    @cached_property
    def version(self) -> Version | None:
        """The version that rules are checked against; None: not known."""
        text = self.launch.version
        if text is None and self.is_assumed:
            text = NEWEST_KNOWN[self.launch.engine]
        try:
            return Version(text) if text else None
        except InvalidVersion:
            return None

    @cached_property
    def flags(self) -> Mapping[str, FlagValue]:
        """The launch's flags, with shortcuts expanded."""
        return expand_shortcuts(self.launch)

    @property
    def is_assumed(self) -> bool:
        """The tag of the image moves: its version is assumed to be the newest known."""
        return self.launch.version is None and self.image is not None and self.image.floating

    def number(self, flag: str) -> float | None:
        return as_number(self.flags.get(flag))


def is_final(text: str) -> bool:
    """Whether the text is complete: no variable, no placeholder, no range to choose from."""
    return not _PLACEHOLDER.search(text.strip())


def is_final_number(text: str) -> bool:
    """The same where a number is expected: `--port PORT` has a name in its place."""
    return is_final(text) and not re.fullmatch(r"[A-Z][A-Z_]+", text.strip())


def as_number(value: object) -> float | None:
    """The number that a text or JSON value is; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value) if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        return None
    return number if number is None or isfinite(number) else None


def as_text(value: FlagValue | object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)
