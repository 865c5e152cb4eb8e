"""What a launch of vLLM says of its KV cache: flags, and what the release makes of those left out.

The defaults moved often, and each move changed what a server holds: see `tests/engines/kv_cases/README.md`
for when. Read in the wheels of vLLM 0.11 to 0.32 (`engine/arg_utils.py`, `config/vllm.py`,
`model_executor/models/config.py`), seen 2026-11-15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from packaging.version import InvalidVersion, Version

from firesteel.engines.flags import expand_shortcuts, positive_int
from firesteel.engines.kv_dtypes import STATE_DTYPES, VLLM_DTYPES, bytes_per_value, text_flag
from firesteel.engines.vllm import command_line as vllm
from firesteel.facts import Architecture
from firesteel.facts.model.architecture import (
    ChunkedAttention,
    CompressedAttention,
    LatentAttention,
    LinearAttention,
    Mamba2,
    SlidingAttention,
)
from firesteel.launch import FlagValue, Launch

Release = tuple[int, ...]
MambaCacheMode = Literal["none", "align", "all"]

OLDEST: Release = (0, 11)
NEWEST: Release = (0, 32)
"""The releases whose code was read; `NEWEST` is compared by its first two numbers."""
CHANGED_IN: tuple[Release, ...] = (
    (0, 11), (0, 12), (0, 14), (0, 15), (0, 18), (0, 20), (0, 20, 1), (0, 22), (0, 24), (0, 26), (0, 27),
    (0, 28), (0, 29), (0, 30), (0, 32),
)  # fmt: skip
"""Where the arithmetic changed: between two of these it is the same."""

_BATCHED_TOKENS = 8192
"""`max_num_batched_tokens` of a server on a GPU with 70 GiB or more, when the flag does not say."""
_STATES_OF_THE_MODEL = frozenset({"qwen3_next", "granitemoehybrid"})
"""Families whose states are kept in the model's own dtype, BF16, unless a flag or the config says otherwise.
Nemotron-H is float32 by its class; Qwen3.5 and 3.6 by their config; KDA by its kernel."""
_KEEP_ALL = frozenset({"nemotron_h", "granitemoehybrid"})
"""Families that can keep the state of every block (`SupportsMambaPrefixCaching`)."""
_DRAFTS_ITSELF = frozenset({"mtp", "qwen3_next_mtp", "qwen3_5_mtp", "deepseek_mtp", "glm4_moe_mtp",
    "nemotron_h_mtp", "mimo_mtp", "mimo_v2_mtp", "step3p5_mtp"})  # fmt: skip
"""Names for the drafter inside the checkpoint; each release takes `mtp`, the others are older spellings."""
DRAFTS_IN_A_WINDOW = frozenset({"mimo_v2_flash"})
"""Families whose drafter is one sliding layer: vLLM loads the first of several (`mimo_v2_mtp.py`, 0.32)."""
_DRAFTS_WITHOUT_LAYERS = frozenset({"ngram", "ngram_gpu", "suffix"})
_SYNCHRONOUS = frozenset({"ngram", "suffix", "medusa", "mlp_speculator", "draft_model", "custom_class"})
_PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "decode-context-parallel-size")
_SIXTEEN = frozenset({"", "FLASH_ATTN", "TRITON_ATTN", "FLASHINFER", "FLEX_ATTENTION", "TRITON_MLA"})
"""Attention backends that take blocks of 16 tokens. The first is whatever vLLM picks on a GB10."""


@dataclass(frozen=True, slots=True)
class KvSettings:
    release: Release
    width: int
    """Bytes a value of a key."""
    block: int | None
    """`--block-size`; None: vLLM chooses."""
    in_flight: int
    """Tokens that may be scheduled and not yet settled."""
    retained: int
    """Tokens that a window keeps behind it for drafters of several modules."""
    speculates: int
    drafts: bool
    """Whether the drafter inside the checkpoint is loaded."""
    mode: MambaCacheMode
    """How many states vLLM keeps of a recurrent layer."""
    state_width: int
    conv_width: int
    hybrid: bool
    """Whether layers of several kinds may have block tables of their own."""
    layout: str
    blocks: int | None
    """`--num-gpu-blocks-override`."""
    unsure: str = ""
    """Why the figures may not be vLLM's own; empty when they are."""


