"""How vLLM is told things: `vllm serve MODEL --flag value`.

`_` and `-` are the same in its flag names, JSON flags can be set key by key (`--compilation-config.mode 0`),
`-O3` is `--optimization-level 3`, and lengths may be written `128k` (thousands) or `128K` (1024s). Argparse
takes any beginning of a flag that fits no other (`--gpu-mem`), and three keys of the speculative config have
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

_KINDS = flag_arity("vllm")
GRAMMAR = Grammar(
    model=("model",),
    name="served-model-name",
    positional_model=True,
    dotted=True,
    glued={"O": "optimization-level"},
    lists=_KINDS.lists,
    aliases={
        "O": "optimization-level",
        "ac": "attention-config",
        "asc": "api-server-count",
        "cc": "compilation-config",
        "dc": "diffusion-config",
        "dcp": "decode-context-parallel-size",
        "device-memory-utilization": "gpu-memory-utilization",
        "dp": "data-parallel-size",
        "dpa": "data-parallel-address",
        "dpb": "data-parallel-backend",
        "dpe": "data-parallel-external-lb",
        "dph": "data-parallel-hybrid-lb",
        "dpl": "data-parallel-size-local",
        "dpm": "data-parallel-multi-port-external-lb",
        "dpn": "data-parallel-rank",
        "dpp": "data-parallel-rpc-port",
        "dpr": "data-parallel-start-rank",
        "ep": "enable-expert-parallel",
        "n": "nnodes",
        "pcp": "prefill-context-parallel-size",
        "pp": "pipeline-parallel-size",
        "q": "quantization",
        "r": "node-rank",
        "sc": "speculative-config",
        "tp": "tensor-parallel-size",
    },
    switches=_KINDS.switches | {"help"},
    abbreviates=_KINDS.all | {"device-memory-utilization"},
    shortcuts={
        "spec-method": ("speculative-config", "method"),
        "spec-model": ("speculative-config", "model"),
        "spec-tokens": ("speculative-config", "num_speculative_tokens"),
    },
)

_HUMAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)\Z")
_SCALE = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip


def model_arguments(model: str) -> tuple[str, ...]:
    return (f"--model={model}",) if model.startswith("-") else (model,)


def size_flags(context: int, users: int) -> dict[str, FlagValue]:
    return {"max-model-len": str(context), "max-num-seqs": str(users)}


def served_capacity(flags: Mapping[str, FlagValue]) -> tuple[int | None, int | None]:
    return _length(flags.get("max-model-len")), _length(flags.get("max-num-seqs"))


def _length(value: FlagValue | None) -> int | None:
    """`65536`, `128k` (128,000), `128K` (131,072); None for `auto`, `-1` and what is not a number."""
    match = _HUMAN.match(value) if isinstance(value, str) else None
    if not match or len(match[1]) > 18:
        return None
    return int(float(match[1]) * _SCALE[match[2]]) or None
