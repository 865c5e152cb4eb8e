"""The command line of vLLM: `vllm serve MODEL --flag value`.

`_` and `-` are the same in its flag names, JSON flags can be set key by key (`--compilation-config.mode 0`),
`-O3` is `--optimization-level 3`, and lengths may be written `128k` (thousands) or `128K` (1024s). Argparse
takes any unambiguous prefix of a flag (`--gpu-mem`), and three keys of the speculative config have
flags of their own since 0.22.0.
Seen in `vllm/utils/argparse_utils.py` and `vllm/engine/arg_utils.py`, 0.11 to 0.32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from firesteel.engines.flags import Grammar
from firesteel.engines.schema.arity import flag_arity
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

_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)([kKmMgGtT]?)")
_UNITS = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip
"""vLLM reads lower-case units as decimal and upper-case units as binary."""


def model_arguments(model: str) -> tuple[str, ...]:
    return (f"--model={model}",) if model.startswith("-") else (model,)


def size_flags(context: int, users: int) -> dict[str, FlagValue]:
    return {"max-model-len": str(context), "max-num-seqs": str(users)}


def served_capacity(flags: Mapping[str, FlagValue]) -> tuple[int | None, int | None]:
    return parse_size(flags.get("max-model-len")), parse_size(flags.get("max-num-seqs"))


def parse_size(value: FlagValue | None) -> int | None:
    """`65536`, `128k` (128,000), `128K` (131,072); None for `auto`, `-1`, 0 and what is not a number."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return int(float(match[1]) * _UNITS[match[2]]) or None if match else None
