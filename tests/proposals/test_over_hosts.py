"""Whether several Sparks pay: the sentence, and what it is made of."""

from __future__ import annotations

import pytest

from firesteel.launch import Ask
from firesteel.proposals.over_hosts import OverHosts, over_hosts
from firesteel.values import replace
from firesteel.workspace import find_workspace


def gain(model: str, sparks: int = 2, **more: int) -> OverHosts:
    workspace = find_workspace()
    host, ask = workspace.host("gb10"), Ask(model, **more)  # type: ignore[arg-type]  # context, users
    together, alone = (workspace.propose(replace(ask, sparks=n), host)[0] for n in (sparks, 1))
    return over_hosts(together, alone)


def test_a_model_that_one_spark_holds() -> None:
    found = gain("gpt-oss-120b-vllm")
    assert found.fits_alone and found.gain and 1 < found.gain.low < found.gain.expected < 2
    assert found.verdict.startswith("two Sparks gain 1.") and "replicas serve more" in found.verdict
    assert found.replicas_tokens_per_s and found.together_total_tokens_per_s
    assert found.replicas_tokens_per_s > found.together_total_tokens_per_s


def test_a_model_that_needs_two() -> None:
    found = gain("qwen3-235b-gptq-int4-two-sparks")
    assert not found.fits_alone and found.gain is None
    assert "one Spark cannot hold it" in found.verdict and "two Sparks can, at about" in found.verdict


@pytest.mark.parametrize("sparks", [2, 4])
def test_several_never_gain_more_than_their_number(sparks: int) -> None:
    for model in ("gpt-oss-20b", "qwen3.6-35b-a3b-nvfp4", "gemma-4-31b-nvfp4"):
        found = gain(model, sparks)
        assert found.gain and found.gain.expected <= sparks
