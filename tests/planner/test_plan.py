"""The shipped recipes on a GB10 at rest: fit, sizes and speed against what people measured.

Of a label that may be either of two layouts every figure lies between theirs, and they agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import firesteel
from firesteel.catalog.launches import with_memory_flags
from firesteel.engines.sglang.kv_cache import sglang_pool
from firesteel.errors import UsageError
from firesteel.facts.host.hardware import Gpu, Host
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.facts.model.architecture import (
    Architecture,
    Checkpoint,
    FullAttention,
    LinearAttention,
    Speech,
)
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.tensors import Role, Weights
from firesteel.facts.model.typical import heavier_weights, typical_weights
from firesteel.launch import Ask, FlagValue
from firesteel.library import plans
from firesteel.planner.advice import require_runnable
from firesteel.planner.memory.account import MemoryPart, printed_sound_cache
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.plan import Plan, between, memory_between, plan
from firesteel.planner.propose import Proposal, propose_checkpoint
from firesteel.units import GIB, MIB, Band
from firesteel.values import replace

GB10 = firesteel.host("gb10")


def best(name: str, host: Host = GB10, context: int | None = None, users: int | None = None) -> Proposal:
    return firesteel.propose(Ask(name, context, users), host)[0]


@pytest.mark.parametrize(
    ("name", "measured", "source"),
    [
        ("gpt-oss-120b-llamacpp", 58.72, "ggml-org/llama.cpp benches/dgx-spark, b7941"),
        ("gpt-oss-120b-llamacpp", 55.37, "NVIDIA's table, llama.cpp at 2k"),
        ("qwen3-coder-next-q4", 51.7, "jschmied/dgx-spark-setup-guide"),
        ("qwen3-coder-next-fp8", 43, "vLLM 0.15.1, reported"),
        ("qwen3-coder-next-int4", 68, "mARTin-B78's tutorial, llama-benchy, nightly vLLM"),
        ("qwen3.5-122b-a10b-int4", 28.4, "NVIDIA's forum, vLLM 0.17.0rc1"),
        ("gemma-4-31b-awq", 10.6, "NVIDIA's forum, llama-benchy"),
        ("gpt-oss-20b-sglang", 70, "lmsys.org, about"),
        ("gpt-oss-120b-sglang", 50, "lmsys.org, about"),
        ("qwen3.6-35b-a3b-nvfp4", 75.2, "heitor-mocelin/dgx-spark-research, no speculation"),
        ("gpt-oss-120b-vllm", 33.5, "dgx-spark-playbooks issue 79, vLLM 0.15.1"),
        ("gpt-oss-120b-vllm", 26, "conselara.dev, vLLM 0.19.0, --enforce-eager"),
        ("gpt-oss-120b-vllm", 37, "the fastest that is reported without MXFP4 attention"),
    ],
)
def test_published_speeds_lie_in_the_band(name: str, measured: float, source: str) -> None:
    speed = best(name).plan.speed
    assert speed is not None
    assert speed.decode_tokens_per_s.low <= measured <= speed.decode_tokens_per_s.high, source
    assert measured < speed.bound_tokens_per_s


def test_a_published_speed_with_drafting_lies_in_the_drafted_band() -> None:
    """GLM-4.7-Flash FP8: its maker's 50 tok/s are most likely with MTP; 40 were reported of it without."""
    plain, drafted = best("glm-4.7-flash-fp8").plan.speed, best("glm-4.7-flash-fp8-mtp").plan.speed
    assert plain is not None and drafted is not None
    assert plain.decode_tokens_per_s.low <= 40 <= plain.decode_tokens_per_s.high
    assert plain.decode_tokens_per_s.expected < 45
    chat = next(each.decode_tokens_per_s for each in drafted.drafted if each.text == "conversation")
    assert chat.low <= 50 <= chat.high


def test_every_recipe_fits_an_idle_spark_and_breaks_no_rule() -> None:
    for proposal in firesteel.propose(Ask(), GB10):
        assert proposal.can_run == (proposal.name != "llama-3.1-405b"), proposal.name


