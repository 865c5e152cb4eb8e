"""The values that packages pass on: Ask -> Recipe -> Launch -> Plan (+ Findings) -> Steps -> Report.

A Launch is everything needed to start one model: the engine, its flags as a map, its environment, and the
container around it. It does not record why it was chosen. Recipes make launches, readers of `docker run`
lines make launches, renderers and planners take them. A Step is one Command to run, or to print in a dry run.

Below the values are the conventions that makers and readers of launches share: the form of Hub ids
(`ORG/NAME`, for GGUF files also `ORG/NAME:LABEL`), where a container sees the files of its host, the
variables that tell each engine about these folders, and names in `docker run`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Literal

from firesteel.values import Value


class Command(Value):
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}

    def __str__(self) -> str:
        return shlex.join((*(f"{name}={value}" for name, value in self.env.items()), *self.argv))


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
    """LoRA, in addition to those of the recipe."""
    despite: tuple[str, ...] = ()
    """Checks of the audit that do not stop a checkpoint: the user knows better."""


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
    """The container around an engine, in the terms of `docker run`."""

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
    """What the engine is given: a Hub id or a path. Empty if a reader could not find it."""
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


class Location(Value):
    """A place in what the user wrote."""

    path: str
    line: int
    text: str = ""
    column: int = 1


class Step(Value):
    """One change to make: run it, or print it in a dry run."""

    command: Command
    why: str
    undo: Command | None = None
    expects: str = "exit code 0"
    """What a success looks like."""
    host: str = "local"
    """Where it runs."""


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/\w[\w.-]*\Z", re.ASCII)
_LABEL = re.compile(r":[\w.-]+\Z", re.ASCII)
_MAX_PART_CHARS = 96


def is_hub_id(text: str) -> bool:
    """Whether a text has the form of a Hub id; only the Hub knows whether the repository exists."""
    return _HUB_ID.match(text) is not None


def is_hub_model(model: str, *, with_label: bool = False) -> bool:
    """Whether an engine takes this name from the Hub, as opposed to a GGUF file in a folder of that name.

    `with_label` accepts `ORG/NAME:Q4_K_M` too, which llama.cpp downloads.
    """
    repository = _LABEL.sub("", model) if with_label else model
    return is_hub_id(repository) and not model.lower().endswith(".gguf")


def is_valid_hub_id(text: str) -> bool:
    """Whether the Hub accepts such a name: `--` separates the parts in the folder names of its cache."""
    fits = all(len(part) <= _MAX_PART_CHARS for part in text.split("/"))
    return is_hub_id(text) and fits and "--" not in text and ".." not in text


HUB_CACHE = "~/.cache/huggingface"
"""On the host. `~` is replaced by the user's home when a launch is run or printed."""
HUB_INSIDE = "/hub"
"""Where a container sees it, whatever its user: each engine gets the path in the variable that it reads."""
HUB_CACHE_INSIDE = f"{HUB_INSIDE}/hub"
MODELS_INSIDE = "/models"
ADAPTERS_INSIDE = "/adapters"
COMPILED_INSIDE = "/compiled"
WHEELS_INSIDE = "/wheels"
HUB_TOKEN = "HF_TOKEN"
DOWNLOAD_ENV = (
    HUB_TOKEN, "HF_ENDPOINT",
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)  # fmt: skip
HUB_ENV: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": {"HF_HOME": HUB_INSIDE},
    "sglang": {"HF_HOME": HUB_INSIDE},
    "llamacpp": {"LLAMA_CACHE": HUB_CACHE_INSIDE},
}
_OFFLINE_PYTHON = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
OFFLINE_ENV: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": _OFFLINE_PYTHON,
    "sglang": _OFFLINE_PYTHON,
    "llamacpp": {"LLAMA_ARG_OFFLINE": "1", "LLAMA_OFFLINE": "1"},
}
"""What keeps an engine from asking the Hub. llama.cpp renamed its variable between builds 9310 and 9360."""
_PYTORCH_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": f"{COMPILED_INSIDE}/inductor",
    "TRITON_CACHE_DIR": f"{COMPILED_INSIDE}/triton",
    "FLASHINFER_WORKSPACE_BASE": COMPILED_INSIDE,
    "CUDA_CACHE_PATH": f"{COMPILED_INSIDE}/cuda",
    # gpt-oss: its vocabulary does not come from the Hub; it is downloaded at the first start
    "TIKTOKEN_RS_CACHE_DIR": f"{COMPILED_INSIDE}/tiktoken",
}
COMPILE_CACHE_ENV: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": {"VLLM_CACHE_ROOT": f"{COMPILED_INSIDE}/vllm", **_PYTORCH_CACHES},
    "sglang": {"SGLANG_CACHE_DIR": f"{COMPILED_INSIDE}/sglang", **_PYTORCH_CACHES},
    "llamacpp": {"CUDA_CACHE_PATH": f"{COMPILED_INSIDE}/cuda"},
}
"""Where an engine keeps what it compiles, whatever its user in the container.

vllm/envs.py and flashinfer/jit/env.py in their releases, seen 2026-11-15; tiktoken:
https://github.com/openai/harmony/issues/46.
"""


def health_options(image_port: int | None, port: int) -> tuple[tuple[str, str], ...]:
    """For an image whose own check asks another port than the engine's: it would be unhealthy for ever.

    Failures do not count while it loads, which takes minutes.
    """
    if image_port in (None, port):
        return ()
    return (
        ("health-cmd", f"curl -fsS http://{LOOPBACK}:{port}/health"),
        ("health-start-period", "30m"),
    )


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
