"""Models over several Sparks: what is cut, what is copied, and what does not come out even."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import firesteel
from firesteel.errors import UsageError
from firesteel.facts.model.architecture import Architecture, FullAttention, LatentAttention, Layer, Mamba2
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.tensors import Role, Weights
from firesteel.facts.model.typical import typical_weights
from firesteel.launch import Ask
from firesteel.planner.memory.split import check_even_split, split_weights
from firesteel.planner.speed.published import runs_of
from firesteel.values import replace

CONFIGS = Path(__file__).parent.parent / "facts" / "configs"
GB10 = firesteel.host("gb10")


def bf16(name: str) -> Weights:
    return typical_weights(
        parameters_of_config(json.loads((CONFIGS / f"{name}.json").read_text())), "bf16", "config.json"
    )


def test_mla_projections_into_latents_are_whole_on_every_spark() -> None:
    """DeepSeek-V3: queries to 1536 and keys to 512 + 64, of 61 layers, from a hidden size of 7168."""
    weights = bf16("deepseek-ai--DeepSeek-V3")
    whole = 61 * 2 * 7168 * (1536 + 576)
    assert weights.replicated_bytes == whole
    attention = weights.bytes_by_role[Role.ATTENTION]
    assert split_weights(weights, 2).bytes_by_role[Role.ATTENTION] == whole + (attention - whole) // 2


def test_an_indexer_is_whole_on_every_spark() -> None:
    """DeepSeek-V3.2 has 64 heads of 128 from 1536, a key of 128 and 64 weights from 7168."""
    more = (
        bf16("deepseek-ai--DeepSeek-V3.2").replicated_bytes
        - bf16("deepseek-ai--DeepSeek-V3").replicated_bytes
    )
    assert more == 61 * 2 * (8192 * 1536 + (128 + 64) * 7168)


def test_layers_with_heads_are_split() -> None:
    weights = bf16("Qwen--Qwen3-8B")
    assert weights.replicated_bytes == 0
    assert (
        split_weights(weights, 2).bytes_by_role[Role.ATTENTION] * 2 == weights.bytes_by_role[Role.ATTENTION]
    )


def shape(heads: int, *layers: Layer) -> Architecture:
    return Architecture("test", layers, 2048, 1000, 4096, attention_heads=heads)


@pytest.mark.parametrize(
    ("made", "sparks", "even"),
    [
        (shape(32, FullAttention(8, 128, 128)), 8, True),
        (shape(32, FullAttention(2, 128, 128)), 4, True),  # each key on two Sparks
        (shape(40, FullAttention(8, 128, 128)), 16, False),
        (shape(14, FullAttention(2, 64, 64)), 4, False),
        (shape(24, FullAttention(3, 64, 64)), 2, False),
        (shape(0, FullAttention(3, 64, 64)), 2, False),
        (shape(64, LatentAttention(512, 64)), 8, True),
        (shape(30, LatentAttention(512, 64)), 4, False),
        (shape(32, FullAttention(8, 64, 64), Mamba2(50, 64, 128, 8, 4)), 4, False),
    ],
)
def test_heads_divide_evenly_or_are_refused(made: Architecture, sparks: int, even: bool) -> None:
    if even:
        check_even_split(made, sparks)
        return
    with pytest.raises(UsageError, match=f"cannot be divided over {sparks} Sparks"):
        check_even_split(made, sparks)


def test_a_refusal_says_what_works() -> None:
    with pytest.raises(UsageError, match=r"14 query and 2 KV heads.*; 1, 2 would work") as caught:
        check_even_split(shape(14, FullAttention(2, 64, 64)), 4)
    assert caught.value.next == "--nodes 2"


def test_runs_on_two_sparks_are_found_by_model_and_format() -> None:
    (run,) = runs_of("Qwen/Qwen3-235B-A22B-GPTQ-Int4", "vllm", 2)
    assert run.decode_tps == 17.0
    assert runs_of("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "vllm", 2)
    assert not runs_of("Qwen/Qwen3-235B-A22B", "vllm", 2)
    assert not runs_of("Qwen/Qwen3-235B-A22B-GPTQ-Int4", "vllm", 1)
    assert not runs_of("Qwen/Qwen3-235B-A22B-GPTQ-Int4", "vllm", 4)


def test_a_plan_for_two_sparks_uses_them() -> None:
    speed = firesteel.propose(Ask("qwen3-235b-gptq-int4-two-sparks"), GB10)[0].plan.speed
    assert speed is not None and speed.basis == "measured model" and "2 Sparks" in speed.explanation
    assert speed.decode_tokens_per_s.low < 17.0 < speed.decode_tokens_per_s.high


def test_nodes_use_the_host_network() -> None:
    launch = firesteel.propose(Ask("gpt-oss-120b-vllm", sparks=2), GB10)[0].plan.launch
    box = launch.container
    assert box is not None
    assert (box.network, box.ipc, box.publish) == ("host", "host", ())
    assert ("device", "/dev/infiniband") in box.options and ("ulimit", "memlock=-1") in box.options
    assert launch.flags["host"] == "127.0.0.1"
    alone = firesteel.propose(Ask("gpt-oss-120b-vllm"), GB10)[0].plan.launch
    assert alone.container is not None and alone.container.network is None and alone.container.publish


def test_formats_share_what_is_whole() -> None:
    weights = Weights(
        {Role.ATTENTION: 100},
        "counted",
        "",
        bytes_by_format={(Role.ATTENTION, "BF16"): 60, (Role.ATTENTION, "F8_E4M3"): 40},
        replicated_bytes=20,
    )
    part = split_weights(weights, 2)
    assert part.bytes_by_role[Role.ATTENTION] == 60 == sum(part.bytes_by_format.values())
    assert split_weights(replace(weights, replicated_bytes=0), 2).total_bytes == 50


def sizes(name: str, label: str) -> tuple[Architecture, Weights]:
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    return architecture_of_config(config), typical_weights(parameters_of_config(config), label, "config.json")


@pytest.mark.parametrize(
    ("name", "label", "sparks", "even"),
    [
        ("Qwen--Qwen3-30B-A3B", "fp8-block", 2, True),  # 768 / 2 = 3 x 128
        ("Qwen--Qwen3-30B-A3B", "fp8-block", 4, False),
        ("Qwen--Qwen3-30B-A3B", "fp8", 4, True),  # one scale a tensor
        ("Qwen--Qwen3-30B-A3B", "fp8-dynamic", 4, True),  # one a row
        ("Qwen--Qwen3-30B-A3B", "bf16", 4, True),
        ("Qwen--Qwen3-235B-A22B", "fp8-block", 4, True),  # 1536 / 4 = 3 x 128
        ("Qwen--Qwen3-235B-A22B", "fp8-block", 8, False),
        ("Qwen--Qwen3-32B", "fp8-block", 8, True),  # 25600 / 8 = 25 x 128
        ("Qwen--Qwen3-8B", "fp8-block", 8, True),  # 12288 / 8 = 12 x 128
        ("meta-llama--Meta-Llama-3.1-70B", "fp8-block", 8, True),  # 28672 / 8 = 28 x 128
    ],
)
def test_fp8_blocks_are_not_split(name: str, label: str, sparks: int, even: bool) -> None:
    """vLLM 0.32: `The output_size of gate's and up's weight = 192 is not divisible by ...`."""
    made, weights = sizes(name, label)
    if even:
        check_even_split(made, sparks, weights)
        return
    with pytest.raises(UsageError, match=f"wide on each of {sparks} Sparks.* would work") as caught:
        check_even_split(made, sparks, weights)
    check_even_split(made, int(caught.value.next.split()[1]), weights)


def test_a_dense_mlp_has_blocks_too() -> None:
    made, weights = sizes("Qwen--Qwen3-8B", "fp8-block")
    narrow = replace(made, feed_forward_size=640)
    blocks = replace(weights, bytes_by_role={Role.DENSE_MLP: 108 * (640 * 4096 + 5 * 32 * 4)})
    check_even_split(narrow, 1, blocks)
    with pytest.raises(UsageError, match=r"MLPs 640 wide are 320 wide on each of 2 Sparks.*; 1 would work"):
        check_even_split(narrow, 2, blocks)


def test_expert_parallelism_splits_no_block() -> None:
    made, weights = sizes("Qwen--Qwen3-30B-A3B", "fp8-block")
    check_even_split(made, 4, weights, has_whole_experts=True)


def test_block_fp8_is_recognized_by_its_bytes() -> None:
    """Qwen3-Coder-Next-FP8 has experts 512 wide: four Sparks hold a block each, eight none."""
    known = firesteel.propose(Ask("qwen3-coder-next-fp8"), GB10)[0].plan
    wide = replace(known.shape, feed_forward_size=512)
    check_even_split(wide, 4, known.weights)
    with pytest.raises(UsageError, match="64 wide on each of 8 Sparks"):
        check_even_split(wide, 8, known.weights)
