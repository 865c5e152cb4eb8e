"""What things are: hardware, hosts, model architectures, tensors and the headers that name them.

Pure: bytes and text in, values out. A fact has a source; what is not known is None, never a guess.
Never reads a file of the user, the network, the clock or the environment: callers hand those in.
`safetensors` and `gguf` are the header readers. `facts.parameters` and `facts.quantization` (what a config
alone tells of the bytes) are doors of their own, and so are `facts.hardware` and `facts.evidence`: they read
YAML, and a keeper must not carry that.
"""

from __future__ import annotations

from firesteel.facts import gguf, safetensors
from firesteel.facts.architecture import (
    Architecture,
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba2,
    NoCache,
    SharedKv,
    SlidingAttention,
    SparseAttention,
    UnknownArchitecture,
)
from firesteel.facts.checkpoint import Checkpoint
from firesteel.facts.config import architecture as architecture_of_config
from firesteel.facts.gguf import ArrayInfo, GgufHeader
from firesteel.facts.gguf_architecture import architecture_of as architecture_of_gguf
from firesteel.facts.host import Gpu, Host, Meminfo, keep_free_bytes, parse_gpus, parse_meminfo
from firesteel.facts.memory_sample import GpuUser, KernelEvent, MemorySample, Pressure, Shm, Stalls
from firesteel.facts.roles import role_of
from firesteel.facts.source import BadHeader, MemorySource, Source, cut_short
from firesteel.facts.tensors import Provenance, Role, Tensor, Weights, weigh

__all__ = [
    "Architecture",
    "ArrayInfo",
    "BadHeader",
    "Checkpoint",
    "ChunkedAttention",
    "CompressedAttention",
    "FullAttention",
    "GgufHeader",
    "Gpu",
    "GpuUser",
    "Host",
    "Indexer",
    "KernelEvent",
    "LatentAttention",
    "Layer",
    "LinearAttention",
    "Mamba2",
    "Meminfo",
    "MemorySample",
    "MemorySource",
    "NoCache",
    "Pressure",
    "Provenance",
    "Role",
    "SharedKv",
    "Shm",
    "SlidingAttention",
    "Source",
    "SparseAttention",
    "Stalls",
    "Tensor",
    "UnknownArchitecture",
    "Weights",
    "architecture_of_config",
    "architecture_of_gguf",
    "cut_short",
    "gguf",
    "keep_free_bytes",
    "parse_gpus",
    "parse_meminfo",
    "role_of",
    "safetensors",
    "weigh",
]
