"""Predicted speed: which evidence it is based on, whether its band holds the runs, how it is explained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from calibration.measured_models import models
from hypothesis import given
from hypothesis import strategies as st

import firesteel
from firesteel.engines.kv_cache import KvCache
from firesteel.errors import UsageError
from firesteel.facts.model.architecture import Architecture, FullAttention, LinearAttention
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.tensors import Role, Weights
from firesteel.facts.model.typical import typical_weights
from firesteel.launch import Ask, Container, EngineName, FlagValue, Launch
from firesteel.planner.memory.account import MemoryPool
from firesteel.planner.speed import published
from firesteel.planner.speed.predict import MAX_CONTEXT, MAX_USERS, predict_speed
from firesteel.planner.speed.speed import Speed
from firesteel.planner.speed.startup import predict_start_up
from firesteel.units import GIB, Band
from firesteel.values import replace

CONFIGS = Path(__file__).parent.parent / "facts" / "configs"
SPARK = MemoryPool(121 * GIB, 105 * GIB, 273e9, "gb10", True)
DENSE = Architecture("llama", (FullAttention(8, 128, 128),) * 32, 4096, 128_256, 131_072)
DENSE_WEIGHTS = Weights(
    {Role.ATTENTION: 2_684_354_560, Role.DENSE_MLP: 11_274_289_152, Role.HEAD: 1_050_673_152},
    "derived",
    "shapes",
)


def launch(
    model: str = "somebody/something",
    engine: EngineName = "vllm",
    flags: Mapping[str, FlagValue] | None = None,
    version: str | None = None,
    sparks: int = 1,
) -> Launch:
    container = Container("an-image", gpus="all")
    return Launch("it", model, engine, version, flags or {}, container=container, sparks=sparks)


def cache(users: int = 1, context: int = 32_768, dtype: str = "fp8") -> KvCache:
    return KvCache(GIB, 1, 0, context, users, dtype)


def speed(of: Launch, kv: KvCache | None = None, pool: MemoryPool = SPARK) -> Speed:
    found = predict_speed(of, DENSE, DENSE_WEIGHTS, kv or cache(), pool)
    assert found is not None
    return found


def measured_speed(run: published.PublishedRun, flags: Mapping[str, FlagValue] | None = None) -> Speed:
    """A plan of the very checkpoint that was measured."""
    model = models().shapes[run.shape]
    by_role: dict[Role, int] = {}
    for (role, _), size in model.stored(run.layout).items():
        by_role[role] = by_role.get(role, 0) + round(size)
    engine: EngineName = "llamacpp" if run.engine == "llamacpp" else "vllm"
    found = predict_speed(
        launch(run.checkpoint, engine, flags, run.version.split(" ")[0].removeprefix("b")),
        model.architecture(run.shape),
        Weights(by_role, "derived", "shapes"),
        cache(dtype=run.kv_dtype or "auto"),
        SPARK,
    )
    assert found is not None
    return found


def test_an_unknown_model_is_fitted() -> None:
    found = speed(launch())
    assert found.basis == "fitted"
    assert "left out" in found.explanation
    assert found.sources
    assert found.decode_tokens_per_s.high <= found.bound_tokens_per_s


def test_a_measured_checkpoint_is_corrected_by_its_runs() -> None:
    runs = [
        run
        for run in published.runs_with_layout("vllm")
        if run.is_plain and run.checkpoint == "Qwen/Qwen3.6-27B-FP8"
    ]
    found = measured_speed(runs[0])
    assert found.basis == "measured recipe"
    assert found.sources == (published.run_sources()["djangodevreng"].url,)
    assert "0.26.0" in found.explanation
    assert found.decode_tokens_per_s.expected == pytest.approx(7.87, rel=0.02)
    assert sum(found.parts_ms.values()) == pytest.approx(1000 / found.decode_tokens_per_s.expected)


def test_another_version_has_a_weaker_basis_and_a_wider_band() -> None:
    run = next(
        run
        for run in published.runs_with_layout("vllm")
        if run.is_plain and run.checkpoint == "Qwen/Qwen3.6-27B-FP8"
    )
    same, other = measured_speed(run), measured_speed(replace(run, version="0.30.0"))
    assert (same.basis, other.basis) == ("measured recipe", "measured model")
    assert other.decode_tokens_per_s.expected == pytest.approx(same.decode_tokens_per_s.expected)
    assert other.decode_tokens_per_s.low < same.decode_tokens_per_s.low


def test_every_measured_checkpoint_finds_its_own_runs_in_the_band() -> None:
    """At the depths that runs were made at, by the band of the depth next above and below."""
    seen = set()
    for run in published.runs_with_layout("vllm"):
        if not (run.is_plain and run.checkpoint and run.depth == 1024 and not run.kind):
            continue
        band = measured_speed(run).decode_tokens_per_s
        assert run.decode_tps is not None
        assert band.low <= run.decode_tps <= band.high, run
        seen.add(run.checkpoint)
    assert len(seen) > 20


def test_eager_runs_do_not_pull_down_what_is_expected_with_graphs() -> None:
    """gpt-oss-120b went at 26 tok/s in eager mode and at 33.5 with graphs, once each: the band has both."""
    run = next(run for run in published.runs_with_layout("vllm") if "eager" in run.note and run.sparks == 1)
    graphs, eager = measured_speed(run), measured_speed(run, {"enforce-eager": True})
    assert eager.decode_tokens_per_s.expected < 27 and graphs.decode_tokens_per_s.expected > 33
    assert eager.decode_tokens_per_s.low < 26 and graphs.decode_tokens_per_s.low < 27


def test_another_machine_has_only_the_roofline() -> None:
    found = speed(launch(), pool=replace(SPARK, hardware=None))
    assert found.basis == "roofline"
    assert found.sources and found.batch is None and found.prefill is None


def test_without_a_bandwidth_there_is_no_prediction() -> None:
    assert (
        predict_speed(launch(), DENSE, DENSE_WEIGHTS, cache(), replace(SPARK, bandwidth_bytes_per_s=None))
        is None
    )


@given(st.integers(1, 64), st.integers(1024, 200_000))
def test_bands_are_in_order_and_under_the_bound(users: int, context: int) -> None:
    engines: tuple[EngineName, ...] = ("vllm", "llamacpp", "sglang")
    for engine in engines:
        found = speed(launch(engine=engine), cache(users, context))
        bands = [found.decode_tokens_per_s, *(band for _, band in found.at_depth)]
        assert all(band.low <= band.expected <= band.high <= found.bound_tokens_per_s for band in bands)
        deeper = [band.expected for _, band in found.at_depth]
        assert deeper == sorted(deeper, reverse=True)
        if found.batch:
            batch = found.batch
            assert batch.per_user_tokens_per_s.expected <= 1.1 * found.decode_tokens_per_s.expected
            assert (
                batch.total_tokens_per_s.low
                <= batch.total_tokens_per_s.expected
                <= batch.total_tokens_per_s.high
            )


def test_the_parts_add_up_to_the_step() -> None:
    found = speed(launch())
    assert sum(found.parts_ms.values()) == pytest.approx(1000 / found.decode_tokens_per_s.expected)
    assert {"weights", "head and sampling", "KV cache and states", "layers"} <= found.parts_ms.keys()


def test_sglang_names_the_runs_it_is_based_on() -> None:
    found, vllm = speed(launch(engine="sglang")), speed(launch(version="0.26.0"))
    assert "those are of vLLM 0.26: 4 runs of sglang by other people were off by" in found.explanation
    assert found.decode_tokens_per_s.high > vllm.decode_tokens_per_s.high


def test_a_release_that_nothing_was_fitted_to_has_the_errors_of_other_people() -> None:
    def band(version: str | None, engine: EngineName = "vllm") -> Band:
        return speed(launch(engine=engine, version=version)).decode_tokens_per_s

    fitted, other = band("0.26.1"), band("0.28.0")
    assert other.expected == fitted.expected and other.low < 0.9 * fitted.low and other.high > fitted.high
    assert band(None) == other
    assert band("11549", "llamacpp") == band(None, "llamacpp")


def test_two_sparks_are_faster_than_one_and_slower_than_twice() -> None:
    one, two = (speed(launch(sparks=sparks)).decode_tokens_per_s for sparks in (1, 2))
    assert one.expected < two.expected < 2 * one.expected
    assert two.low / two.expected < one.low / one.expected


def test_more_than_two_sparks_are_explained() -> None:
    four, eight = (speed(launch(sparks=sparks)) for sparks in (4, 8))
    alone = [
        run
        for run in published.runs()
        if run.sparks == 4 and run.users == 1 and run.speculation == "?" and run.decode_tps
    ]
    assert f"the {len(alone)} known runs on 4 Sparks" in four.explanation
    assert "no run on 8 Sparks is known: an extrapolation" in eight.explanation
    assert not [run for run in published.runs() if run.sparks > 4]


def test_runs_on_four_sparks_lie_in_the_band() -> None:
    """They may have drafted, so nothing is fitted to them; 37 tok/s were above every earlier prediction."""
    config = json.loads((CONFIGS / "Qwen--Qwen3.5-397B-A17B.json").read_text())
    weights = typical_weights(parameters_of_config(config), "int4", "config.json")
    kv = cache(context=200_000)
    found = predict_speed(launch(sparks=4), architecture_of_config(config), weights, kv, SPARK)
    runs = [run for run in published.runs() if run.sparks == 4 and run.users == 1 and "397B" in run.model]
    assert found and len(runs) == 9
    band = found.decode_tokens_per_s
    assert all(band.low < (run.decode_tps or 0) < band.high for run in runs)


def test_eight_sparks_may_be_faster_than_one() -> None:
    """All-reduces around a ring of eight are the worst case, not the only one."""
    one, eight = (speed(launch(sparks=sparks)).decode_tokens_per_s for sparks in (1, 8))
    assert eight.expected < eight.high and one.expected < eight.high


@pytest.mark.parametrize(
    ("kv", "fix"),
    [
        (cache(users=MAX_USERS + 1), f"--users {MAX_USERS}"),
        (cache(context=MAX_CONTEXT + 1), f"--context {MAX_CONTEXT}"),
    ],
)
def test_impossible_requests_are_refused_with_the_limit(kv: KvCache, fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        speed(launch(), kv)
    assert refused.value.next == fix


MTP: dict[str, FlagValue] = {"speculative-config": {"method": "mtp", "num_speculative_tokens": 3}}


def test_drafting_is_a_range_for_each_kind_of_text() -> None:
    found = speed(launch(flags=MTP))
    texts = {drafted.text: drafted.decode_tokens_per_s for drafted in found.drafted}
    assert set(texts) == {"prose", "conversation", "code", "reasoning", "structured"}
    assert texts["prose"].expected < texts["code"].expected < texts["reasoning"].expected
    assert all(band.low < band.expected < band.high for band in texts.values())
    assert found.decode_tokens_per_s == speed(launch()).decode_tokens_per_s  # which stays without drafting
    assert not speed(launch()).drafted


@pytest.mark.parametrize(
    ("engine", "flags", "method"),
    [
        ("vllm", {"speculative-config": {"method": "dflash", "model": "a/b"}}, "dflash"),
        ("vllm", {"speculative-config": {"method": "eagle3", "model": "a/b"}}, "eagle3"),
        ("sglang", {"speculative-algorithm": "NEXTN"}, "mtp"),
        ("llamacpp", {"model-draft": "small.gguf"}, "draft model"),
    ],
)
def test_the_drafter_of_every_engine_is_recognized(
    engine: EngineName, flags: dict[str, FlagValue], method: str
) -> None:
    found = speed(launch(engine=engine, flags=flags)).drafted
    assert found and found[0].explanation.startswith(f"{method}: ")


def test_a_mixture_gains_less_from_drafting() -> None:
    mixture = replace(DENSE, experts=128, experts_per_token=8)
    weights = Weights({Role.ATTENTION: 10**9, Role.ROUTED_EXPERTS: 10**10}, "derived", "shapes")
    found = predict_speed(launch(flags=MTP), mixture, weights, cache(), SPARK)
    assert found is not None
    dense = speed(launch(flags=MTP))
    gains = [
        each.drafted[2].decode_tokens_per_s.expected / each.decode_tokens_per_s.expected
        for each in (dense, found)
    ]
    assert gains[0] > 1.5 * gains[1]


def test_users_share_what_a_step_reads() -> None:
    batch = speed(launch(), cache(users=8)).batch
    assert batch is not None and batch.users == 8
    assert batch.total_tokens_per_s.expected == pytest.approx(8 * batch.per_user_tokens_per_s.expected)
    assert batch.total_tokens_per_s.expected > 4 * speed(launch()).decode_tokens_per_s.expected


def test_recurrent_layers_do_not_scale_in_llamacpp() -> None:
    """Nemotron-3-Nano-4B went from 54 tok/s for one to 129 for thirty-two."""
    hybrid = replace(DENSE, layers=(*DENSE.layers[:8], *(LinearAttention(983_040, 9728, 4),) * 24))
    found = predict_speed(launch(engine="llamacpp"), hybrid, DENSE_WEIGHTS, cache(32, dtype="f16"), SPARK)
    plain = speed(launch(engine="llamacpp"), cache(32, dtype="f16"))
    assert found is not None and found.batch is not None and plain.batch is not None
    assert found.batch.total_tokens_per_s.expected < 0.5 * plain.batch.total_tokens_per_s.expected


class WeightsWithFormats(Weights):
    """Weights whose formats are known, as from a header."""

    bytes_by_format: Mapping[tuple[Role, str], int] = {}


def weights_in(dtype: str) -> WeightsWithFormats:
    by_role = DENSE_WEIGHTS.bytes_by_role
    return WeightsWithFormats(
        by_role, "counted", "a header", False, {(role, dtype): size for role, size in by_role.items()}
    )


def test_a_prompt_is_read_where_formats_are_known() -> None:
    assert speed(launch()).prefill is None
    found = predict_speed(launch(), DENSE, weights_in("BF16"), cache(), SPARK)
    assert found is not None and found.prefill is not None
    assert found.prefill.prompt_tokens == 8192
    # granite-4.1-8b has about this shape: 4,119 tok/s and 1.9 s for 8192 tokens in vLLM 0.26
    assert found.prefill.tokens_per_s.low < 4119 < found.prefill.tokens_per_s.high
    assert found.prefill.ttft_ms.low < 1900 < found.prefill.ttft_ms.high
    assert "left out were off by" in found.prefill.explanation
    assert "not known" not in found.explanation


def test_marlin_reads_prompts_slower_than_native_eight_bits() -> None:
    marlin, native = (
        predict_speed(launch(flags=flags), DENSE, weights_in("F8_E4M3"), cache(), SPARK)
        for flags in ({"linear-backend": "marlin"}, {})
    )
    assert marlin is not None and marlin.prefill is not None
    assert native is not None and native.prefill is not None
    assert marlin.prefill.ttft_ms.expected > 1.5 * native.prefill.ttft_ms.expected


def test_a_path_without_runs_has_no_prediction() -> None:
    found = predict_speed(launch(engine="llamacpp"), DENSE, weights_in("BF16"), cache(dtype="f16"), SPARK)
    assert found is not None and found.prefill is None
    assert "none of the runs has weights in BF16" in found.explanation


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_several_hosts_have_to_form_a_cluster_first(engine: EngineName) -> None:
    one = predict_start_up(launch(engine=engine), 10**9)
    two = predict_start_up(replace(launch(engine=engine), sparks=2), 10**9)
    assert "cluster forming" not in [phase.name for phase in one.phases]
    assert [phase.name for phase in two.phases][1:3] == ["cluster forming", "weights"]


def test_start_up_has_phases_and_depends_on_the_load_format() -> None:
    usual = speed(launch(engine="llamacpp")).start_up
    mapped = speed(launch(engine="llamacpp", flags={"load-mode": "mmap"})).start_up
    assert usual is not None and mapped is not None
    assert mapped.seconds.expected > 3 * usual.seconds.expected
    vllm, eager = speed(launch()).start_up, speed(launch(flags={"enforce-eager": True})).start_up
    assert vllm is not None and eager is not None
    assert {"weights", "compile", "CUDA graphs"} <= {phase.name for phase in vllm.phases}
    assert not {"compile", "CUDA graphs"} & {phase.name for phase in eager.phases}
    assert vllm.again_seconds.high < vllm.seconds.high
    assert all(phase.source.startswith("https://") for phase in vllm.phases)


def test_the_catalog_uses_the_best_basis() -> None:
    proposals = firesteel.propose(Ask(), firesteel.host("gb10"))
    bases = {proposal.name: proposal.plan.speed.basis for proposal in proposals if proposal.plan.speed}
    assert bases["gpt-oss-120b-llamacpp"] == "measured model"
    assert bases["qwen3-coder-next-fp8"] == "fitted"
    assert bases["smollm2"] == "roofline"
