"""What firesteel asks of every engine: its program, its command line, and the capacity that line serves.

Each engine answers in its own `command_line` module; this module picks the engine and fills in the address,
the port and the served name. The only thing it knows about containers is the listen address: inside one an
engine must listen on 0.0.0.0, as a child process on 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from firesteel.engines import flags as flag_syntax
from firesteel.engines.flags import Grammar, ParsedCommandLine
from firesteel.launch import EngineName, FlagValue, Launch
from firesteel.values import Value


class CommandLine(Protocol):
    """What the `command_line` module of an engine provides."""

    PROGRAM: tuple[str, ...]
    DEFAULT_PORT: int
    GRAMMAR: Grammar

    def model_arguments(self, model: str) -> tuple[str, ...]: ...
    def size_flags(self, context: int, users: int) -> dict[str, FlagValue]: ...
    def served_capacity(self, flags: Mapping[str, FlagValue]) -> tuple[int | None, int | None]: ...


def _command_line(engine: EngineName) -> CommandLine:
    # Imported on demand: the modules of vLLM and SGLang parse the flags of every known release (2 to 10 ms),
    # and most commands deal with one engine.
    if engine == "vllm":
        from firesteel.engines.vllm import command_line as vllm

        return vllm
    if engine == "sglang":
        from firesteel.engines.sglang import command_line as sglang

        return sglang
    from firesteel.engines.llamacpp import command_line as llamacpp

    return llamacpp


class ServedCapacity(Value):
    """Tokens of context for each user, and concurrent users; None: the engine decides."""

    context: int | None
    users: int | None


def program(engine: EngineName) -> tuple[str, ...]:
    """The command that starts the server, without its arguments."""
    return _command_line(engine).PROGRAM


def default_port(engine: EngineName) -> int:
    """The port that the engine listens on without `--port`."""
    return _command_line(engine).DEFAULT_PORT


def grammar(engine: EngineName) -> Grammar:
    return _command_line(engine).GRAMMAR


def listen_address(*, contained: bool) -> str:
    """The address that `argv` writes."""
    return "0.0.0.0" if contained else "127.0.0.1"


def argv(launch: Launch) -> tuple[str, ...]:
    """The arguments after the program: model, address, port, name, then the flags in the order of the map.

    `host`, `port` and the name flag in `launch.flags` win over the ones written here.
    """
    flags: dict[str, FlagValue] = {
        "host": listen_address(contained=launch.container is not None),
        "port": str(launch.port),
    }
    if launch.name and launch.name != launch.model:
        flags[grammar(launch.engine).name_flag] = launch.name
    for name in launch.flags:
        flags.pop(name, None)
    model = _command_line(launch.engine).model_arguments(launch.model) if launch.model else ()
    arguments = [*model, *launch.extra]
    for name, value in {**flags, **launch.flags}.items():
        arguments += format_flag(launch.engine, name, value)
    return tuple(arguments)


def format_flag(engine: EngineName, name: str, value: FlagValue) -> tuple[str, ...]:
    """The arguments that set one flag."""
    return flag_syntax.format_flag(grammar(engine), name, value)


def parse_argv(engine: EngineName, arguments: Sequence[str], *, contained: bool = False) -> ParsedCommandLine:
    """The inverse of `argv`, for arguments as people type them. Never raises.

    `host` stays among the flags unless it is the address that `argv` would write anyway. llama.cpp's
    `--hf-repo` is a model like any other.
    """
    return flag_syntax.parse_argv(
        grammar(engine), arguments, default_host=listen_address(contained=contained)
    )


def expand_shortcuts(launch: Launch) -> Mapping[str, FlagValue]:
    """The flags, with shortcuts also as the key that they set: `--spec-tokens` in `--speculative-config`."""
    return flag_syntax.expand_shortcuts(grammar(launch.engine), launch.flags)


def size_flags(engine: EngineName, context: int, users: int) -> dict[str, FlagValue]:
    """The flags that serve `context` tokens to each of `users` concurrent users."""
    return _command_line(engine).size_flags(context, users)


def served_capacity(launch: Launch) -> ServedCapacity:
    """The inverse of `size_flags`."""
    return ServedCapacity(*_command_line(launch.engine).served_capacity(launch.flags))
