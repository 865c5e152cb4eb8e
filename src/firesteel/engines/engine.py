"""What firesteel asks of every engine: its program, its command line, its capacity, adapters and defaults.

Each engine answers in its own `command_line` module; this module picks the engine and fills in the address,
the port and the served name. The only thing it knows about containers is the listen address: inside one an
engine must listen on 0.0.0.0, as a child process on 127.0.0.1.

LoRA adapters are named on the command line of an engine, and in its requests:

    vLLM      --enable-lora --lora-modules NAME=PATH --max-loras N --max-lora-rank R; asked for as model NAME
    SGLang    --enable-lora --lora-paths NAME=PATH ...; asked for as model NAME
    llama.cpp --lora-scaled PATH:0,...; asked for with `lora: [{"id": 0, "scale": 1.0}]`

llama.cpp gets a scale of 0 at the start, since `--lora-init-without-apply` leaves it at 1
(https://github.com/ggml-org/llama.cpp/issues/28674, seen 2026-11-16; so in build 11549 here). A request
without `lora` also reuses a prompt that was cached under an adapter (build 11549), so requests for the base
model set it as well.

Launch flags set defaults for an engine's requests: sampling, and the arguments of the chat template. Values
in a request override them in every engine. What no flag can set (an effort, other values for requests with
tools) is left to the gateway and to clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from packaging.version import InvalidVersion, Version

from firesteel.engines import flags as flag_syntax
from firesteel.engines.flags import Grammar, ParsedCommandLine
from firesteel.facts.model.adapter import Adapter, AdapterFormat
from firesteel.launch import EngineName, FlagValue, Launch
from firesteel.units import is_in_range
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


FORMATS: Mapping[EngineName, AdapterFormat] = {"vllm": "peft", "sglang": "peft", "llamacpp": "gguf"}
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Of `--max-lora-rank`: https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/config/lora.py, seen
2026-11-16."""
FIRST_LLAMACPP = 7448
"""The first build that takes several in one `--lora-scaled`."""


def adapter_flags(engine: EngineName, adapters: Sequence[Adapter]) -> dict[str, FlagValue]:
    """Of adapters that the engine can take (`rules.adapters`)."""
    if engine == "llamacpp":
        return {"lora-scaled": ",".join(f"{adapter.path}:0" for adapter in adapters)}
    named: list[object] = [f"{adapter.name}={adapter.path}" for adapter in adapters]
    rank = max(adapter.rank for adapter in adapters)
    if engine == "vllm":
        slots = min((known for known in VLLM_RANKS if known >= rank), default=rank)
        return {
            "enable-lora": True, "lora-modules": named, "max-loras": str(len(named)),
            "max-lora-rank": str(slots),
        }  # fmt: skip
    return {  # the base model has its own slot
        "enable-lora": True, "lora-paths": named, "max-loras-per-batch": str(len(named) + 1),
        "max-lora-rank": str(rank),
    }  # fmt: skip


def lora_slots(engine: EngineName, flags: Mapping[str, FlagValue]) -> tuple[int, int] | None:
    """(slots, rank) that the flags make vLLM or SGLang allocate; None: none."""
    if flags.get("enable-lora") is not True or engine == "llamacpp":
        return None
    count, rank = flags.get("max-loras", "1"), flags.get("max-lora-rank", "16")
    if engine == "sglang":
        count = flags.get("max-loras-per-batch", "8")
    digits = (value for value in (count, rank) if isinstance(value, str) and value.isdigit())
    numbers = [int(value) for value in digits if len(value) < 10]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


def adapter_request(count: int, index: int | None) -> dict[str, Any]:
    """What a request to llama.cpp says of its adapters; `index` None: the base model."""
    return {"lora": [{"id": each, "scale": 1.0 if each == index else 0.0} for each in range(count)]}


TEMPLATE_FLAGS: Mapping[EngineName, tuple[str, str]] = {
    "vllm": ("default-chat-template-kwargs", ">=0.14.0"),
    "sglang": ("default-chat-template-kwargs", ">=0.5.16"),
    "llamacpp": ("chat-template-kwargs", ">=5780"),
}
"""Each with the releases that have it."""
_VLLM_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What `--override-generation-config` may set: `get_diff_sampling_param` of
https://github.com/vllm-project/vllm/blob/v0.24.0/vllm/config/model.py, seen 2026-11-16."""
_LLAMACPP_SAMPLING = {
    "temperature": "temp", "top_p": "top-p", "top_k": "top-k", "min_p": "min-p", "seed": "seed",
    "presence_penalty": "presence-penalty", "frequency_penalty": "frequency-penalty",
    "repetition_penalty": "repeat-penalty",
}  # fmt: skip


def request_flags(
    engine: EngineName, version: str | None, sampling: Mapping[str, float], template: Mapping[str, Any]
) -> dict[str, FlagValue]:
    """A version that is not known counts as a new one.

    SGLang gets no sampling: the flag that it has, `--preferred-sampling-params`, is overruled by the
    defaults of its own OpenAI endpoint.
    """
    flags: dict[str, FlagValue] = {}
    known: dict[str, object] = {name: value for name, value in sampling.items() if name in _VLLM_SAMPLING}
    if engine == "vllm" and known:
        flags["override-generation-config"] = known
    if engine == "llamacpp":
        named = ((flag, sampling.get(name)) for name, flag in _LLAMACPP_SAMPLING.items())
        flags |= {flag: f"{value:g}" for flag, value in named if value is not None}
    name, releases = TEMPLATE_FLAGS[engine]
    if template and _is_in(version, releases):
        flags[name] = dict(template)
    return flags


def _is_in(version: str | None, releases: str) -> bool:
    try:
        return version is None or is_in_range(Version(version), releases)
    except InvalidVersion:
        return True


def merged(defaults: Mapping[str, FlagValue], own: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """A recipe's own flags go first, and inside a JSON flag its own keys."""
    both = {**own, **{name: value for name, value in defaults.items() if name not in own}}
    for name, value in defaults.items():
        mine = own.get(name)
        if isinstance(value, dict) and isinstance(mine, dict):
            both[name] = {**value, **mine}
    return both
