"""Facts about hardware, hosts, model architectures, tensors and checkpoint headers.

Pure: bytes and text in, values out. A fact has a source; what is not known is None, never a guess.
Never reads a user's file, the network, the clock or the environment: callers pass those in.
Names load when they are first used. `facts.host.hardware` and `facts.evidence` are imported by their own
path: they need YAML, which a supervisor must not load.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.facts.formats.byte_source import BadHeader, ByteSource, MemorySource, truncated
    from firesteel.facts.formats.gguf import ArrayInfo, GgufHeader
    from firesteel.facts.formats.gguf_architecture import architecture_of_gguf
    from firesteel.facts.host.host import Gpu, Host, Meminfo, keep_free_bytes, parse_gpus, parse_meminfo
    from firesteel.facts.host.memory_sample import (
        GpuProcess,
        KernelEvent,
        MemorySample,
        Pressure,
        Shm,
        StallCounters,
    )
    from firesteel.facts.model.architecture import (
        Architecture,
        ChunkedAttention,
        FullAttention,
        LatentAttention,
        Layer,
        LinearAttention,
        Mamba2,
        SlidingAttention,
        SparseAttention,
        UnknownArchitecture,
    )
    from firesteel.facts.model.checkpoint import Checkpoint
    from firesteel.facts.model.config import architecture_of_config
    from firesteel.facts.model.roles import role_of
    from firesteel.facts.model.tensors import Provenance, Role, Tensor, Weights, sum_weights
else:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(__name__)
