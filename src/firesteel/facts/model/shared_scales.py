"""Which weights must have the same global scale: those that an engine stacks into one matrix.

vLLM and SGLang load q, k and v, or gate and up, into one parameter with one global scale per matrix, and for
experts they take that of the first half for both. Read in vLLM 0.32, `packed_modules_mapping` of its models
and `layers/quantization/compressed_tensors`; the lists of llm-compressor 0.14, `observers/helpers.py`; both
seen 2026-11-15. That real checkpoints break this: https://github.com/vllm-project/vllm/issues/54974.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

_SETS: tuple[tuple[str, ...], ...] = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
_SET_OF: Mapping[str, int] = {leaf: number for number, leaves in enumerate(_SETS) for leaf in leaves}


def shared_scale_groups(modules: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The modules that share a global scale, for each group of which there is more than one."""
    groups: dict[tuple[str, int], list[str]] = {}
    for module in modules:
        parent, _, leaf = module.rpartition(".")
        if leaf in _SET_OF:
            groups.setdefault((parent, _SET_OF[leaf]), []).append(module)
    for (_, number), names in groups.items():
        if len(names) > 1:
            yield tuple(sorted(names, key=lambda name: _SETS[number].index(name.rpartition(".")[2])))
