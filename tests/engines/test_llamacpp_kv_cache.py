"""llama.cpp's cells, cells against what the real engine prints for models of a few kilobytes.

Each model is written here with the `gguf` package, read by our own reader, and loaded by the engine.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from threading import Timer

import gguf
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.edge.home import Home
from firesteel.engines.llamacpp.kv_cache import compute_buffers, count_cells
from firesteel.facts.formats.byte_source import MemorySource
from firesteel.facts.formats.gguf import read_header
from firesteel.facts.formats.gguf_architecture import architecture_of_gguf
from firesteel.facts.model.architecture import (
    Architecture,
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    NoCache,
    SharedKv,
    SlidingAttention,
    SparseAttention,
)
from firesteel.launch import FlagValue
from firesteel.units import MIB

# The server prints its buffers while it loads. It listens on a port that the system picks.
LOAD = """
import sys, xllamacpp
path, context, users, unified, keys, values, ubatch, flash = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = path, int(context), int(users)
params.kv_unified, params.n_ubatch = unified == "yes", int(ubatch)
params.cache_type_k = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + keys.upper())
params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + values.upper())
params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, "LLAMA_FLASH_ATTN_TYPE_" + flash)
params.warmup, params.fit_params, params.verbosity, params.port = False, False, 10, 0
server = xllamacpp.Server(params)
sys.stdin.read()
"""
LOADED = "initializing, n_slots"
KV_LINE = re.compile(r"llama_kv_cache: size = +([0-9.]+) MiB \( *(\d+) cells, +(\d+) layers, +\d+/(\d+) seqs")
STATE_LINE = re.compile(r"llama_memory_recurrent: size = +([0-9.]+) MiB")

COMPUTE_LINE = re.compile(r"compute buffer size = +([0-9.]+) MiB")

WIDTH, HEADS, FEED = 64, 2, 32
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


def writer(path: Path, name: str, layers: int) -> gguf.GGUFWriter:
    """What every model has: sizes, a vocabulary of bytes, and the tensors outside its layers."""
    out = gguf.GGUFWriter(path, name)
    out.add_block_count(layers)
    out.add_context_length(2**17)
    out.add_embedding_length(WIDTH)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_tokenizer_model("llama")
    out.add_token_list(TOKENS)
    out.add_token_scores([0.0] * len(TOKENS))
    out.add_token_types([2, 3, 3] + [6] * 256)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    tensors(out, "", {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)})
    return out


def tensors(out: gguf.GGUFWriter, prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        whole = name if "." in name else f"{name}.weight"
        out.add_tensor(prefix + whole.removesuffix(".bare"), numpy.zeros(shape, numpy.float32))


def close(out: gguf.GGUFWriter) -> None:
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def attention(kv_heads: int, dim: int) -> dict[str, tuple[int, ...]]:
    return {
        "attn_q": (HEADS * dim, WIDTH),
        "attn_k": (kv_heads * dim, WIDTH),
        "attn_v": (kv_heads * dim, WIDTH),
        "attn_output": (WIDTH, HEADS * dim),
    }


Shapes = Mapping[str, tuple[int, ...]]
MLP: Shapes = {
    "ffn_norm": (WIDTH,),
    "ffn_gate": (FEED, WIDTH),
    "ffn_up": (FEED, WIDTH),
    "ffn_down": (WIDTH, FEED),
}


def grouped(out: gguf.GGUFWriter, kv_heads: int, dim: int) -> None:
    out.add_head_count(HEADS)
    out.add_head_count_kv(kv_heads)
    out.add_key_length(dim)
    out.add_value_length(dim)
    out.add_rope_dimension_count(dim)
    out.add_feed_forward_length(FEED)


def llama(path: Path) -> None:
    out = writer(path, "llama", 6)
    grouped(out, 1, 128)
    for layer in range(6):
        tensors(out, f"blk.{layer}.", {"attn_norm": (WIDTH,), **attention(1, 128), **MLP})
    close(out)


def gemma3(path: Path) -> None:
    """Five layers of six slide."""
    out = writer(path, "gemma3", 12)
    grouped(out, 2, 64)
    out.add_sliding_window(512)
    norms = {
        "attn_q_norm": (64,),
        "attn_k_norm": (64,),
        "post_attention_norm": (WIDTH,),
        "post_ffw_norm": (WIDTH,),
    }
    for layer in range(12):
        tensors(out, f"blk.{layer}.", {"attn_norm": (WIDTH,), **attention(2, 64), **norms, **MLP})
    close(out)


def nemotron_h(path: Path) -> None:
    """Mamba-2, MLP and attention blocks as layers of their own."""
    out = writer(path, "nemotron_h", 6)
    blocks = ["mamba", "mlp", "mamba", "attention", "mamba", "mlp"]
    out.add_head_count([HEADS] * 6)
    out.add_head_count_kv([2 if block == "attention" else 0 for block in blocks])
    out.add_feed_forward_length([FEED if block == "mlp" else 0 for block in blocks])
    out.add_key_length(64)
    out.add_value_length(64)
    out.add_rope_dimension_count(64)
    out.add_layer_norm_eps(1e-5)
    inner, state, heads, groups, kernel = 512, 128, 8, 2, 4
    out.add_ssm_conv_kernel(kernel)
    out.add_ssm_inner_size(inner)
    out.add_ssm_state_size(state)
    out.add_ssm_time_step_rank(heads)
    out.add_ssm_group_count(groups)
    channels = inner + 2 * groups * state
    mamba: Shapes = {
        "ssm_in": (inner + channels + heads, WIDTH),
        "ssm_conv1d": (channels, kernel),
        "ssm_conv1d.bias": (channels,),
        "ssm_dt.bias": (heads,),
        "ssm_a.bare": (heads, 1),
        "ssm_d.bare": (heads, 1),
        "ssm_norm": (groups, inner // groups),
        "ssm_out": (WIDTH, inner),
    }
    of: Mapping[str, Shapes] = {
        "mamba": mamba,
        "mlp": {"ffn_up": (FEED, WIDTH), "ffn_down": (WIDTH, FEED)},
        "attention": attention(2, 64),
    }
    for layer, block in enumerate(blocks):
        tensors(out, f"blk.{layer}.", {"attn_norm": (WIDTH,), **of[block]})
    close(out)


def deepseek2(path: Path) -> None:
    """MLA: one latent of 192 + 64 values a token."""
    out = writer(path, "deepseek2", 5)
    rank, rope, nope, value, query = 192, 64, 32, 32, 48
    out.add_head_count(HEADS)
    out.add_head_count_kv(1)
    out.add_key_length(rank + rope)
    out.add_value_length(rank)
    out.add_key_length_mla(nope + rope)
    out.add_value_length_mla(value)
    out.add_q_lora_rank(query)
    out.add_kv_lora_rank(rank)
    out.add_rope_dimension_count(rope)
    out.add_feed_forward_length(FEED)
    out.add_leading_dense_block_count(5)
    out.add_expert_feed_forward_length(FEED)
    out.add_expert_shared_count(1)
    own = {
        "attn_norm": (WIDTH,),
        "attn_q_a_norm": (query,),
        "attn_kv_a_norm": (rank,),
        "attn_q_a": (query, WIDTH),
        "attn_q_b": (HEADS * (nope + rope), query),
        "attn_kv_a_mqa": (rank + rope, WIDTH),
        "attn_k_b": (HEADS, rank, nope),
        "attn_v_b": (HEADS, value, rank),
        "attn_output": (WIDTH, HEADS * value),
    }
    for layer in range(5):
        tensors(out, f"blk.{layer}.", {**own, **MLP})
    close(out)


def experts(path: Path) -> None:
    """Eight of 32 experts a token."""
    out = writer(path, "qwen3moe", 3)
    grouped(out, 1, 64)
    out.add_expert_feed_forward_length(FEED)
    out.add_expert_count(32)
    out.add_expert_used_count(8)
    own = {
        "attn_norm": (WIDTH,),
        "attn_q_norm": (64,),
        "attn_k_norm": (64,),
        "ffn_norm": (WIDTH,),
        "ffn_gate_inp": (32, WIDTH),
        "ffn_gate_exps": (32, FEED, WIDTH),
        "ffn_up_exps": (32, FEED, WIDTH),
        "ffn_down_exps": (32, WIDTH, FEED),
    }
    for layer in range(3):
        tensors(out, f"blk.{layer}.", {**attention(1, 64), **own})
    close(out)


@dataclass(frozen=True, slots=True)
class Printed:
    """The lines of the real engine, added up."""

    mib: float
    lines: int
    cells: set[int]
    compute_mib: float


def printed_until(last: str, argv: list[str]) -> str:
    """What a program prints up to a line; then it is stopped. Left to end by itself it sometimes hangs."""
    started = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    too_long = Timer(30, started.kill)
    too_long.start()
    with started:
        assert started.stdout
        lines = []
        for line in started.stdout:
            lines.append(line)
            if last in line:
                break
        started.kill()
    too_long.cancel()
    return "".join(lines)


def load(home: Home, path: Path, context: int, users: int, flags: Mapping[str, FlagValue]) -> Printed:
    python = next(home.engines.glob("*/bin/python"))
    unified = "yes" if flags.get("kv-unified") else "no"
    more = [str(flags.get(flag, usual)) for flag, usual in USUAL.items()]
    total = context if unified == "yes" else context * users
    flash = "DISABLED" if flags.get("flash-attn") == "off" else "AUTO"
    argv = [str(python), "-I", "-c", LOAD, str(path), str(total), str(users), unified, *more, flash]
    output = printed_until(LOADED, argv)
    caches, states = KV_LINE.findall(output), STATE_LINE.findall(output)
    assert caches, output[-2000:]
    sizes = [float(mib) for mib, *_ in caches] + [float(mib) for mib in states]
    compute = sum(float(mib) for mib in COMPUTE_LINE.findall(output))
    return Printed(
        sum(sizes), len(sizes), {int(many) * int(streams) for _, many, _, streams in caches}, compute
    )


USUAL = {"cache-type-k": "f16", "cache-type-v": "f16", "ubatch-size": "512"}
UNIFIED: dict[str, FlagValue] = {"kv-unified": True}
QUANTIZED: dict[str, FlagValue] = {"cache-type-k": "q8_0", "cache-type-v": "q4_0"}
SMALL_BATCH: dict[str, FlagValue] = {"ubatch-size": "64"}
NO_FLASH: dict[str, FlagValue] = {"flash-attn": "off"}


@pytest.mark.real
@pytest.mark.parametrize(
    ("write", "context", "users", "flags"),
    [
        (llama, 4096, 1, {}),
        (llama, 1000, 3, {}),
        (llama, 3000, 3, UNIFIED),
        (llama, 4096, 2, QUANTIZED),
        (llama, 4096, 1, NO_FLASH),
        (nemotron_h, 4096, 1, NO_FLASH),
        (experts, 4096, 2, {}),
        (experts, 2048, 1, NO_FLASH),
        (gemma3, 8192, 2, {}),
        (gemma3, 8192, 2, SMALL_BATCH),
        (gemma3, 600, 2, {}),
        (gemma3, 8192, 3, UNIFIED),
        (nemotron_h, 4096, 1, {}),
        (nemotron_h, 4096, 3, {}),
        (nemotron_h, 4096, 3, UNIFIED),
        (deepseek2, 4096, 2, {}),
        (deepseek2, 4096, 2, {"cache-type-k": "q8_0", "cache-type-v": "q8_0"}),
    ],
)
def test_bytes_and_cells_equal_those_of_the_real_engine(
    pulled: Home,
    tmp_path: Path,
    write: Callable[[Path], None],
    context: int,
    users: int,
    flags: dict[str, FlagValue],
) -> None:
    path = tmp_path / "tiny.gguf"
    write(path)
    shape = architecture_of_gguf(read_header(MemorySource(path.name, path.read_bytes())))
    cells = count_cells(flags, shape, context, users)
    printed = load(pulled, path, context, users, flags)
    assert cells.total_bytes / MIB == pytest.approx(printed.mib, abs=0.006 * printed.lines)
    assert cells.cells in printed.cells
    low, _, high = compute_buffers(flags, shape, context, users).band
    assert low / MIB <= printed.compute_mib <= high / MIB


# What build 11549 prints for the embedded model, SmolLM2-135M-Instruct in Q4_1: MiB of its compute buffer.
SMOLLM2 = Architecture(
    "llama", (FullAttention(3, 64, 64),) * 30, 576, 49152, 8192, attention_heads=9, feed_forward_size=1536
)


@pytest.mark.parametrize(
    ("context", "users", "flags", "mib"),
    [
        (4096, 1, {}, 18.64),
        (4096, 1, {"ubatch-size": "256"}, 9.32),
        (4096, 1, {"ubatch-size": "2048"}, 74.57),
        (8192, 1, {}, 22.64),
        (256, 1, {}, 7.45),
        (1024, 4, {}, 15.64),
        (4096, 4, UNIFIED, 18.64),
    ],
)
def test_compute_buffers_of_the_embedded_model(
    context: int, users: int, flags: dict[str, FlagValue], mib: float
) -> None:
    """Inputs such as positions are a few kilobytes more."""
    assert compute_buffers(flags, SMOLLM2, context, users).band[1] / MIB == pytest.approx(mib, rel=0.002)


@pytest.mark.parametrize(("context", "users", "mib"), [(4096, 1, 87.51), (8192, 1, 167.51), (1024, 4, 27.51)])
def test_without_flash_attention_every_head_has_its_scores(context: int, users: int, mib: float) -> None:
    buffers = compute_buffers(NO_FLASH, SMOLLM2, context, users)
    assert buffers.score_bytes + buffers.mask_bytes == 512 * context * 40
    assert buffers.band[0] < mib * MIB < buffers.band[2]


def test_unknown_sizes_make_a_wider_band() -> None:
    unknown = Architecture("llama", SMOLLM2.layers, 576, 49152, 8192)
    low, _, high = compute_buffers({}, unknown, 4096, 1).band
    known = compute_buffers({}, SMOLLM2, 4096, 1).band
    assert low < known[0] < known[2] < high and low < 18.64 * MIB < high


def shape(*layers: Layer) -> Architecture:
    return Architecture("test", layers, 2048, 1000, 2**20)


FULL, SLIDING = FullAttention(8, 64, 64), SlidingAttention(8, 64, 64, 128)


@pytest.mark.parametrize(
    ("layer", "a_token"),
    [
        (FULL, 8 * 128 * 2),
        (LatentAttention(512, 64), 576 * 2),
        (LatentAttention(512, 64, Indexer(64, 128), 2048), (576 + 128) * 2),
        (LatentAttention(512, 64, None, 2048), 576 * 2),
        (SparseAttention(4, 128, 128, Indexer(4, 64), 2048), (4 * 256 + 64 + 128) * 2),
        (SharedKv(0), 0),
        (NoCache("moe"), 0),
    ],
)
def test_a_cell_by_kind_of_layer(layer: Layer, a_token: int) -> None:
    """`llama_kv_cache_dsa` has a key for the indexer, `llama_kv_cache_msa` a key and a value of one head."""
    assert count_cells({}, shape(layer), 4096, 1).total_bytes == a_token * 4096


def test_a_shared_cache_has_a_window_for_each_sequence() -> None:
    assert count_cells(UNIFIED, shape(SLIDING), 65536, 3).window_bytes == 1024 * 8 * 128 * 2
    assert count_cells({}, shape(SLIDING), 65536, 3).window_bytes == 3 * 768 * 8 * 128 * 2


def test_chunks_are_windows() -> None:
    chunked, sliding = ChunkedAttention(8, 64, 64, 8192), SlidingAttention(8, 64, 64, 8192)
    assert count_cells({}, shape(chunked), 65536, 2) == count_cells({}, shape(sliding), 65536, 2)


def test_deepseek_v4_has_a_window_the_compressed_past_and_compressors() -> None:
    """`llama_kv_cache_dsv4`: keys only, an indexer and a compressor where four tokens become one."""
    four = CompressedAttention(512, 64, 128, 4, Indexer(64, 128), 512)
    cells = count_cells(UNIFIED, shape(four), 8192, 2)
    window, past, index = 768 * 512 * 2, 2048 * 512 * 2, 2048 * 128 * 2
    states = 4 * (2 * 8 * 1024 + 2 * 8 * 256)
    assert cells.total_bytes == 2 * (window + past + index + states)


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 64), st.booleans(), st.booleans())
def test_more_context_or_users_never_take_less(
    context: int, more: int, users: int, unified: bool, whole: bool
) -> None:
    flags: dict[str, FlagValue] = {"kv-unified": unified, "swa-full": whole}
    architecture = shape(FULL, SLIDING, LinearAttention(1000, 64, 4), LatentAttention(512, 64))
    few = count_cells(flags, architecture, context, users)
    assert few.total_bytes <= count_cells(flags, architecture, context + more, users).total_bytes
    assert few.total_bytes <= count_cells(flags, architecture, context, users + 1).total_bytes
    assert few.bytes_per_cell >= Fraction(0) and few.checkpoint_bytes <= few.total_bytes


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_sharing_cells_never_takes_more_than_keeping_them_apart(context: int, users: int) -> None:
    architecture = shape(FULL, SLIDING)
    assert (
        count_cells(UNIFIED, architecture, context, users).total_bytes
        <= count_cells({}, architecture, context * users, users).total_bytes
    )
