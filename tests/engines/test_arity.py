from __future__ import annotations

import pytest

from firesteel.engines.schema.arity import flag_arity
from firesteel.launch import EngineName


@pytest.mark.parametrize(
    ("engine", "flag", "kind"),
    [
        ("vllm", "enable-return-routed-experts", "switches"),
        ("vllm", "trust-remote-code", "switches"),
        ("vllm", "gpu-memory-utilization", "values"),
        ("vllm", "swap-space", "values"),
        ("vllm", "served-model-name", "lists"),
        ("sglang", "trust-remote-code", "switches"),
        ("sglang", "mem-fraction-static", "values"),
        ("llamacpp", "flash-attn", "values"),
        ("llamacpp", "metrics", "switches"),
    ],
)
def test_kinds_are_those_of_the_sources(engine: EngineName, flag: str, kind: str) -> None:
    assert flag in getattr(flag_arity(engine), kind)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_a_flag_has_one_kind(engine: EngineName) -> None:
    known = flag_arity(engine)
    assert len(known.all) == len(known.switches) + len(known.values) + len(known.lists)
