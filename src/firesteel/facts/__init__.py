"""What things are: hardware, hosts, model architectures, tensors and the headers that name them.

Pure: bytes and text in, values out. A fact has a source; what is not known is None, never a guess.
Never reads a file of the user, the network, the clock or the environment: callers hand those in.
`safetensors` and `gguf` are the header readers. `facts.parameters` and `facts.quantization` (what a config
alone tells of the bytes) are doors of their own, and so are `facts.hardware` and `facts.evidence`: they read
YAML, and a keeper must not carry that.
"""

from __future__ import annotations

from firesteel.facts.formats import gguf, safetensors
from firesteel.facts.formats.byte_source import BadHeader, ByteSource, MemorySource, cut_short
from firesteel.facts.formats.gguf import ArrayInfo, GgufHeader
from firesteel.facts.formats.gguf_architecture import architecture_of as architecture_of_gguf
from firesteel.facts.host.host import Gpu, Host, Meminfo, keep_free_bytes, parse_gpus, parse_meminfo
from firesteel.facts.host.memory_sample import (
    GpuProcess,
    KernelEvent,
    MemorySample,
    Pressure,
    Shm,
    StallPressure,
)
from firesteel.facts.model.architecture import (
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
from firesteel.facts.model.checkpoint import Checkpoint
from firesteel.facts.model.config import architecture as architecture_of_config
from firesteel.facts.model.roles import role_of
from firesteel.facts.model.tensors import Provenance, Role, Tensor, Weights, weigh

__all__ = [
    "Architecture",
    "ArrayInfo",
    "BadHeader",
    "ByteSource",
    "Checkpoint",
    "ChunkedAttention",
    "CompressedAttention",
    "FullAttention",
    "GgufHeader",
    "Gpu",
    "GpuProcess",
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
    "SparseAttention",
    "StallPressure",
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
