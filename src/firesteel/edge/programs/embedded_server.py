"""The embedded engine's program: maps the llama-server flags that recipes use onto xllamacpp.

xllamacpp carries llama-server as a library without a command line; this program is that command line.
It runs with the engine's own Python, so it imports nothing of firesteel:

    python -I embedded_server.py --model m.gguf --port 8000 --ctx-size 4096

A flag that is not in the tables below is refused by name, with exit code 2, before anything is loaded.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

Setter = Callable[[Any, str], None]


def assign(path: str, convert: Callable[[str], Any] = str) -> Setter:
    *parents, last = path.split(".")

    def apply(params: Any, text: str) -> None:
        target = params
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, last, convert(text))

    return apply


def switch(path: str, value: bool) -> Setter:
    return assign(path, lambda _: value)


def both(*setters: Setter) -> Setter:
    def apply(params: Any, text: str) -> None:
        for setter in setters:
            setter(params, text)

    return apply


def enum(kind: str, names: dict[str, str]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        import xllamacpp  # lazy: flags are refused without loading the engine

        if text not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return getattr(getattr(xllamacpp, kind), names[text])

    return convert


_KV_TYPES = enum(
    "ggml_type",
    {
        name: f"GGML_TYPE_{name.upper()}"
        for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
    },
)
_FLASH = enum(
    "llama_flash_attn_type",
    {
        name: f"LLAMA_FLASH_ATTN_TYPE_{member}"
        for name, member in (("on", "ENABLED"), ("off", "DISABLED"), ("auto", "AUTO"))
    },
)


def _host(params: Any, text: str) -> None:
    if hasattr(params, "hostnames"):
        params.hostnames = [text]
    else:  # releases before 2026.10 listen on one address
        params.hostname = text


def _adapters(params: Any, text: str) -> None:
    """`PATH:SCALE,PATH:SCALE`"""
    import xllamacpp  # lazy: flags are refused without loading the engine

    pairs = [each.rpartition(":") for each in text.split(",")]
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, float(scale)) for path, _, scale in pairs]


_POOLING = enum(
    "llama_pooling_type",
    {name: f"LLAMA_POOLING_TYPE_{name.upper()}" for name in ("none", "mean", "cls", "last", "rank")},
)
_LOAD = enum(
    "llama_load_mode",
    {name: f"LLAMA_LOAD_MODE_{name.upper()}" for name in ("auto", "none", "mmap", "mlock")},
)

TAKES_VALUE: dict[str, Setter] = {
    "model": assign("model.path"),
    "alias": assign("model_alias", lambda text: {text}),
    "host": _host,
    "port": assign("port", int),
    "ctx-size": assign("n_ctx", int),
    "parallel": assign("n_parallel", int),
    "batch-size": assign("n_batch", int),
    "ubatch-size": assign("n_ubatch", int),
    "threads": both(assign("cpuparams.n_threads", int), assign("cpuparams_batch.n_threads", int)),
    "threads-batch": assign("cpuparams_batch.n_threads", int),
    "n-gpu-layers": assign("n_gpu_layers", lambda text: {"auto": -1, "all": 999}.get(text) or int(text)),
    "cache-type-k": assign("cache_type_k", _KV_TYPES),
    "cache-type-v": assign("cache_type_v", _KV_TYPES),
    "flash-attn": assign("flash_attn_type", _FLASH),
    "lora-scaled": _adapters,
    "pooling": assign("pooling_type", _POOLING),
    "load-mode": assign("load_mode", _LOAD),
    "cache-ram": assign("cache_ram_mib", int),
    "fit": assign("fit_params", lambda text: {"on": True, "off": False}[text]),
    "seed": assign("sampling.seed", int),
    "temp": assign("sampling.temp", float),
    "top-k": assign("sampling.top_k", int),
    "top-p": assign("sampling.top_p", float),
    "min-p": assign("sampling.min_p", float),
    "n-predict": assign("n_predict", int),
    "log-verbosity": assign("verbosity", int),
    "api-key": assign("api_keys", lambda text: [text]),
}
SWITCHES: dict[str, Setter] = {
    "embeddings": switch("embedding", True),
    "metrics": switch("endpoint_metrics", True),
    "slots": switch("endpoint_slots", True),
    "no-slots": switch("endpoint_slots", False),
    "jinja": switch("use_jinja", True),
    "no-jinja": switch("use_jinja", False),
    "kv-unified": switch("kv_unified", True),
    "no-kv-unified": switch("kv_unified", False),
    "cont-batching": switch("cont_batching", True),
    "no-cont-batching": switch("cont_batching", False),
    "no-warmup": switch("warmup", False),
    "no-ui": switch("ui", False),
}


class UnsupportedFlag(Exception):
    """An argument that the embedded engine does not take."""


def settings(arguments: list[str]) -> list[tuple[str, Setter, str]]:
    """Arguments -> (flag, its setter, its value). Raises UnsupportedFlag."""
    parsed = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or (name not in TAKES_VALUE and name not in SWITCHES):
            raise UnsupportedFlag(
                f"the embedded engine does not know `{argument}`; it takes {', '.join(known())}"
            )
        if name in SWITCHES:
            if equals:
                raise UnsupportedFlag(f"`--{name}` takes no value")
            parsed.append((name, SWITCHES[name], ""))
            continue
        given = value if equals else next(rest, None)
        if given is None:
            raise UnsupportedFlag(f"`--{name}` needs a value")
        parsed.append((name, TAKES_VALUE[name], given))
    return parsed


def known() -> list[str]:
    return [f"--{name}" for name in sorted((*TAKES_VALUE, *SWITCHES))]


def main(arguments: list[str]) -> int:
    """Serve a model with xllamacpp, taking the arguments of llama-server; return the exit code."""
    if arguments == ["--version"]:  # as llama-server says it: the build is the last part of the release
        release = metadata.version("xllamacpp")
        print(f"version: {release.rpartition('.')[2]} (xllamacpp {release})")
        return 0
    if arguments == ["--help"]:
        print("\n".join(known()))
        return 0
    try:
        chosen = settings(arguments)
    except UnsupportedFlag as error:
        print(f"embedded engine: {error}", file=sys.stderr)
        return 2
    import xllamacpp

    params = xllamacpp.CommonParams()
    if key := os.environ.get("LLAMA_API_KEY"):  # as llama-server does: every user can see arguments
        params.api_keys = [key]
    for name, apply, value in chosen:
        try:
            apply(params, value)
        except (ValueError, KeyError) as error:
            print(f"embedded engine: `--{name} {value}` is not valid: {error}", file=sys.stderr)
            return 2
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        print(f"embedded engine: {error}", file=sys.stderr)
        return 1
    print(f"embedded engine: serving on {server.listening_address}", flush=True)
    # The server's own threads do the work. Without a handler, process 1 of a container ignores SIGTERM.
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
