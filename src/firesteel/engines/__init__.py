"""How each engine speaks: its program, its command line, and what that line says it will serve.

One file an engine (`vllm`, `llamacpp`, `sglang`), `flags` for
what they share, `kv` for what they set aside for the past, `logs` for what they print.
Pure text. Never starts an engine, never decides a flag, and knows nothing of containers but one thing:
inside one an engine must listen on 0.0.0.0, as a child process on 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from firesteel.engines import flags as _flags
from firesteel.engines.flags import Grammar, Parsed, compact
from firesteel.engines.kv_cache import (
    KvCache,
    ReportedKv,
    cache,
    reported,
    speculative_tokens,
    told_cache_bytes,
)
from firesteel.engines.llamacpp import command_line as llamacpp
from firesteel.engines.sglang import command_line as sglang
from firesteel.engines.vllm import command_line as vllm
from firesteel.launch import EngineName, FlagValue, Launch
from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.engines.logs.data import Stage
    from firesteel.engines.logs.diagnosis import Cause, Diagnosis, diagnose
    from firesteel.engines.logs.phases import ReportedMemory, complaint, phase, reported_memory
    from firesteel.engines.logs.progress import StartProgress, stages, start_progress

__all__ = [
    "Cause",
    "Diagnosis",
    "KvCache",
    "Parsed",
    "ReportedKv",
    "ReportedMemory",
    "Served",
    "Stage",
    "StartProgress",
    "argv",
    "cache",
    "compact",
    "complaint",
    "default_port",
    "diagnose",
    "grammar",
    "listens_on",
    "parse",
    "phase",
    "program",
    "reported",
    "reported_memory",
    "served",
    "size_flags",
    "speculative_tokens",
    "spell",
    "stages",
    "start_progress",
    "told_cache_bytes",
    "written_out",
]


"""What reads logs has data of its own, which a plan and a keeper do without: it loads when first used."""


class _Engine(Protocol):
    """What each engine's file holds."""

    PROGRAM: tuple[str, ...]
    DEFAULT_PORT: int
    GRAMMAR: Grammar

    def model_words(self, model: str) -> tuple[str, ...]: ...
    def size_flags(self, context: int, users: int) -> dict[str, FlagValue]: ...
    def served(self, flags: Mapping[str, FlagValue]) -> tuple[int | None, int | None]: ...


_ENGINES: Mapping[EngineName, _Engine] = {"vllm": vllm, "llamacpp": llamacpp, "sglang": sglang}


@dataclass(frozen=True, slots=True)
class Served:
    """What a launch offers: tokens of context to each user, and users at once. None: the engine decides."""

    context: int | None
    users: int | None


def program(engine: EngineName) -> tuple[str, ...]:
    return _ENGINES[engine].PROGRAM


def default_port(engine: EngineName) -> int:
    """Where the engine listens when nobody says."""
    return _ENGINES[engine].DEFAULT_PORT


def grammar(engine: EngineName) -> Grammar:
    return _ENGINES[engine].GRAMMAR


def listens_on(*, contained: bool) -> str:
    """The address that `argv` writes."""
    return "0.0.0.0" if contained else "127.0.0.1"


def argv(launch: Launch) -> tuple[str, ...]:
    """The words after the program: model, address, port, name, then the flags in the order of the map.

    `host`, `port` or the name flag in `launch.flags` win over the ones written here.
    """
    talk, flags = grammar(launch.engine), launch.flags
    ours: dict[str, FlagValue] = {
        "host": listens_on(contained=launch.container is not None),
        "port": str(launch.port),
    }
    if launch.name and launch.name != launch.model:
        ours[talk.name] = launch.name
    model = _ENGINES[launch.engine].model_words(launch.model) if launch.model else ()
    words = [*model, *launch.extra]
    for name, value in {**{k: v for k, v in ours.items() if k not in flags}, **flags}.items():
        words += spell(launch.engine, name, value)
    return tuple(words)


def spell(engine: EngineName, name: str, value: FlagValue) -> tuple[str, ...]:
    """One flag -> the words that say it."""
    return _flags.spell(grammar(engine), name, value)


def parse(engine: EngineName, words: Sequence[str], *, contained: bool = False) -> Parsed:
    """The inverse of `argv`, for words as people type them. Never raises.

    `host` stays among the flags unless it is the address that `argv` would write anyway. llama.cpp's
    `--hf-repo` is a model like any other.
    """
    return _flags.parse(grammar(engine), words, default_host=listens_on(contained=contained))


def written_out(launch: Launch) -> Mapping[str, FlagValue]:
    """Its flags, and what their shortcuts stand for: `--spec-tokens 3` is a key of `--speculative-config`."""
    return _flags.written_out(grammar(launch.engine), launch.flags)


def size_flags(engine: EngineName, context: int, users: int) -> dict[str, FlagValue]:
    """The flags that offer `context` tokens to each of `users` at once."""
    return _ENGINES[engine].size_flags(context, users)


def served(launch: Launch) -> Served:
    """The inverse of `size_flags`."""
    return Served(*_ENGINES[launch.engine].served(launch.flags))


__getattr__ = lazy_exports(
    __name__,
    {
        "logs.diagnosis": ("Cause", "Diagnosis", "diagnose"),
        "logs.data": ("Stage",),
        "logs.progress": ("StartProgress", "start_progress", "stages"),
        "logs.phases": ("ReportedMemory", "complaint", "phase", "reported_memory"),
    },
)
