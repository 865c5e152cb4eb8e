"""The settings of vLLM's KV cache: the flags of a launch, and the defaults of its release for the others.

The defaults changed often, and each change altered how much a server holds: see
`tests/engines/kv_cases/README.md` for the releases. Read in the wheels of vLLM 0.11 to 0.32
(`engine/arg_utils.py`, `config/vllm.py`, `model_executor/models/config.py`), seen 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from packaging.version import InvalidVersion, Version

from firesteel.engines.engine import expand_shortcuts
from firesteel.engines.flags import positive_int
from firesteel.engines.kv_cache import STATE_DTYPES, VLLM_DTYPES, bytes_per_value, text_flag
from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Mamba2,
    SlidingAttention,
)
from firesteel.launch import FlagValue, Launch
from firesteel.values import Value

Release = tuple[int, ...]
MambaCacheMode = Literal["none", "align", "all"]

OLDEST: Release = (0, 11)
NEWEST: Release = (0, 32)
"""The releases whose code was read; `NEWEST` is compared by its first two numbers."""
CHANGED_IN: tuple[Release, ...] = (
    (0, 11), (0, 12), (0, 14), (0, 15), (0, 18), (0, 20), (0, 20, 1), (0, 22), (0, 24), (0, 26), (0, 27),
    (0, 28), (0, 29), (0, 30), (0, 32),
)  # fmt: skip
"""The releases in which the arithmetic changed; between two of them it is the same."""

_BATCHED_TOKENS = 8192
"""`max_num_batched_tokens` of a server on a GPU with 70 GiB or more, without the flag."""
_MODEL_DTYPE_STATES = frozenset({"qwen3_next", "granitemoehybrid", "olmo_hybrid"})
"""Families whose states have the dtype of the model, BF16, unless a flag or the config sets another.
Nemotron-H is float32 by its class; Qwen3.5 and 3.6 by their config; KDA by its kernel."""
_ALL_MODE_FAMILIES = frozenset({"nemotron_h", "granitemoehybrid"})
"""Families that can keep the state of every block (`SupportsMambaPrefixCaching`)."""
_BUILT_IN_DRAFTERS = frozenset({"mtp", "qwen3_next_mtp", "qwen3_5_mtp", "deepseek_mtp", "glm4_moe_mtp",
    "nemotron_h_mtp", "mimo_mtp", "mimo_v2_mtp", "step3p5_mtp"})  # fmt: skip
"""Names for the drafter inside the checkpoint; each release takes `mtp`, the others are older spellings."""
SLIDING_DRAFTER_FAMILIES = frozenset({"mimo_v2_flash"})
"""Families whose drafter is one sliding layer: vLLM loads the first of several (`mimo_v2_mtp.py`, 0.32)."""
_DRAFTERS_WITHOUT_LAYERS = frozenset({"ngram", "ngram_gpu", "suffix"})
_SYNCHRONOUS_DRAFTERS = frozenset(
    {"ngram", "suffix", "medusa", "mlp_speculator", "draft_model", "custom_class"}
)
_PARALLEL_FLAGS = ("tensor-parallel-size", "pipeline-parallel-size", "decode-context-parallel-size")
_BLOCK_OF_16_BACKENDS = frozenset(
    {"", "FLASH_ATTN", "TRITON_ATTN", "FLASHINFER", "FLEX_ATTENTION", "TRITON_MLA"}
)
"""Attention backends that take blocks of 16 tokens. The first is whatever vLLM picks on a GB10."""


class KvSettings(Value):
    release: Release
    value_bytes: int
    """Bytes per value of a key."""
    block_size: int | None
    """`--block-size`; None: vLLM chooses."""
    in_flight_tokens: int
    """Tokens that may be scheduled and not yet processed."""
    retained_tokens: int
    """Tokens before a window that are kept for drafters of several modules."""
    draft_tokens: int
    has_drafter: bool
    """Whether the drafter inside the checkpoint is loaded."""
    mamba_mode: MambaCacheMode
    """How many states of a recurrent layer vLLM keeps."""
    state_value_bytes: int
    conv_value_bytes: int
    is_hybrid_managed: bool
    """Whether layers of different kinds may have their own block tables."""
    layout: str
    num_blocks_override: int | None
    """`--num-gpu-blocks-override`."""
    unsure: str = ""
    """Why the figures may differ from vLLM's own; empty when they do not."""


