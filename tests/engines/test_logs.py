"""Log lines as engines print them: llama.cpp and vLLM in full from real starts, the rest as published."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import pytest

from firesteel.engines.diagnosis import diagnose
from firesteel.engines.logs import (
    MAX_LINE,
    StartProgress,
    numbered_lines,
    reported_memory,
    start_progress,
    strip_prefix,
)
from firesteel.engines.logs import stages as progress_stages
from firesteel.launch import EngineName
from firesteel.units import GIB, MIB

LOGS = Path(__file__).parent / "logs"
LLAMACPP = (LOGS / "llamacpp-11549.log").read_text()
VLLM_CPU = (LOGS / "vllm-0.32.0-cpu.log").read_text()
METRICS = (LOGS / "vllm-0.32.0-cpu-metrics.txt").read_text()
VLLM = """\
INFO 11-02 10:00:01 [core.py:90] Initializing a V1 LLM engine (v0.26.0) with config: model='x'
INFO 11-02 10:00:09 [gpu_model_runner.py:4121] Starting to load model nvidia/x...
Loading safetensors checkpoint shards:  40% Completed | 4/10 [00:10<00:15]
INFO 11-02 10:01:09 [gpu_model_runner.py:4210] Model loading took 21.93 GiB memory and 60.123456 seconds
INFO 11-02 10:02:09 [gpu_worker.py:356] Available KV cache memory: 47.55 GiB
INFO 11-02 10:02:10 [kv_cache_utils.py:1307] GPU KV cache size: 623,040 tokens
INFO 11-02 10:02:10 [kv_cache_utils.py:1312] Maximum concurrency for 65,536 tokens per request: 9.51x
INFO 11-02 10:02:40 [gpu_model_runner.py:4987] Graph capturing finished in 20 secs, took 0.44 GiB
INFO:     Application startup complete.
"""
SGLANG = """\
[2025-11-30 12:49:00] server_args=ServerArgs(model_path='x')
[2025-11-30 12:49:10] Load weight begin. avail mem=137.34 GB
Loading safetensors checkpoint shards:  50% Completed | 15/30 [00:10<00:10,  1.50it/s]
[2025-11-30 12:50:00] Load weight end. elapsed=50.00 s, type=X, avail mem=131.08 GB, mem usage=8.13 GB.
[2025-11-30 12:50:10] KV Cache is allocated. #tokens: 2243474, K size: 59.91 GB, V size: 59.91 GB
[2025-11-30 12:50:10] Memory pool end. avail mem=40.03 GB
[2025-11-30 12:50:10] Capture cuda graph begin. This can take up to several minutes. avail mem=39.48 GB
Capturing batches (bs=1 avail_mem=38.07 GB): 100%|██████████| 52/52 [00:04<00:00, 10.83it/s]
[2025-11-30 12:50:15] Capture cuda graph end. Time elapsed: 5.37 s. mem usage=1.44 GB. avail mem=38.05 GB.
[2025-11-30 12:50:20] max_total_num_tokens=2243474, chunked_prefill_size=8192, max_running_requests=2048
[2025-11-30 12:50:25] The server is fired up and ready to roll!
"""


def progress_in(engine: EngineName, text: str) -> list[StartProgress]:
    lines = text.replace("\r", "\n").splitlines()
    return [progress for line in lines if (progress := start_progress(engine, line))]


def test_memory_that_llamacpp_reports() -> None:
    reported = reported_memory("llamacpp", LLAMACPP)
    assert reported.weights_bytes == pytest.approx(92.10 * MIB, abs=0.01 * MIB)
    assert reported.kv_bytes == 90 * MIB
    assert reported.compute_bytes == pytest.approx(16.64 * MIB, abs=0.01 * MIB)


def test_llamacpp_phases_in_order() -> None:
    assert [progress.words for progress in progress_in("llamacpp", LLAMACPP)] == [
        "reading the model file",
        "loading weights",
        "setting up the KV cache",
        "warming up",
        "listening",
    ]


def test_memory_that_vllm_reports() -> None:
    reported = reported_memory("vllm", VLLM)
    assert reported.weights_bytes == round(21.93 * GIB)
    assert reported.kv_bytes == round(47.55 * GIB)
    assert reported.kv_tokens == 623040
    assert reported.concurrency == 9.51


def test_log_and_metrics_of_a_real_vllm_agree() -> None:
    reported = reported_memory("vllm", VLLM_CPU)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', METRICS[METRICS.index("vllm:cache_config_info{") :][:4000]))
    assert reported.kv_tokens == int(labels["kv_cache_size_tokens"]) == 46592
    assert reported.concurrency == float(labels["kv_cache_max_concurrency"]) == 22.75
    assert reported.kv_bytes == int(labels["kv_cache_memory_bytes"]) == GIB
    assert reported.weights_bytes is None  # vLLM does not report it on a CPU


def test_a_real_start_of_vllm_is_read_to_its_end() -> None:
    progress = progress_in("vllm", VLLM_CPU)
    stages = [mark.stage for mark in progress]
    order = [progress_stages("vllm").index(stage) for stage in stages]
    assert order == sorted(order)
    assert stages[0] == "process" and stages[-1] == "listening"
    assert {"process", "weights", "compile", "kv", "warm", "listening"} == set(stages)
    assert StartProgress("weights", "loading weights", 1, 1, "shards") in progress


def test_memory_and_progress_that_sglang_reports() -> None:
    reported = reported_memory("sglang", SGLANG)
    assert reported.weights_bytes == round(8.13 * GIB)
    assert reported.kv_bytes == round(2 * 59.91 * GIB)
    assert reported.kv_tokens == 2243474
    progress = progress_in("sglang", SGLANG)
    assert progress[0].stage == "process" and progress[-1].stage == "listening"
    assert StartProgress("graphs", "capturing CUDA graphs", 52, 52, "graphs") in progress


@pytest.mark.parametrize(
    ("name", "weights_gib", "tokens", "token_bytes"),
    [("qwen3-8b", 15.28, 395_044, 147_456), ("smollm2-native", 0.27, 5_842_101, 23_040)],
)
def test_a_real_start_of_sglang_is_read_to_its_end(
    name: str, weights_gib: float, tokens: int, token_bytes: int
) -> None:
    """Figures have two decimals."""
    text = (LOGS / "gpu" / f"sglang-0.5.16-{name}.log").read_text()
    reported = reported_memory("sglang", text)
    assert reported.weights_bytes == round(weights_gib * GIB) and reported.kv_tokens == tokens
    assert reported.kv_bytes == pytest.approx(tokens * token_bytes, abs=0.02 * GIB)
    stages = [mark.stage for mark in progress_in("sglang", text)]
    order = [progress_stages("sglang").index(stage) for stage in stages]
    assert order == sorted(order) and set(stages) == {*progress_stages("sglang")} - {"download"}


def test_the_upper_bound_of_sglang_is_not_counted() -> None:
    text = "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 90, K size: 9.00 GB, V size: 9.00 GB\n"
    assert reported_memory("sglang", text).kv_bytes is None
    text += (
        "Post-capture KV sizing: KV cache allocated. dtype: x, #tokens: 50, KV size: 4.00 GB, avail mem=9 GB"
    )
    assert reported_memory("sglang", text).kv_bytes == 4 * GIB


@pytest.mark.parametrize(
    ("engine", "line", "says", "share"),
    [
        (
            "vllm",
            "Loading safetensors checkpoint shards:  45% Completed | 9/20 [00:10<00:12,  1.1s/it]",
            "loading weights, 9 of 20 shards",
            0.45,
        ),
        (
            "vllm",
            "Loading safetensors using Fastsafetensor loader:  50% Completed | 2/4 [00:01<00:01]",
            "loading weights, 2 of 4 shards",
            0.5,
        ),
        (
            "vllm",
            "Multi-thread loading shards:  25% Completed | 1/4 [00:01<00:03]",
            "loading weights, 1 of 4 shards",
            0.25,
        ),
        (
            "vllm",
            "(EngineCore pid=1) Capturing CUDA graphs (decode, FULL):  34%|███▍      | 12/35 [00:02<00:04]",
            "capturing CUDA graphs, 12 of 35 graphs",
            12 / 35,
        ),
        (
            "vllm",
            "model-00001-of-00010.safetensors:  45%|████▌     | 2.25G/4.98G [00:30<00:36, 74MB/s]",
            "downloading, 45 %",
            0.45,
        ),
        ("vllm", "Fetching 10 files:  30%|███       | 3/10 [00:10<00:20]", "downloading, 3 of 10 files", 0.3),
        (
            "vllm",
            "[AutoTuner]: Tuning trtllm::fused_moe::gemm1: 7/21",
            "tuning kernels, 7 of 21 kernels",
            7 / 21,
        ),
        (
            "vllm",
            "Directly load AOT compilation from path /x",
            "taking the compiled model from the cache",
            None,
        ),
        ("llamacpp", "Downloading gpt-oss.gguf ──────╴                  41%", "downloading, 41 %", 0.41),
        ("vllm", "INFO: 127.0.0.1 - 'GET /health HTTP/1.1' 200 OK", None, None),
        ("llamacpp", "srv  update_slots: all slots are idle", None, None),
    ],
)
def test_a_line_with_progress(engine: EngineName, line: str, says: str | None, share: float | None) -> None:
    progress = start_progress(engine, line)
    assert (str(progress) if progress else None) == says
    assert (progress.share if progress else None) == pytest.approx(share)


def test_a_reworded_line_belongs_to_its_releases() -> None:
    """`dynamic shape` became `compile range` in 0.13."""
    before, after = (
        f"Compiling a graph for {what} takes 9.1 s" for what in ("dynamic shape", "compile range")
    )
    assert start_progress("vllm", before, "0.12.0") and not start_progress("vllm", before, "0.20.0")
    assert start_progress("vllm", after, "0.32.0") and not start_progress("vllm", after, "0.12.0")
    assert start_progress("vllm", before) and start_progress("vllm", after)


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
        (["something", "RuntimeError: nobody has seen this"], "RuntimeError: nobody has seen this"),
        (["something", "an error of no known kind"], "an error of no known kind"),
    ],
)
def test_the_line_that_names_the_cause(lines: list[str], says: str | None) -> None:
    diagnosis = diagnose("\n".join(lines))
    progress = diagnosis.cause.text if diagnosis.cause else diagnosis.suspect and diagnosis.suspect[1]
    assert (progress is None) if says is None else (progress is not None and says in progress)


@pytest.mark.parametrize("cut", [1, 3, 7, 1000])
def test_lines_are_the_same_however_the_text_is_cut(cut: int) -> None:
    text = "one\r\ntwo\n\nbar  1%\rbar 99%\rbar done\nlast \x1b[31mred\x1b[0m"
    parts = [text[at : at + cut] for at in range(0, len(text), cut)]
    assert list(numbered_lines(parts)) == [
        (1, "one"),
        (2, "two"),
        (4, "bar  1%"),
        (4, "bar 99%"),
        (4, "bar done"),
        (5, "last red"),
    ]


def test_a_line_without_an_end_is_cut_and_not_kept() -> None:
    tracemalloc.start()
    progress = list(numbered_lines("x" * 65536 for _ in range(200)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(progress) == 1 and len(progress[0][1]) == MAX_LINE
    assert peak_bytes < 2 * MIB


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("(EngineCore pid=5143) ERROR 11-15 09:12:16 [core.py:1510] ValueError: no", "ValueError: no"),
        ("(RayWorkerProc pid=2) (Worker pid=2) INFO 08-19 18:00:13 [monitor.py:53] took 1 s", "took 1 s"),
        ("vllm_gb10  | (EngineCore pid=194) INFO 04-29 12:00:58 [monitor.py:81] x", "x"),
        ("[2025-11-10 19:59:09 TP1] Capture cuda graph end.", "Capture cuda graph end."),
        ("Aug 19 18:34:30 spark vllm[8707]: (APIServer pid=8707) ValueError: x", "ValueError: x"),
        ("2026-11-15T09:04:00.123456789Z (EngineCore pid=1) ValueError: x", "ValueError: x"),
        ("0.00.193.632 E llama_model_load: failed", "llama_model_load: failed"),
        ("plain", "plain"),
    ],
)
def test_time_and_process_are_stripped(line: str, message: str) -> None:
    assert strip_prefix(line) == message


@pytest.mark.parametrize(
    ("name", "engine", "weights_mib", "kv_mib"),
    [
        ("llamacpp-11434-smollm2-native", "llamacpp", 120.9, 180.0),
        ("vllm-0.26.0-smollm2-native", "vllm", 266.2, 184.3),
    ],
)
def test_engines_without_a_container_on_an_h200(
    name: str, engine: EngineName, weights_mib: float, kv_mib: float
) -> None:
    """Both came up and answered; their logs say what they took, and name no failure."""
    text = (LOGS / "gpu" / f"{name}.log").read_text()
    reported = reported_memory(engine, text)
    assert reported.weights_bytes and round(reported.weights_bytes / MIB, 1) == weights_mib
    assert reported.kv_bytes and round(reported.kv_bytes / MIB, 1) == kv_mib
    assert any(start_progress(engine, line) for line in text.splitlines())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "[parallel_state.py:1906] world_size=2 rank=0 local_rank=0 backend=nccl",
            "waiting for the other ranks",
        ),
        ("[parallel_state.py:2350] rank 1 in world size 2 is assigned as DP rank 0", "all ranks have joined"),
        ("[parallel_state.py:1906] world_size=1 rank=0 local_rank=0 backend=nccl", None),
        ("[parallel_state.py:2350] rank 0 in world size 1 is assigned as DP rank 0", None),
    ],
)
def test_a_cluster_that_forms(line: str, words: str | None) -> None:
    progress = start_progress("vllm", f"(Worker pid=1) INFO 11-15 16:01:40 {line}")
    assert (progress and (progress.stage, str(progress))) == (words and ("forming", words))