@pytest.mark.parametrize("name", ["gpt-oss-20b-sglang", "qwen3.8-27b-nvfp4-sglang-mtp"])
def test_sglang_gets_tokens_and_a_fraction_that_leaves_them(name: str) -> None:
    """Whatever is free at the start, down to the budget: the pool that SGLang's own arithmetic leaves."""
    plan = best(name).plan
    flags = plan.launch.flags
    tokens, fraction = flags["max-total-tokens"], flags["mem-fraction-static"]
    assert isinstance(tokens, str) and isinstance(fraction, str)
    assert int(tokens) == plan.cache.context * plan.cache.users
    sized = sglang_pool(flags, plan.shape, plan.launch.version)
    loaded = plan.memory.needed.high - plan.cache.pool_bytes
    for free in (plan.memory.budget_bytes, plan.host.memory_available_bytes, plan.host.memory_total_bytes):
        rest = sized.rest_bytes(free, free - round(loaded), float(fraction))
        assert rest >= plan.cache.pool_bytes
    assert plan.cache.state_slots == int(str(flags.get("max-mamba-cache-size", 0)))


def test_another_engine_than_that_of_the_recipe_by_this_name() -> None:
    found = firesteel.propose(Ask("gpt-oss-20b", engine="sglang"), GB10)
    assert [proposal.name for proposal in found] == ["gpt-oss-20b-sglang"]
    with pytest.raises(UsageError, match="no recipe runs llama"):
        firesteel.propose(Ask("llama-3.3-70b-nvfp4", engine="sglang"), GB10)


def test_what_a_launch_says_of_its_memory_stays() -> None:
    launch = best("gpt-oss-20b-sglang").plan.launch
    said = replace(launch, flags={"mem-fraction-static": "0.75"})
    cache = best("gpt-oss-20b-sglang").plan.cache
    assert with_memory_flags(said, cache, 50 * GIB, 120 * GIB, 100 * GIB) == said
    assert with_memory_flags(replace(launch, engine="llamacpp", flags={}), cache, 1, 2, 2).flags == {}


def test_vllm_gets_bytes_and_a_fraction_that_covers_them() -> None:
    plan = best("qwen3.6-35b-a3b-nvfp4").plan
    kv, fraction = plan.launch.flags["kv-cache-memory-bytes"], plan.launch.flags["gpu-memory-utilization"]
    assert isinstance(kv, str) and isinstance(fraction, str)
    assert int(kv) == plan.cache.pool_bytes > plan.cache.bytes
    assert float(fraction) * plan.host.memory_total_bytes >= plan.memory.needed.high


