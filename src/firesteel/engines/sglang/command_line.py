"""The command line of SGLang: `python3 -m sglang.launch_server --model-path MODEL --flag value`.

Plain argparse: no `--no-` negations, no positional model, and it listens on 127.0.0.1 by default, which
cannot be reached in a container. Seen in `sglang/srt/server_args.py`, 0.5.3 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.engines.flags import Grammar, positive_int
from firesteel.engines.schema.releases import flag_arity
from firesteel.launch import FlagValue

PROGRAM: tuple[str, ...] = ("python3", "-m", "sglang.launch_server")
DEFAULT_PORT = 30000

_ARITY = flag_arity("sglang")
_ALIASES = {
    "dp": "data-parallel-size", "dp-size": "data-parallel-size", "ep": "expert-parallel-size",
    "ep-size": "expert-parallel-size", "model": "model-path", "pp": "pipeline-parallel-size",
    "pp-size": "pipeline-parallel-size", "speculative-draft-model": "speculative-draft-model-path",
    "tp": "tensor-parallel-size", "tp-size": "tensor-parallel-size",
}  # fmt: skip
GRAMMAR = Grammar(
    model_flags=("model-path",),
    name_flag="served-model-name",
    lists=_ARITY.lists,
    aliases=_ALIASES,
    switches=_ARITY.switches,
    abbreviable=_ARITY.all | frozenset(_ALIASES),
)


def model_arguments(model: str) -> tuple[str, ...]:
    return ("--model-path", model)


def size_flags(context: int, users: int) -> dict[str, FlagValue]:
    return {"context-length": str(context), "max-running-requests": str(users)}


def served_capacity(flags: Mapping[str, FlagValue]) -> tuple[int | None, int | None]:
    return positive_int(flags.get("context-length")), positive_int(flags.get("max-running-requests"))