def read_settings(launch: Launch, architecture: Architecture, release: Release | None = None) -> KvSettings:
    """`release` is for what another release would do with the same launch."""
    flags = expand_shortcuts(launch)
    release = release or parse_release(launch.version) or NEWEST
    tokens = speculative_tokens(flags)
    has_drafter = bool(tokens) and _draft_method(flags) in _BUILT_IN_DRAFTERS
    retains = has_drafter and release >= (0, 28) and min(tokens, architecture.drafter_layers) > 1
    conv_value_bytes = STATE_DTYPES.get(text_flag(flags, "mamba-cache-dtype", "auto"), 2)
    # DeepSeek-V4 has blocks outermost; other models have layers outermost unless a variable sets it.
    is_compressed = any(isinstance(layer, CompressedAttention) for layer in architecture.layer_counts)
    return KvSettings(
        release=release,
        value_bytes=bytes_per_value(
            VLLM_DTYPES, text_flag(flags, "kv-cache-dtype", "auto"), "kv-cache-dtype"
        ),
        block_size=positive_int(flags.get("block-size")) or _cpu_block_size(launch, architecture),
        in_flight_tokens=_batches_in_flight(flags, release)
        * (positive_int(flags.get("max-num-batched-tokens")) or _BATCHED_TOKENS),
        retained_tokens=tokens - 1 if retains else 0,
        draft_tokens=tokens,
        has_drafter=has_drafter,
        mamba_mode=_mamba_mode(flags, release, architecture),
        state_value_bytes=_state_value_bytes(flags, architecture, conv_value_bytes),
        conv_value_bytes=conv_value_bytes,
        is_hybrid_managed=_is_hybrid_managed(launch, flags, release, architecture),
        layout=launch.env.get("VLLM_KV_CACHE_LAYOUT", "BLHNC" if is_compressed else "LBNHC"),
        num_blocks_override=positive_int(flags.get("num-gpu-blocks-override")),
        unsure=_unsure(launch, flags, architecture),
    )


def _cpu_block_size(launch: Launch, architecture: Architecture) -> int | None:
    """`vllm/platforms/cpu.py` of 0.32, where MLA has its own. None: on a GPU the backend decides."""
    has_latent = any(isinstance(layer, LatentAttention) for layer in architecture.layer_counts)
    is_cpu = launch.program is not None and not launch.program.uses_gpu
    return 128 if is_cpu and not has_latent else None


def parse_release(version: str | None) -> Release | None:
    """A pre-release is taken for its release. None: not a version."""
    try:
        return Version(version).release if version else None
    except InvalidVersion:
        return None


def candidate_releases(launch: Launch) -> tuple[Release, ...]:
    """The release of the launch; the nearest where it is not known, all where the launch names none."""
    release = parse_release(launch.version)
    if release is None:
        return CHANGED_IN
    return (release,) if OLDEST <= release[:2] <= NEWEST else (NEWEST if release > NEWEST else OLDEST,)


_SGLANG_DRAFT_TOKENS = 4
"""What SGLang itself chooses for most models (`auto_choose_speculative_params`)."""


def speculative_tokens(flags: Mapping[str, FlagValue]) -> int:
    """How many tokens a launch drafts; SGLang counts the model's own among them."""
    if "speculative-algorithm" in flags:
        requested = positive_int(flags.get("speculative-num-draft-tokens"))
        return max(1, (requested or _SGLANG_DRAFT_TOKENS) - 1)
    config = flags.get("speculative-config")
    tokens = config.get("num_speculative_tokens", 0) if isinstance(config, dict) else 0
    if isinstance(tokens, str):
        return positive_int(tokens) or 0
    return tokens if type(tokens) is int and tokens > 0 else 0


def _draft_method(flags: Mapping[str, FlagValue]) -> str:
    """Without a method, a separate model is a drafter; without either it is the built-in one."""
    config = flags.get("speculative-config")
    if not isinstance(config, dict):
        return ""
    return str(config.get("method") or ("draft_model" if config.get("model") else "mtp"))


def _batches_in_flight(flags: Mapping[str, FlagValue], release: Release) -> int:
    """Batches whose tokens a window still holds; two with asynchronous scheduling."""
    if release < (0, 26) or flags.get("async-scheduling") is False:
        return 1
    if flags.get("async-scheduling") is True or not speculative_tokens(flags):
        return 2
    method = _draft_method(flags)
    overlaps = method not in _SYNCHRONOUS_DRAFTERS or (method == "draft_model" and release >= (0, 32))
    return 2 if overlaps else 1