def read_settings(launch: Launch, shape: Architecture, release: Release | None = None) -> KvSettings:
    """`release` is for asking what another release would do with the same launch."""
    flags = expand_shortcuts(vllm.GRAMMAR, launch.flags)
    known = release or parse_release(launch.version) or NEWEST
    spec = speculative_tokens(flags)
    drafts = bool(spec) and _method(flags) in _DRAFTS_ITSELF
    conv = STATE_DTYPES.get(text_flag(flags, "mamba-cache-dtype", "auto"), 2)
    return KvSettings(
        release=known,
        width=bytes_per_value(VLLM_DTYPES, text_flag(flags, "kv-cache-dtype", "auto"), "kv-cache-dtype"),
        block=positive_int(flags.get("block-size")),
        in_flight=_batches(flags, known)
        * (positive_int(flags.get("max-num-batched-tokens")) or _BATCHED_TOKENS),
        retained=_retained(spec, known, shape) if drafts else 0,
        speculates=spec,
        drafts=drafts,
        mode=_mode(flags, known, shape),
        state_width=_state_width(flags, shape, conv),
        conv_width=conv,
        hybrid=_is_hybrid_managed(launch, flags, known, shape),
        layout=_layout(launch, shape),
        blocks=positive_int(flags.get("num-gpu-blocks-override")),
        unsure=_unsure(launch, flags, shape),
    )


def parse_release(version: str | None) -> Release | None:
    """A pre-release is taken for the release that it leads up to. None: not known."""
    try:
        return Version(version).release if version else None
    except InvalidVersion:
        return None


def candidate_releases(launch: Launch) -> tuple[Release, ...]:
    """The releases to ask when the launch's own is not known: all, or the one next to it."""
    known = parse_release(launch.version)
    if known is None:
        return CHANGED_IN
    return (known,) if OLDEST <= known[:2] <= NEWEST else (NEWEST if known > NEWEST else OLDEST,)


def speculative_tokens(flags: Mapping[str, FlagValue]) -> int:
    config = flags.get("speculative-config")
    tokens = config.get("num_speculative_tokens", 0) if isinstance(config, dict) else 0
    if isinstance(tokens, str):
        return positive_int(tokens) or 0
    return tokens if type(tokens) is int and tokens > 0 else 0


def _method(flags: Mapping[str, FlagValue]) -> str:
    """Without a method, a model of its own is a drafter of its own; without either it is the built-in one."""
    config = flags.get("speculative-config")
    if not isinstance(config, dict):
        return ""
    return str(config.get("method") or ("draft_model" if config.get("model") else "mtp"))


def _batches(flags: Mapping[str, FlagValue], release: Release) -> int:
    """Batches whose tokens a window still holds; asynchronous scheduling has two."""
    if release < (0, 26) or flags.get("async-scheduling") is False:
        return 1
    if flags.get("async-scheduling") is True or not speculative_tokens(flags):
        return 2
    method = _method(flags)
    overlaps = method not in _SYNCHRONOUS or (method == "draft_model" and release >= (0, 32))
    return 2 if overlaps else 1


def _retained(spec: int, release: Release, shape: Architecture) -> int:
    return spec - 1 if release >= (0, 28) and min(spec, shape.drafter_layers) > 1 else 0


def _mode(flags: Mapping[str, FlagValue], release: Release, shape: Architecture) -> MambaCacheMode:
    if not is_hybrid(shape) or not _caches_prefixes(flags, release, shape):
        return "none"
    asked = text_flag(flags, "mamba-cache-mode", "none")
    can_keep_all = release < (0, 32) and shape.model_type in _KEEP_ALL
    if asked == "none":
        asked = "all" if release < (0, 28) else "align"
    return "all" if asked == "all" and can_keep_all else "align"


def _caches_prefixes(flags: Mapping[str, FlagValue], release: Release, shape: Architecture) -> bool:
    """Hybrids do by default from 0.28; before 0.15 only those that keep every block's state can."""
    asked = flags.get("enable-prefix-caching")
    if release < (0, 15) and shape.model_type not in _KEEP_ALL:
        return False
    return asked if isinstance(asked, bool) else release >= (0, 28)


