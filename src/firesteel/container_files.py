"""Where a container sees the files of its host, and the variables that tell each engine about them."""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.launch import LOOPBACK, EngineName

HUB_CACHE = "~/.cache/huggingface"
"""On the host. Whoever runs or prints a launch replaces `~` by the user's home."""
HUB_INSIDE = "/hub"
"""Where a container sees it, whoever its user is: each engine is told through the variable that it reads."""
HUB_CACHE_INSIDE = f"{HUB_INSIDE}/hub"
MODELS_INSIDE = "/models"
ADAPTERS_INSIDE = "/adapters"
COMPILED_INSIDE = "/compiled"
WHEELS_INSIDE = "/wheels"
HUB_TOKEN = "HF_TOKEN"
DOWNLOAD_ENV = (
    HUB_TOKEN, "HF_ENDPOINT",
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)  # fmt: skip
HUB_ENV: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": {"HF_HOME": HUB_INSIDE},
    "sglang": {"HF_HOME": HUB_INSIDE},
    "llamacpp": {"LLAMA_CACHE": HUB_CACHE_INSIDE},
}
_OFFLINE_PYTHON = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
OFFLINE_ENV: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": _OFFLINE_PYTHON,
    "sglang": _OFFLINE_PYTHON,
    "llamacpp": {"LLAMA_ARG_OFFLINE": "1", "LLAMA_OFFLINE": "1"},
}
"""What keeps an engine from asking the Hub. llama.cpp renamed its variable between builds 9310 and 9360."""
_PYTORCH_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": f"{COMPILED_INSIDE}/inductor",
    "TRITON_CACHE_DIR": f"{COMPILED_INSIDE}/triton",
    "FLASHINFER_WORKSPACE_BASE": COMPILED_INSIDE,
    "CUDA_CACHE_PATH": f"{COMPILED_INSIDE}/cuda",
    # gpt-oss: its vocabulary comes from elsewhere than the Hub, at the first start
    "TIKTOKEN_RS_CACHE_DIR": f"{COMPILED_INSIDE}/tiktoken",
}
COMPILE_CACHE_ENV: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": {"VLLM_CACHE_ROOT": f"{COMPILED_INSIDE}/vllm", **_PYTORCH_CACHES},
    "sglang": {"SGLANG_CACHE_DIR": f"{COMPILED_INSIDE}/sglang", **_PYTORCH_CACHES},
    "llamacpp": {"CUDA_CACHE_PATH": f"{COMPILED_INSIDE}/cuda"},
}
"""Where an engine keeps what it compiles, whoever its user is in the container.

vllm/envs.py and flashinfer/jit/env.py in their releases, seen 2026-11-15; tiktoken:
https://github.com/openai/harmony/issues/46.
"""


def health_options(image_port: int | None, port: int) -> tuple[tuple[str, str], ...]:
    """For an image whose own check asks another port than the engine's: it would be unhealthy for ever.

    Failures do not count while it loads, which takes minutes.
    """
    if image_port in (None, port):
        return ()
    return (
        ("health-cmd", f"curl -fsS http://{LOOPBACK}:{port}/health"),
        ("health-start-period", "30m"),
    )
