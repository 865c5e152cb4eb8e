"""How much memory each engine sets aside for the past: KV pages, KV cells, recurrent state.

Attention keeps a key and a value a token and KV head; a sliding window stops growing at its width;
linear attention keeps one state whatever the length. Engines round all three in their own way, and
the rounding is not small: vLLM pads attention pages to the size of a recurrent state.

vLLM refuses to start when its pool does not hold one request of the full length, so its formulas are
followed to the block: `v1/kv_cache_interface.py`, `v1/core/kv_cache_utils.py`, `platforms/interface.py`,
read in 0.11, 0.19, 0.24 to 0.28 and 0.32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from packaging.version import InvalidVersion, Version

from firesteel.engines.flags import count
from firesteel.errors import UsageError
from firesteel.facts import Architecture, FullAttention, LinearAttention, SlidingAttention
from firesteel.facts.architecture import NoCache, SharedKv
from firesteel.launch import FlagValue, Launch
from firesteel.units import MIB

Layer = FullAttention | SlidingAttention | LinearAttention
"""The layers whose cache is known here; `_layers` refuses the others by name."""

_VLLM_BYTES = {"auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0}
_LLAMACPP_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32,
    "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
_SGLANG_BYTES = {"auto": 2.0, "bf16": 2.0, "bfloat16": 2.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0}
_VLLM_BLOCK = 16
_VLLM_BATCHED_TOKENS = 8192
"""`max_num_batched_tokens` of a server on a GPU with 70 GiB or more, when the flag does not say."""
_VLLM_ALIGNS_SINCE = Version("0.26")
"""From here hybrids cache prefixes by default, which takes one more state a group, and sliding windows
hold the tokens of every batch in flight, of which asynchronous scheduling has two. 0.25 did neither."""
_VLLM_STATE_BYTES = {"auto": None, "float32": 4, "float16": 2, "bfloat16": 2}
_VLLM_STATE_BYTES_BY_TYPE = {"qwen3_next": 2}
"""`--mamba-ssm-cache-dtype auto` is the model's own BF16, unless its config has `mamba_ssm_dtype`. Qwen3.5
and 3.6 have it, float32; Qwen3-Next does not. Who is not named here is taken to be float32, which is more."""
_VLLM_SLACK = 1.02
_LLAMACPP_PAD = 256
_LLAMACPP_UBATCH = 512
_LLAMACPP_MAX_SEQ = 256
"""`LLAMA_MAX_SEQ` in `src/llama-cparams.h`: with more, making the context throws."""


@dataclass(frozen=True, slots=True)
class Cache:
    """What `users` sequences of `context` tokens take."""

    bytes: int
    bytes_per_token: int
    """Growth a token and sequence, once sliding windows are full."""
    state_bytes: int
    """Of `bytes`, what does not grow with length."""
    context: int
    users: int
    dtype: str
    block_bytes: int = 0
    """One block of vLLM's pool, in all layers; 0 for engines without a pool."""
    checkpoint_bytes: int = 0
    """What llama.cpp copies to host memory to be able to go back: states and windows of one sequence."""

    @property
    def pool_bytes(self) -> int:
        """What the engine takes, and is told to take, for `bytes`.

        vLLM keeps one block empty, and an attention backend may ask for larger blocks than 16 tokens.
        """
        if not self.block_bytes:
            return self.bytes
        return ceil((self.bytes + self.block_bytes) * _VLLM_SLACK / MIB) * MIB


def cache(launch: Launch, shape: Architecture, context: int, users: int) -> Cache:
    if launch.engine == "llamacpp":
        return _llamacpp(launch.flags, shape, context, users)
    if launch.engine == "vllm":
        return _vllm(launch, shape, context, users)
    return _sglang(launch.flags, shape, context, users)


def _layers(shape: Architecture) -> tuple[Layer, ...]:
    """The layers that keep something. Those that borrow another's cache, or have no past, keep nothing."""
    keeping = [layer for layer in shape.layers if not isinstance(layer, NoCache | SharedKv)]
    known = tuple(layer for layer in keeping if isinstance(layer, Layer))
    if len(known) < len(keeping):
        other = next(type(layer).__name__ for layer in keeping if not isinstance(layer, Layer))
        raise UsageError(
            f"`{shape.model_type}` has {other} layers, whose cache firesteel cannot size yet",
            next="firesteel models",
        )
    return known