def is_hybrid(shape: Architecture) -> bool:
    """Recurrent layers beside others that keep something."""
    recurrent = sum(isinstance(layer, LinearAttention | Mamba2) for layer in shape.layers)
    return recurrent > 0 and any(
        hasattr(layer, "kv_heads") or isinstance(layer, LatentAttention) for layer in shape.layers
    )


def _state_width(flags: Mapping[str, FlagValue], shape: Architecture, conv: int) -> int:
    asked = STATE_DTYPES.get(text_flag(flags, "mamba-ssm-cache-dtype", "auto"))
    if asked:
        return asked
    if shape.model_type in _STATES_OF_THE_MODEL:
        return conv
    return STATE_DTYPES.get(shape.state_dtype or "", 4)


def _is_hybrid_managed(
    launch: Launch, flags: Mapping[str, FlagValue], release: Release, shape: Architecture
) -> bool:
    """Before 0.14 models with chunked layers had to ask for it."""
    if flags.get("disable-hybrid-kv-cache-manager") is True:
        return False
    chunked = any(isinstance(layer, ChunkedAttention) for layer in shape.layers)
    asked = launch.env.get("VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE") == "1"
    return not chunked or asked or release >= (0, 14)


def _layout(launch: Launch, shape: Architecture) -> str:
    """DeepSeek-V4 asks for blocks outermost itself; others have layers outermost unless told."""
    own = "BLHNC" if any(isinstance(layer, CompressedAttention) for layer in shape.layers) else "LBNHC"
    return launch.env.get("VLLM_KV_CACHE_LAYOUT", own)


def _unsure(launch: Launch, flags: Mapping[str, FlagValue], shape: Architecture) -> str:
    """The first reason to doubt the figures; they are still the best guess."""
    release = parse_release(launch.version)
    if release is None:
        return "the release is not known"
    if not OLDEST <= release[:2] <= NEWEST:
        return f"vLLM {launch.version} is not one of the releases that were read, 0.11 to 0.32"
    if parallel := next((flag for flag in _PARALLEL if (positive_int(flags.get(flag)) or 1) > 1), None):
        return f"`--{parallel}` splits the cache, and the figures are for one GPU"
    if speculative_tokens(flags) and _method(flags) not in _DRAFTS_ITSELF | _DRAFTS_WITHOUT_LAYERS:
        return "the drafter is another checkpoint, whose layers are not counted"
    slides = any(isinstance(layer, SlidingAttention | ChunkedAttention) for layer in shape.layers)
    told = shape.drafters or shape.model_type in DRAFTS_IN_A_WINDOW
    if speculative_tokens(flags) and _method(flags) in _DRAFTS_ITSELF and slides and not told:
        return "whether the drafter's layers slide is not known"
    if "kv-transfer-config" in flags:
        return "a KV connector may change the layout and the groups"
    backend = text_flag(flags, "attention-backend", "").upper()
    if backend not in _SIXTEEN:
        return f"the blocks that `{backend}` takes are not known"
    return _unread(release, shape)


def _unread(release: Release, shape: Architecture) -> str:
    if release < (0, 24) and any(isinstance(layer, CompressedAttention) for layer in shape.layers):
        return "DeepSeek-V4 was not read in releases before 0.24"
    sparse = any(isinstance(layer, LatentAttention) and layer.attends for layer in shape.layers)
    if sparse and release < (0, 24):
        return "sparse MLA has no backend for a GB10 before vLLM 0.24"
    if sparse and release[:2] == (0, 29) and any(_borrows_picks(layer) for layer in shape.layers):
        return "whether vLLM 0.29 gives an index to layers that share one was not read"
    kda = any(isinstance(layer, LatentAttention) for layer in shape.layers) and is_hybrid(shape)
    if kda and release >= (0, 30):
        return "KDA keeps one state more where its kernel can"
    return ""


def _borrows_picks(layer: object) -> bool:
    return isinstance(layer, LatentAttention) and bool(layer.attends) and layer.indexer is None
