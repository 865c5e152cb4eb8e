"""What firesteel knows about vLLM, llama.cpp and SGLang: flags, command lines, logs, metrics, KV caches.

One sub-package per engine (`vllm`, `llamacpp`, `sglang`); `schema` holds the flags of every known release,
`logs` reads start-up logs, `diagnosis` finds why a start failed, `metrics` reads what a running engine
reports.
Pure: text in, values out. It never starts an engine and never chooses a flag.
"""
