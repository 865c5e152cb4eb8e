"""What firesteel knows about vLLM, llama.cpp and SGLang: flags, command lines, logs, metrics, KV caches.

One sub-package per engine (`vllm`, `llamacpp`, `sglang`); `schema` holds the flags of every known release,
`logs` reads start-up logs, `metrics` and `introspection` read what a running engine reports.
Pure: text in, values out. It never starts an engine and never chooses a flag.
Names load when they are first used, so that a supervisor does not carry the log patterns or the planner's
KV arithmetic.
"""

from typing import TYPE_CHECKING

from firesteel.lazy import lazy_exports

if TYPE_CHECKING:
    from firesteel.engines.adapters import adapter_flags, adapter_request, lora_slots
    from firesteel.engines.engine import (
        ServedCapacity,
        argv,
        default_port,
        expand_shortcuts,
        format_flag,
        grammar,
        parse_argv,
        program,
        served_capacity,
        size_flags,
    )
    from firesteel.engines.flags import ParsedCommandLine, compact_json
    from firesteel.engines.kv_cache import (
        MEMORY_FLAGS,
        PLANNED_FLAGS,
        KvCache,
        memory_flags,
        reported_kv,
        requested_kv_cache_bytes,
        size_kv_cache,
    )
    from firesteel.engines.logs.data import Stage
    from firesteel.engines.logs.diagnosis import Cause, Diagnosis, diagnose
    from firesteel.engines.logs.memory import ReportedMemory, reported_memory
    from firesteel.engines.logs.progress import StartProgress, stages, start_progress
    from firesteel.engines.request_defaults import request_flags
    from firesteel.engines.vllm.kv_cache import ReportedKv
    from firesteel.engines.vllm.kv_settings import speculative_tokens
else:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(__name__)
