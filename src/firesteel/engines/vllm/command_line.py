"""The command line of vLLM: `vllm serve MODEL --flag value`.

`_` and `-` are the same in its flag names, JSON flags can be set key by key (`--compilation-config.mode 0`),
`-O3` is `--optimization-level 3`, and lengths may be written `128k` (thousands) or `128K` (1024s). Argparse
takes any unambiguous prefix of a flag (`--gpu-mem`), and three keys of the speculative config have
flags of their own since 0.22.0.
Seen in `vllm/utils/argparse_utils.py` and `vllm/engine/arg_utils.py`, 0.11 to 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.engines.flags import Grammar, parse_size
from firesteel.engines.schema.releases import flag_arity
from firesteel.launch import FlagValue

PROGRAM: tuple[str, ...] = ("vllm", "serve")
DEFAULT_PORT = 8000

_ARITY = flag_arity("vllm")
GRAMMAR = Grammar(
    model_flags=("model",),
    name_flag="served-model-name",
    positional_model=True,
    allows_dots=True,
    attached={"O": "optimization-level"},
    lists=_ARITY.lists,
    aliases={**_ARITY.aliases, "O": "optimization-level"},  # `-O` was `--compilation-config` before 0.12
    switches=_ARITY.switches | {"help"},
    abbreviable=_ARITY.all | {"device-memory-utilization"},
    shortcuts={
        "spec-method": ("speculative-config", "method"),
        "spec-model": ("speculative-config", "model"),
        "spec-tokens": ("speculative-config", "num_speculative_tokens"),
    },
)


def model_arguments(model: str) -> tuple[str, ...]:
    return (f"--model={model}",) if model.startswith("-") else (model,)


def size_flags(context: int, users: int) -> dict[str, FlagValue]:
    return {"max-model-len": str(context), "max-num-seqs": str(users)}


def served_capacity(flags: Mapping[str, FlagValue]) -> tuple[int | None, int | None]:
    return parse_size(flags.get("max-model-len")), parse_size(flags.get("max-num-seqs"))