def speculative_tokens(flags: Mapping[str, FlagValue]) -> int:
    config = flags.get("speculative-config")
    tokens = config.get("num_speculative_tokens", 0) if isinstance(config, dict) else 0
    return tokens if isinstance(tokens, int) else 0


@dataclass(frozen=True, slots=True)
class _VllmPool:
    """vLLM's pool of blocks: layers of one kind share a block table, and every block has the same size."""

    layers: Counter[Layer]
    kv_width: float
    state_width: int
    context: int
    in_flight: int
    states: int
    """Recurrent states that a request may hold in each layer."""
    spec: int
    block: int

    def request_bytes(self) -> tuple[int, int]:
        """What a request of the whole context takes, and what one block of the pool takes."""
        if self._is_uniform:
            pages = {layer: self._page(layer, self.block) for layer in self.layers}
            total = sum(
                many * pages[layer] * self._blocks(layer, self.block) for layer, many in self.layers.items()
            )
            return total, sum(many * pages[layer] for layer, many in self.layers.items())
        page, group = self._shared_page(), self._group()
        blocks = sum(
            ceil(many / group) * self._blocks(layer, page // (self._token(layer) or page))
            for layer, many in self.layers.items()
        )
        return blocks * page * group, page * group

    @property
    def _is_uniform(self) -> bool:
        """All layers need as many tokens as each other, so one block table does for all."""
        kinds = {(type(layer), getattr(layer, "window", 0)) for layer in self.layers}
        return len(kinds) == 1

    def _group(self) -> int:
        """Layers that one block covers: as many as the rarest kind has, or the commonest if near."""
        least, most = min(self.layers.values()), max(self.layers.values())
        return most if most < 1.5 * least else least

    def _shared_page(self) -> int:
        """One page for all kinds: attention blocks are made as large as the largest state."""
        token = max(self._token(layer) for layer in self.layers)
        state = max(self._page(layer, 0) for layer in self.layers)
        return max(self.block, _round(ceil(state / token), self.block)) * token

    def _token(self, layer: Layer) -> int:
        """Bytes a token, 0 for a state."""
        return 0 if isinstance(layer, LinearAttention) else int(_elements(layer) * self.kv_width)

    def _page(self, layer: Layer, block: int) -> int:
        if isinstance(layer, LinearAttention):
            return layer.state_elements * self.state_width + _conv(layer, self.spec) * 2
        return self._token(layer) * block

    def _blocks(self, layer: Layer, block: int) -> int:
        if isinstance(layer, LinearAttention):
            return self.states
        if isinstance(layer, SlidingAttention):
            return ceil(min(self.context, layer.window - 1 + self.in_flight) / block) + 1
        return ceil(self.context / block)


def _vllm(launch: Launch, shape: Architecture, context: int, users: int) -> Cache:
    flags = launch.flags
    dtype = _text(flags, "kv-cache-dtype", "auto")
    width = _width(_VLLM_BYTES, dtype, "--kv-cache-dtype")
    spec = speculative_tokens(flags)
    layers = _layers(shape)
    full = [layer for layer in layers if isinstance(layer, FullAttention)]
    drafters = [max(full, key=_elements)] * shape.drafter_layers if spec and full else []
    linear = [layer for layer in layers if isinstance(layer, LinearAttention)]
    batches = 2 if _aligns(launch) and flags.get("async-scheduling") is not False else 1
    pool = _VllmPool(
        layers=Counter((*layers, *drafters)),
        kv_width=width,
        state_width=_vllm_state_bytes(flags, shape.model_type),
        context=context,
        in_flight=batches * (count(flags.get("max-num-batched-tokens")) or _VLLM_BATCHED_TOKENS),
        states=(2 if len(linear) < len(layers) and _caches_prefixes(launch) else 1) + spec,
        spec=spec,
        block=count(flags.get("block-size")) or _VLLM_BLOCK,
    )
    a_request, block_bytes = pool.request_bytes()
    growing = sum(int(_elements(layer) * width) for layer in (*full, *drafters))
    state = sum(layer.state_elements * pool.state_width + _conv(layer, spec) * 2 for layer in linear)
    return Cache(a_request * users, growing, state * users, context, users, dtype, block_bytes)


def _aligns(launch: Launch) -> bool:
    """A version that nobody knows is taken to be a new one, which needs more."""
    try:
        return launch.version is None or Version(launch.version) >= _VLLM_ALIGNS_SINCE
    except InvalidVersion:
        return True


def _caches_prefixes(launch: Launch) -> bool:
    """Then vLLM keeps the states of two blocks a request (`mamba_cache_mode` is `align`)."""
    said = launch.flags.get("enable-prefix-caching")
    return said if isinstance(said, bool) else _aligns(launch)


def _vllm_state_bytes(flags: Mapping[str, FlagValue], model_type: str) -> int:
    said = _VLLM_STATE_BYTES.get(_text(flags, "mamba-ssm-cache-dtype", "auto"))
    return said or _VLLM_STATE_BYTES_BY_TYPE.get(model_type, 4)


def _llamacpp(flags: Mapping[str, FlagValue], shape: Architecture, context: int, users: int) -> Cache:
    if users > _LLAMACPP_MAX_SEQ:
        raise UsageError(
            f"llama.cpp serves {_LLAMACPP_MAX_SEQ} users at once at most, and {users} were asked for",
            next=f"--users {_LLAMACPP_MAX_SEQ}",
        )
    keys = _width(_LLAMACPP_BYTES, _text(flags, "cache-type-k", "f16"), "--cache-type-k")
    values = _width(_LLAMACPP_BYTES, _text(flags, "cache-type-v", "f16"), "--cache-type-v")
    ubatch = count(flags.get("ubatch-size")) or _LLAMACPP_UBATCH
    cells = _round(context, _LLAMACPP_PAD)
    windows, growing, state = 0.0, 0.0, 0
    for layer in _layers(shape):
        if isinstance(layer, LinearAttention):
            state += (layer.state_elements + _conv(layer, 0)) * 4
            continue
        a_cell = layer.kv_heads * (layer.key_dim * keys + layer.value_dim * values)
        if isinstance(layer, SlidingAttention) and flags.get("swa-full") is not True:
            windows += a_cell * min(cells, _round(layer.window + ubatch, _LLAMACPP_PAD))
        else:
            growing += a_cell
    dtype = _text(flags, "cache-type-k", "f16")
    total = int(growing * cells + windows + state) * users
    return Cache(
        total, int(growing), state * users, context, users, dtype, checkpoint_bytes=int(windows) + state
    )


def _sglang(flags: Mapping[str, FlagValue], shape: Architecture, context: int, users: int) -> Cache:
    dtype = _text(flags, "kv-cache-dtype", "auto")
    width = _width(_SGLANG_BYTES, dtype, "--kv-cache-dtype")
    layers = _layers(shape)
    attention = [layer for layer in layers if not isinstance(layer, LinearAttention)]
    growing = sum(int(_elements(layer) * width) for layer in attention)
    state = sum(
        layer.state_elements * 4 + _conv(layer, 0) * 2
        for layer in layers
        if isinstance(layer, LinearAttention)
    )
    return Cache((growing * context + state) * users, growing, state * users, context, users, dtype)


def _elements(layer: FullAttention | SlidingAttention) -> int:
    return layer.kv_heads * (layer.key_dim + layer.value_dim)


def _conv(layer: LinearAttention, spec: int) -> int:
    return layer.conv_channels * (layer.conv_kernel - 1 + spec)


def _round(count: int, step: int) -> int:
    return -(-count // step) * step


def _text(flags: Mapping[str, FlagValue], name: str, default: str) -> str:
    value = flags.get(name, default)
    return value if isinstance(value, str) else default


def _width(known: Mapping[str, float], dtype: str, flag: str) -> float:
    if dtype not in known:
        raise UsageError(
            f"how many bytes `{flag} {dtype}` takes a value is not known here",
            next=f"one of {', '.join(known)}",
        )
    return known[dtype]
