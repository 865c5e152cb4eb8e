"""The values that every package passes on: Ask -> Recipe -> Launch -> Plan (+ Findings) -> Steps -> Report.

A Launch is everything needed to start one model, and nothing that was decided about it:
the engine, its flags as a map, its environment, and the container around it. Recipes make
launches, readers of `docker run` lines make launches, renderers and planners take them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from firesteel.command import Command
from firesteel.values import Value

EngineName = Literal["vllm", "llamacpp", "sglang"]
Runtime = Literal["container", "native"]
"""Where an engine runs: in a container, or as a program that is installed on this machine."""
Who = Literal["person", "agent", "team", "batch"]
"""Who uses a model."""
Matter = Literal["speed", "quality", "throughput", "memory"]
"""What matters most to them."""
Text = Literal["code", "prose", "json", "math"]
Task = Literal["chat", "embeddings", "rerank"]
"""What a server is asked to do."""
Goal = Literal["speed", "context", "throughput", "quality"]
"""What to choose by: one user's tokens a second, the longest context, all users' together, or the least lost
to quantization."""


ENGINE_KEY_VARIABLES: Mapping[EngineName, str] = {"vllm": "VLLM_API_KEY", "llamacpp": "LLAMA_API_KEY"}
"""The variable from which an engine reads its API key. SGLang takes it only as an argument."""
LOOPBACK = "127.0.0.1"
"""Where a service listens unless the user says otherwise."""
FlagValue = str | bool | dict[str, object] | list[object]
"""Text as typed; True for a bare flag, False for its `--no-` twin; a dict or list for a JSON flag."""


class AdapterReference(Value):
    """A LoRA adapter as the user names it."""

    name: str
    """The model that clients ask for."""
    reference: str
    """A PEFT folder, a GGUF, or a Hub id that was pulled."""


class Ask(Value):
    """What the user typed."""

    model: str | None = None
    context: int | None = None
    users: int | None = None
    port: int | None = None
    name: str | None = None
    engine: EngineName | None = None
    version: str | None = None
    """Of the engine, in place of the recipe's."""
    quant: str | None = None
    """How the weights are stored, where only a config is at hand."""
    weights_bytes: int | None = None
    """Their sum, in place of what the config makes it."""
    kv_cache_dtype: str | None = None
    kv_cache_bytes: int | None = None
    """Exactly this much for the cache."""
    sparks: int | None = None
    goal: Goal | None = None
    runtime: Runtime | None = None
    """None: as the recipe has it."""
    engine_path: str | None = None
    """The engine's program, its Python or its folder; None: it is looked for."""
    prompt_tokens: int | None = None
    """What users send, for the predicted speed alone; None: the context, where one is asked for."""
    answer_tokens: int | None = None
    shared_tokens: int = 0
    """How much of each prompt the engine has cached already."""
    adapters: tuple[AdapterReference, ...] = ()
    """LoRA, beside those of the recipe."""


class EngineProgram(Value):
    """An engine that is installed on this machine: started as a process, in place of a container."""

    argv: tuple[str, ...]
    """`/opt/vllm/bin/vllm serve`; the model and the flags follow."""
    version: str | None = None
    """None: it does not say."""
    uses_gpu: bool = True
    origin: str = ""
    """How it was found: `--engine-path`, `PATH`."""


class Mount(Value):
    source: str
    target: str
    read_only: bool = False


class Container(Value):
    """The container around an engine, as `docker run` would be told."""

    image: str
    entrypoint: str | None = None
    """`--entrypoint` as typed; None leaves the image's own."""
    program: tuple[str, ...] = ()
    """Words after the image that name a program (`vllm serve`); empty when the image's entrypoint does."""
    gpus: str | None = None
    ipc: str | None = None
    shm_bytes: int | None = None
    network: str | None = None
    restart: str | None = None
    publish: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = {}
    options: tuple[tuple[str, str | None], ...] = ()
    """Any other `docker run` option, in the order typed."""


class Launch(Value):
    name: str
    """What users call it; also the name that the server answers to."""
    model: str
    """What the engine is given: a Hub id or a path. Empty when a reader could not tell."""
    engine: EngineName
    version: str | None = None
    """Engine version: `0.24.0`, `11549` for llama.cpp build b11549. None: not known."""
    flags: Mapping[str, FlagValue] = {}
    """Long spelling without dashes, `_` written `-`, the model and the port left out."""
    env: Mapping[str, str] = {}
    port: int = 8000
    container: Container | None = None
    """None: a child process, the `program` or the embedded engine."""
    sparks: int = 1
    extra: tuple[str, ...] = ()
    """Words that a reader could not place."""
    program: EngineProgram | None = None
    """None without a container: the embedded engine."""
    adapter_bytes: int = 0
    """Of the LoRA adapters that its flags name, where their files were read."""

    @property
    def uses_gpu(self) -> bool:
        """The embedded engine runs on the CPU, whatever GPU there is."""
        if self.program:
            return self.program.uses_gpu
        return self.container is not None and self.container.gpus is not None


class Spot(Value):
    """Where something stands in what the user wrote."""

    path: str
    line: int
    text: str = ""
    column: int = 1


class Step(Value):
    """One thing to do to the world: run it to do it, print it for a dry run."""

    command: Command
    why: str
    undo: Command | None = None
    expects: str = "exit code 0"
    """What is seen when it went well."""
    host: str = "local"
    """Where it runs."""
