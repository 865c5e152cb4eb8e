"""Log lines as engines print them: the embedded llama.cpp in full from a real start, vLLM's as published."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel import engines
from firesteel.units import GIB, MIB

LLAMACPP = (Path(__file__).parent / "logs" / "llamacpp-11549.log").read_text()
VLLM = """\
INFO 11-02 10:00:01 [core.py:90] Initializing a V1 LLM engine (v0.26.0) with config: model='x'
INFO 11-02 10:00:09 [gpu_model_runner.py:4121] Starting to load model nvidia/x...
Loading safetensors checkpoint shards:  40% Completed | 4/10 [00:10<00:15]
INFO 11-02 10:01:09 [gpu_model_runner.py:4210] Model loading took 21.93 GiB memory and 60.123456 seconds
INFO 11-02 10:02:09 [gpu_worker.py:356] Available KV cache memory: 47.55 GiB
INFO 11-02 10:02:10 [kv_cache_utils.py:1307] GPU KV cache size: 623,040 tokens
INFO 11-02 10:02:40 [gpu_model_runner.py:4987] Graph capturing finished in 20 secs, took 0.44 GiB
INFO:     Application startup complete.
"""


def test_llamacpp_says_what_it_took() -> None:
    taken = engines.taken("llamacpp", LLAMACPP)
    assert taken.weights_bytes == pytest.approx(92.10 * MIB, abs=0.01 * MIB)
    assert taken.kv_bytes == 90 * MIB
    assert taken.compute_bytes == pytest.approx(16.64 * MIB, abs=0.01 * MIB)


def test_llamacpp_phases_in_order() -> None:
    phases = [words for line in LLAMACPP.splitlines() if (words := engines.phase("llamacpp", line))]
    assert phases == [
        "reading the model file",
        "loading weights",
        "setting up the KV cache",
        "warming up",
        "listening",
    ]


def test_vllm_says_what_it_took() -> None:
    taken = engines.taken("vllm", VLLM)
    assert taken.weights_bytes == round(21.93 * GIB)
    assert taken.kv_bytes == round(47.55 * GIB)
    assert taken.kv_tokens == 623040


def test_vllm_phases_in_order() -> None:
    phases = [words for line in VLLM.splitlines() if (words := engines.phase("vllm", line))]
    assert phases[0] == "starting the engine" and phases[-1] == "listening"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["all well"], None),
        (["vllm: error: unrecognized arguments: serve openai/gpt-oss-20b"], "unrecognized arguments: serve"),
        (
            [
                "ValueError: Free memory on device cuda:0 (90.1/119.6 GiB) on startup is less than "
                "desired GPU memory utilization (0.92, 110.0 GiB)."
            ],
            "Free memory on device cuda:0",
        ),
        (
            ["0.00.1 E llama_model_load: error loading model: tensor 'x' data is not within the file bounds"],
            "error loading model",
        ),
        (["embedded engine: `--port x` is not valid"], "embedded engine: `--port x`"),
        (["embedded engine: serving on http://127.0.0.1:8000"], None),
        (["something", "RuntimeError: Engine core died"], None),
        (["something", "Exception: it broke"], "Exception: it broke"),
    ],
)
def test_the_line_that_says_why(lines: list[str], says: str | None) -> None:
    found = engines.complaint(lines)
    assert (found is None) if says is None else (found is not None and found.startswith(says))