def _mamba_mode(
    flags: Mapping[str, FlagValue], release: Release, architecture: Architecture
) -> MambaCacheMode:
    if not is_hybrid(architecture) or not _caches_prefixes(flags, release, architecture):
        return "none"
    requested = text_flag(flags, "mamba-cache-mode", "none")
    can_keep_all = release < (0, 32) and architecture.model_type in _ALL_MODE_FAMILIES
    if requested == "none":
        requested = "all" if release < (0, 28) else "align"
    return "all" if requested == "all" and can_keep_all else "align"


def _caches_prefixes(flags: Mapping[str, FlagValue], release: Release, architecture: Architecture) -> bool:
    """Hybrids do so by default from 0.28 on; before 0.15 only those that keep the state of every block
    can."""
    requested = flags.get("enable-prefix-caching")
    if release < (0, 15) and architecture.model_type not in _ALL_MODE_FAMILIES:
        return False
    return requested if isinstance(requested, bool) else release >= (0, 28)


def is_hybrid(architecture: Architecture) -> bool:
    """Whether recurrent layers are mixed with layers that have a cache."""
    layers = architecture.layer_counts
    return any(isinstance(layer, LinearAttention | Mamba2) for layer in layers) and any(
        hasattr(layer, "kv_heads") or isinstance(layer, LatentAttention) for layer in layers
    )


def _state_value_bytes(
    flags: Mapping[str, FlagValue], architecture: Architecture, conv_value_bytes: int
) -> int:
    requested = STATE_DTYPES.get(text_flag(flags, "mamba-ssm-cache-dtype", "auto"))
    if requested:
        return requested
    if architecture.model_type in _MODEL_DTYPE_STATES:
        return conv_value_bytes
    return STATE_DTYPES.get(architecture.state_dtype or "", 4)


def _is_hybrid_managed(
    launch: Launch, flags: Mapping[str, FlagValue], release: Release, architecture: Architecture
) -> bool:
    """Before 0.14 models with chunked layers needed an environment variable for it."""
    if flags.get("disable-hybrid-kv-cache-manager") is True:
        return False
    chunked = any(isinstance(layer, ChunkedAttention) for layer in architecture.layer_counts)
    requested = launch.env.get("VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE") == "1"
    return not chunked or requested or release >= (0, 14)


def _unsure(launch: Launch, flags: Mapping[str, FlagValue], architecture: Architecture) -> str:
    """The first reason why the figures may be wrong; they are still the best estimate."""
    release = parse_release(launch.version)
    if release is None:
        return "the release is not known"
    if not OLDEST <= release[:2] <= NEWEST:
        return f"vLLM {launch.version} is not one of the releases that were read, 0.11 to 0.32"
    if parallel := next((flag for flag in _PARALLEL_FLAGS if (positive_int(flags.get(flag)) or 1) > 1), None):
        return f"`--{parallel}` splits the cache, and the figures are for one GPU"
    drafter = _draft_method(flags) if speculative_tokens(flags) else ""
    if drafter and drafter not in _BUILT_IN_DRAFTERS | _DRAFTERS_WITHOUT_LAYERS:
        return "the drafter is another checkpoint, whose layers are not counted"
    has_windows = any(
        isinstance(layer, SlidingAttention | ChunkedAttention) for layer in architecture.layer_counts
    )
    is_known = architecture.drafters or architecture.model_type in SLIDING_DRAFTER_FAMILIES
    if drafter in _BUILT_IN_DRAFTERS and has_windows and not is_known:
        return "whether the drafter's layers slide is not known"
    if "kv-transfer-config" in flags:
        return "a KV connector may change the layout and the groups"
    backend = text_flag(flags, "attention-backend", "").upper()
    if backend not in _BLOCK_OF_16_BACKENDS:
        return f"the blocks that `{backend}` takes are not known"
    return _unread_combination(release, architecture)


def _unread_combination(release: Release, architecture: Architecture) -> str:
    if release < (0, 24) and any(
        isinstance(layer, CompressedAttention) for layer in architecture.layer_counts
    ):
        return "DeepSeek-V4 was not read in releases before 0.24"
    latent = [layer for layer in architecture.layer_counts if isinstance(layer, LatentAttention)]
    sparse = [layer for layer in latent if layer.attends]
    if sparse and release < (0, 24):
        return "sparse MLA has no backend for a GB10 before vLLM 0.24"
    if release[:2] == (0, 29) and any(layer.indexer is None for layer in sparse):
        return "whether vLLM 0.29 gives an index to layers that share one was not read"
    if latent and is_hybrid(architecture) and release >= (0, 30):  # KDA
        return "KDA keeps one state more where its kernel can"
    return ""
