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

__all__ = [
    "MEMORY_FLAGS", "PLANNED_FLAGS", "Cause", "Diagnosis", "KvCache", "ParsedCommandLine", "ReportedKv",
    "ReportedMemory", "ServedCapacity", "Stage", "StartProgress", "adapter_flags", "adapter_request",
    "argv", "compact_json", "default_port", "diagnose", "expand_shortcuts",
    "format_flag", "grammar", "lora_slots", "memory_flags", "parse_argv", "program", "reported_kv",
    "reported_memory", "request_flags", "requested_kv_cache_bytes", "served_capacity", "size_flags",
    "size_kv_cache", "speculative_tokens", "stages", "start_progress",
]  # fmt: skip

if not TYPE_CHECKING:  # a type checker would take any name for one of these
    __getattr__ = lazy_exports(
        __name__,
        {
            "adapters": ("adapter_flags", "adapter_request", "lora_slots"),
            "engine": (
                "ServedCapacity", "argv", "default_port", "expand_shortcuts", "format_flag", "grammar",
                "parse_argv", "program", "served_capacity", "size_flags",
            ),
            "flags": ("ParsedCommandLine", "compact_json"),
            "kv_cache": (
                "MEMORY_FLAGS", "PLANNED_FLAGS", "KvCache", "memory_flags", "reported_kv",
                "requested_kv_cache_bytes", "size_kv_cache",
            ),
            "logs.data": ("Stage",),
            "logs.diagnosis": ("Cause", "Diagnosis", "diagnose"),
            "logs.memory": ("ReportedMemory", "reported_memory"),
            "logs.progress": ("StartProgress", "stages", "start_progress"),
            "request_defaults": ("request_flags",),
            "vllm.kv_cache": ("ReportedKv",),
            "vllm.kv_settings": ("speculative_tokens",),
        },
    )  # fmt: skip
