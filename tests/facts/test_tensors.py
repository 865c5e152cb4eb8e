from __future__ import annotations

from firesteel.facts.model.tensors import Role, Weights


def test_experts_that_no_config_counts_are_all_read() -> None:
    weights = Weights({Role.ROUTED_EXPERTS: 800, Role.ATTENTION: 10}, "counted", "a header")
    assert weights.bytes_read_per_token(8, 2) == 210
    assert weights.bytes_read_per_token(0, 0) == 810