@pytest.mark.parametrize("users", [1, 4])
@pytest.mark.parametrize(
    ("name", "block_bytes", "full", "rest", "further"),
    [
        # 2144 tokens of FP8 KV are a state of 2,195,456 bytes; 11 layers with the drafter's
        ("qwen3.6-35b-a3b-nvfp4", 2144 * 1024 * 11, ceil(131072 / 2144), 3 * (2 + 3), 3 * (2 + 3)),
        # BF16 states of 1,097,728 bytes: 544 tokens of BF16 KV
        ("qwen3-coder-next-fp8", 544 * 2048 * 12, ceil(131072 / 544), 3 * 2, 3 * 2),
        # 18 full and 18 sliding layers, two batches of 8192 tokens in flight, which all requests share
        ("gpt-oss-120b-vllm", 16 * 2048 * 18, 131072 // 16, ceil((127 + 2 * 8192) / 16) + 1, 128 // 16 + 1),
    ],
)
def test_the_pool_holds_the_users_by_the_formulas_of_vllm_0_28(
    name: str, block_bytes: int, full: int, rest: int, further: int, users: int
) -> None:
    """Else vLLM does not start: `To serve at least one request with the model's max seq len`.

    `full`: blocks of the layers that keep every token. `rest`: of the others, for the request that is read;
    `further`: for each of the requests beside it.
    """
    flag = best(name, users=users).plan.launch.flags["kv-cache-memory-bytes"]
    assert isinstance(flag, str)
    usable = int(flag) // block_bytes - 1  # one block is never handed out
    blocks = users * full + rest + (users - 1) * further
    assert usable >= blocks
    assert int(flag) < 1.1 * blocks * block_bytes


def test_the_vllm_table_above_has_every_recipe() -> None:
    vllm = {each.name for each in firesteel.propose(Ask(), GB10) if each.plan.launch.engine == "vllm"}
    assert vllm >= {"qwen3.6-35b-a3b-nvfp4", "qwen3-coder-next-fp8", "gpt-oss-120b-vllm"}


def planned(name: str, flags: Mapping[str, FlagValue] | None = None, host: Host = GB10) -> Plan:
    """A recipe with other flags."""
    known = best(name).plan
    launch = replace(known.launch, flags={**known.launch.flags, **(flags or {})})
    return plan(launch, known.shape, known.weights, host)


def part(of: Plan, name: str) -> Band | None:
    return next((each.bytes for each in of.memory.parts if each.name == name), None)


@pytest.mark.parametrize(
    ("backend", "width", "hidden"),
    [
        ("marlin", 2944, 3072),
        ("auto", 2944, 3072),
        ("flashinfer_cutlass", 2944, 2944),
        ("triton", 2880, 2880),
    ],
)
def test_experts_are_padded_to_the_tile_of_the_kernel(backend: str, width: int, hidden: int) -> None:
    """`mxfp4_round_up_hidden_size_and_intermediate_size` of vLLM 0.28; the checkpoint has 2880 x 2880."""
    found = planned("gpt-oss-120b-vllm", {"moe-backend": backend})
    padding = part(found, "expert padding") or Band.exactly(0)
    blocks, scales = 3 * width * hidden // 2, 3 * width * hidden // 32
    biases = 2 * (2 * width + hidden)
    held = found.weights.bytes_by_role[Role.ROUTED_EXPERTS] + padding.expected
    assert held == 36 * 128 * (blocks + scales + biases)


def test_padding_is_read_with_every_token() -> None:
    padded, plain = (
        planned("gpt-oss-120b-vllm", {"moe-backend": backend}).speed for backend in ("marlin", "triton")
    )
    assert padded is not None and plain is not None
    more = planned("gpt-oss-120b-vllm", {"moe-backend": "marlin"})
    padding = part(more, "expert padding")
    assert padding is not None
    assert padded.bytes_per_token - plain.bytes_per_token == pytest.approx(padding.expected * 4 / 128, abs=1)


def test_only_mxfp4_experts_are_padded() -> None:
    known = best("gpt-oss-120b-vllm").plan
    half = {**known.weights.bytes_by_role, Role.ROUTED_EXPERTS: 36 * 128 * 3 * 2880 * 2880 * 2}
    bf16 = plan(known.launch, known.shape, replace(known.weights, bytes_by_role=half), GB10)
    assert part(bf16, "expert padding") is None
    assert part(best("qwen3.6-35b-a3b-nvfp4").plan, "expert padding") is None


def test_vllm_overhead_grows_with_users_step_and_tower() -> None:
    usual = part(planned("qwen3-coder-next-fp8"), "activations")
    wide = part(planned("qwen3-coder-next-fp8", {"max-num-batched-tokens": "32768"}), "activations")
    many = part(planned("qwen3-coder-next-fp8", {"max-num-seqs": "1024"}), "activations")
    assert usual is not None and wide is not None and many is not None
    assert wide.expected > 3.5 * usual.expected
    assert many.expected > 1024 * 151936 * 2  # the logits of that many requests
    assert part(planned("qwen3-coder-next-fp8"), "vision") is None
    assert part(planned("qwen3.6-35b-a3b-nvfp4"), "vision") is not None


@pytest.mark.parametrize(
    ("flags", "checkpoints"),
    [
        ({}, 131072 // 8192 + 3),
        ({"checkpoint-min-step": "0"}, 32),
        ({"ctx-checkpoints": "4"}, 4),
        ({"ctx-checkpoints": "0"}, 0),
    ],
)
def test_llamacpp_checkpoints_are_counted_as_they_may_grow(
    flags: dict[str, FlagValue], checkpoints: int
) -> None:
    found = planned("qwen3-coder-next-q4", flags)
    copies = part(found, "checkpoints") or Band.exactly(0)
    assert (copies.low, copies.expected) == (0, 0)
    assert copies.high == 2 * checkpoints * 36 * (524288 + 3 * 8192) * 4


def test_a_prompt_cache_without_limit_takes_what_there_is() -> None:
    copies = part(planned("qwen3-coder-next-q4", {"cache-ram": "-1"}), "prompt cache")
    assert copies == Band(0, 0, GB10.room_bytes)


def test_models_that_can_roll_back_need_no_checkpoints() -> None:
    assert part(best("smollm2").plan, "checkpoints") is None


def test_llamacpp_refuses_more_users_than_it_has_sequences() -> None:
    with pytest.raises(UsageError) as refused:
        best("smollm2", context=64, users=300)
    assert refused.value.next == "--users 256"


DESKTOP = Host("local", "a desktop", None, 16, 64 * GIB, 60 * GIB, 3 * GIB, 60e9, "measured")


def test_a_container_uses_the_memory_of_a_discrete_gpu() -> None:
    host = replace(DESKTOP, gpus=(Gpu("NVIDIA RTX 4090", "580", "8.9", 24 * GIB),))
    found = planned("qwen3-coder-next-q4", host=host)
    assert found.memory.budget_bytes == 24 * GIB - 24 * GIB // 20
    assert found.memory.verdict == "does not fit"
    assert found.speed and found.speed.basis == "roofline", "by the data sheet's bandwidth"
    assert any("not calibrated for it" in note for note in found.notes)
    assert any("NVIDIA RTX 4090" in note for note in found.notes)
    assert part(found, "prompt cache") is None and part(found, "checkpoints") is None
    assert best("smollm2", host).plan.memory.budget_bytes == host.room_bytes  # a child process, on the CPU


def test_the_fraction_is_of_gpu_memory() -> None:
    host = replace(DESKTOP, gpus=(Gpu("NVIDIA H200", "580", "9.0", 141 * GIB),))
    known = best("qwen3.6-35b-a3b-nvfp4", host).plan
    fraction = known.launch.flags["gpu-memory-utilization"]
    assert isinstance(fraction, str)
    assert known.memory.needed.high <= float(fraction) * 141 * GIB < known.memory.needed.high + 2 * GIB


def test_a_plan_names_what_it_computes_on() -> None:
    host = replace(DESKTOP, gpus=(Gpu("NVIDIA H200", "580", "9.0", 141 * GIB),))
    assert best("qwen3.6-35b-a3b-nvfp4", host).plan.machine == "NVIDIA H200"
    embedded = best("smollm2", host).plan
    assert embedded.machine == DESKTOP.title
    engine = part(embedded, "engine")
    assert engine and engine.high < 200 * MIB  # no CUDA context


def test_unknown_gpu_memory_is_noted() -> None:
    host = replace(DESKTOP, gpus=(Gpu("NVIDIA RTX 4090", "580", "8.9"),))
    found = planned("qwen3-coder-next-q4", host=host)
    assert found.memory.budget_bytes == host.room_bytes
    assert found.speed is None
    assert any("memory of NVIDIA RTX 4090 is not known" in note for note in found.notes)


def test_a_spark_is_planned_by_its_host_memory() -> None:
    host = replace(GB10, gpus=(Gpu("NVIDIA GB10", "580", "12.1"),))
    assert planned("qwen3-coder-next-q4", host=host).memory == planned("qwen3-coder-next-q4").memory


def test_a_model_without_attention_gets_no_cache_flags() -> None:
    known = best("qwen3-coder-next-fp8").plan
    linear = tuple(layer for layer in known.shape.layers if isinstance(layer, LinearAttention))
    bare = replace(known.launch, flags={"max-model-len": "4096", "max-num-seqs": "1"})
    flags = plan(bare, replace(known.shape, layers=linear), known.weights, GB10).launch.flags
    assert flags["kv-cache-memory-bytes"] != "0"


def test_no_known_run_exceeds_the_bound() -> None:
    """59 tok/s were reported for gpt-oss-120b in vLLM, more than the plain checkpoint allows."""
    speed = best("gpt-oss-120b-vllm").plan.speed
    assert speed is not None
    assert speed.bound_tokens_per_s < 59
    assert "59" not in speed.explanation
    assert speed.decode_tokens_per_s.high < speed.bound_tokens_per_s


def test_the_parts_add_up() -> None:
    memory = best("gpt-oss-120b-vllm").plan.memory
    assert memory.needed.expected == sum(part.bytes.expected for part in memory.parts)
    assert [part.name for part in memory.parts][:2] == ["weights", "KV cache"]


def test_verdicts() -> None:
    needed = best("gpt-oss-120b-llamacpp").plan.memory.needed

    def verdict(room: float) -> str:
        host = replace(GB10, memory_available_bytes=ceil(room) + GB10.keep_free_bytes)
        return best("gpt-oss-120b-llamacpp", host).plan.memory.verdict

    assert verdict(needed.high / 0.98 + 1) == "fits"
    assert verdict(needed.high * 1.01) == "tight"
    assert verdict(needed.expected) == "tight"
    assert verdict(needed.expected - GIB) == "does not fit"


@given(st.integers(1024, 131072), st.integers(1, 8), st.integers(0, 65536))
def test_more_context_never_needs_less_and_is_never_faster(context: int, users: int, more: int) -> None:
    small = best("gpt-oss-120b-llamacpp", context=context, users=users).plan
    large = best("gpt-oss-120b-llamacpp", context=min(131072, context + more), users=users).plan
    assert small.memory.needed.expected <= large.memory.needed.expected
    assert small.speed is not None and large.speed is not None
    assert small.speed.decode_tokens_per_s.expected >= large.speed.decode_tokens_per_s.expected


def test_bands_add() -> None:
    assert Band(1, 2, 3) + Band.exactly(1) == Band(2, 3, 4)


def test_the_largest_context_that_fits() -> None:
    host = replace(GB10, memory_available_bytes=70 * GIB + GB10.keep_free_bytes)
    with pytest.raises(firesteel.FiresteelError) as refused:
        require_runnable(best("gpt-oss-120b-llamacpp", host, context=131072, users=8))
    assert refused.value.exit_code == 4
    assert refused.value.next.startswith("--context ")
    context = int(refused.value.next.split()[1])
    assert best("gpt-oss-120b-llamacpp", host, context=context, users=8).plan.fits
    assert not best("gpt-oss-120b-llamacpp", host, context=context + 1024, users=8).plan.fits


def test_weights_that_do_not_fit_get_no_advice_on_context() -> None:
    host = replace(GB10, memory_available_bytes=30 * GIB + GB10.keep_free_bytes)
    with pytest.raises(firesteel.FiresteelError, match="does not fit") as refused:
        require_runnable(best("gpt-oss-120b-llamacpp", host))
    assert refused.value.next.startswith("firesteel models")


def test_what_does_not_generate_is_planned_as_requests_a_second() -> None:
    generator = best("gpt-oss-120b-vllm").plan
    assert generator.speed and generator.speed.requests_per_s is None and generator.speed.at_depth
    for launch, shape in (
        (replace(generator.launch, flags={**generator.launch.flags, "runner": "pooling"}), generator.shape),
        (replace(generator.launch, model="Qwen/Qwen3-Reranker-8B"), generator.shape),
        (generator.launch, replace(generator.shape, generates=False)),
    ):
        found = plan(launch, shape, generator.weights, GB10)
        speed = found.speed
        assert speed and speed.prefill and speed.requests_per_s
        one_s = speed.prefill.prompt_tokens / speed.prefill.tokens_per_s.expected
        assert speed.requests_per_s.expected == pytest.approx(1 / one_s)
        assert speed.at_depth == () and speed.served is None and speed.batch is None
        assert found.memory.needed == generator.memory.needed


def test_what_writes_down_sound_is_planned_as_sound_a_second() -> None:
    """Whisper keeps 1,500 vectors of each layer for a request, beside up to 448 tokens of text."""
    generator = best("gpt-oss-120b-vllm").plan
    assert generator.speed and generator.speed.sound_s is None
    shape = Architecture(
        "whisper", (FullAttention(20, 64, 64),) * 32, 1280, 51866, 448, speech=Speech(1500, 4, 1500)
    )
    stored = {Role.TOWER: 636_968_960 * 2, Role.ATTENTION: 419_430_400 * 2, Role.DENSE_MLP: 419_430_400 * 2}
    formats = {(role, "BF16"): size for role, size in stored.items()}
    weights = Weights(stored, "counted", "a test", bytes_by_format=formats)
    launch = replace(generator.launch, model="openai/whisper-large-v3", flags={"max-num-seqs": "4"})
    found = plan(launch, shape, weights, GB10)
    speed, user_bytes = found.speed, (448 + 1500) * 32 * 2 * 1280 * 2
    many = plan(replace(launch, flags={"max-num-seqs": "16"}), shape, weights, GB10).cache.bytes
    assert 16 * user_bytes <= many <= 16.2 * user_bytes
    assert speed and speed.requests_per_s and speed.sound_s == 30
    rate = speed.requests_per_s
    assert rate.low < rate.expected / 2 and rate.high > 1.5 * rate.expected
    assert 0.3 < rate.expected < 3  # a pass of 637 M weights and 100 steps of 1.7 GB at 273 GB/s: a second
    assert speed.prefill is None and speed.served is None and speed.at_depth == ()
    assert "no run of a speech model" in speed.explanation
    assert "sound" in {part.name for part in found.memory.parts}
    assert any("30 s of sound" in note for note in found.notes)
    # vLLM 0.32's WhisperForConditionalGeneration, asked by `scripts/record-kv` on 2026-11-16
    assert found.cache.bytes == 1_415_577_600 and found.cache.pool_bytes >= 1_418_199_040
    (printed,) = printed_sound_cache(replace(launch, version="0.32.0"), shape, 448, 4 * GIB)
    assert (printed.num_blocks, printed.tokens, printed.concurrency_text) == (1638, 1358, "3.03")
    elsewhere = replace(GB10, name="other", hardware=None, bandwidth_kind="measured")
    assert plan(launch, shape, weights, elsewhere).speed is None


CONFIGS = Path(__file__).parent.parent / "facts" / "configs"
NAMES = ("Qwen--Qwen3-8B", "Qwen--Qwen3.5-35B-A3B", "meta-llama--Meta-Llama-3.1-70B")


def layouts(name: str) -> tuple[Weights, Weights]:
    sizes = parameters_of_config(json.loads((CONFIGS / f"{name}.json").read_text()))
    light, heavy = (make(sizes, "nvfp4", "config.json") for make in (typical_weights, heavier_weights))
    assert light is not None and heavy is not None
    return light, heavy


def planned_layouts(name: str, weights: Weights, heavier: Weights | None, *seen: MeasuredMemory) -> Plan:
    shape = architecture_of_config(json.loads((CONFIGS / f"{name}.json").read_text()))
    checkpoint = Checkpoint(name, name, "safetensors", name, shape, weights, heavier=heavier)
    known = {each.key: each for each in seen}
    return propose_checkpoint(
        checkpoint, plans.catalog().images, GB10, Ask(context=40960, users=5), known
    ).plan


def lies_between(middle: Band, one: Band, other: Band) -> bool:
    low, high = sorted((one.expected, other.expected))
    return (
        (middle.low, middle.high) == (min(one.low, other.low), max(one.high, other.high))
        and low <= middle.expected <= high
        and (low == high or low < middle.expected < high)
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_lies_between_those_of_the_layouts(name: str) -> None:
    light, heavy = layouts(name)
    both = [planned_layouts(name, *each).speed for each in ((light, heavy), (light, None), (heavy, None))]
    middle, fast, slow = both
    assert middle and fast and slow and middle.batch and fast.batch and slow.batch
    assert lies_between(*(each.decode_tokens_per_s for each in (middle, fast, slow)))
    assert slow.bound_tokens_per_s < middle.bound_tokens_per_s < fast.bound_tokens_per_s
    assert fast.bytes_per_token < middle.bytes_per_token < slow.bytes_per_token
    for (depth, band), (_, one), (_, other) in zip(
        middle.at_depth, fast.at_depth, slow.at_depth, strict=True
    ):
        assert lies_between(band, one, other), depth
    crowds = (middle.batch, fast.batch, slow.batch)
    assert lies_between(*(each.per_user_tokens_per_s for each in crowds))
    assert lies_between(*(each.total_tokens_per_s for each in crowds))
    assert middle.start_up and fast.start_up and slow.start_up
    assert lies_between(middle.start_up.seconds, fast.start_up.seconds, slow.start_up.seconds)


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_agree_with_each_other(name: str) -> None:
    """Nobody is faster deeper or in a crowd, bytes make the bound, and the parts of a step its rate."""
    speed = planned_layouts(name, *layouts(name)).speed
    assert speed and speed.batch
    alone = speed.decode_tokens_per_s
    rates = [band.expected for _, band in speed.at_depth]
    assert rates == sorted(rates, reverse=True) and rates[0] == pytest.approx(alone.expected)
    assert speed.batch.per_user_tokens_per_s.expected <= alone.expected
    assert speed.batch.total_tokens_per_s.expected == pytest.approx(
        5 * speed.batch.per_user_tokens_per_s.expected
    )
    assert speed.bytes_per_token * speed.bound_tokens_per_s == pytest.approx(speed.bandwidth_bytes_per_s)
    assert sum(speed.parts_ms.values()) == pytest.approx(1000 / alone.expected, rel=0.01)
    if speed.prefill:
        tokens, took = speed.prefill.tokens_per_s, speed.prefill.ttft_ms
        assert tokens.expected == pytest.approx(1000 * speed.prefill.prompt_tokens / took.expected)


@pytest.mark.parametrize("name", NAMES[:2])  # the third needs more than there is
def test_the_fraction_covers_the_heavy_layout(name: str) -> None:
    plan = planned_layouts(name, *layouts(name))
    fraction = plan.launch.flags["gpu-memory-utilization"]
    assert isinstance(fraction, str)
    assert float(fraction) * plan.memory.host_total_bytes >= plan.memory.needed.high
    assert plan.memory.needed.high == planned_layouts(name, layouts(name)[1], None).memory.needed.high


@pytest.mark.parametrize(("way", "is_used"), [(-1.0, False), (0.25, False), (0.75, True), (2.0, True)])
def test_a_measurement_applies_to_both_layouts_or_none(way: float, is_used: bool) -> None:
    """What the process held beside its cache, from the light weights (0) on the way to the heavy ones (1)."""
    name, (light, heavy) = NAMES[0], layouts(NAMES[0])
    before = planned_layouts(name, light, heavy)
    held = light.total_bytes + way * (heavy.total_bytes - light.total_bytes)
    seen = MeasuredMemory(
        launch_key(before.launch),
        "vllm",
        None,
        round(held) + before.kv_bytes,
        "2026-11-15",
        checkpoint_bytes=light.total_bytes,
        planned_kv_bytes=before.kv_bytes,
    )
    after = planned_layouts(name, light, heavy, seen)
    assert any(part.basis == "measured" for part in after.memory.parts) is is_used
    assert any("not used" in note for note in after.notes) is not is_used
    weights = after.memory.parts[0].bytes
    assert (weights.low, weights.high) == (light.total_bytes, heavy.total_bytes)


def test_parts_that_only_one_layout_has_may_be_absent() -> None:
    one = planned_layouts(NAMES[0], layouts(NAMES[0])[0], None)
    padding = MemoryPart("expert padding", Band.exactly(GIB), "formula", "")
    more = replace(one, memory=replace(one.memory, parts=(*one.memory.parts[:2], padding)))
    for first, second in ((one, more), (more, one)):
        found = between(first, second).memory
        assert next(part.bytes for part in found.parts if part.name == "expert padding") == Band(
            0, GIB / 2, GIB
        )
    assert memory_between(one.memory, one.memory) == one.memory
