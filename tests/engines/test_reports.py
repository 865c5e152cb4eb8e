"""Failed starts on a DGX Spark that people reported: twenty logs in the engines' own format, written
after the reports and before anyone looked at the rows that explain them. Twenty more are in `second.yaml`;
what a later twenty showed to be missing is in `third.yaml`.

For each: the line that names the cause, and what the answer has to say and to advise (a word or two of it).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from firesteel.engines.diagnosis import diagnose

LOGS = Path(__file__).parent / "logs" / "reports"


class Report(NamedTuple):
    source: str
    line: str
    """Is in the line that the answer points at."""
    says: str
    """A pattern: the cause is this."""
    next: str
    """A pattern: and this would help."""
    never: str | None = None
    """A pattern: no cause and no advice is this."""


REPORTS = {
    "vllm-no-kernel-image": Report(
        "https://github.com/vllm-project/vllm/issues/30855",
        "no kernel image is available",
        "(kernel|built|compiled).*(GPU|GB10|121|12\\.1)",
        "engine (install|build)|build|wheel|12\\.1|121",
    ),
    "vllm-ptxas-sm-121a": Report(
        "https://github.com/nvidia-cosmos/cosmos-reason2/issues/30",
        "sm_121a",
        "ptxas|Triton",
        "TRITON_PTXAS_PATH|CUDA 13|newer",
    ),
    "vllm-cuda-12-library": Report(
        "https://github.com/vllm-project/vllm/issues/36099",
        "libcudart.so.12",
        "CUDA 12",
        "CUDA 13|cu130|install|wheel",
    ),
    "vllm-two-gpus-asked-of-one": Report(
        "https://github.com/NVIDIA/dgx-spark-playbooks/issues/63",
        "World size (2)",
        "(2|two).*(1|one)",
        "tensor-parallel-size|cluster|node",
    ),
    "vllm-own-build-undefined-symbol": Report(
        "https://github.com/pytorch/pytorch/issues/166261",
        "undefined symbol",
        "symbol|built|compiled|torch",
        "build|install|torch",
    ),
    "vllm-less-free-than-asked": Report(
        "https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47",
        "Free memory on device",
        "free|memory",
        "gpu-memory-utilization|free",
    ),
    "vllm-no-memory-before-the-weights": Report(
        "https://github.com/NVIDIA/xr-ai/pull/440",
        "CUDA error: out of memory",
        "memory",
        "cache|free|memory|plan",
    ),
    "vllm-cuda-unknown-error": Report(
        "https://github.com/NVIDIA/NemoClaw/issues/4658",
        "CUDA unknown error",
        "driver|GPU|CUDA",
        "nvidia-smi|reboot|driver|modprobe",
    ),
    "vllm-no-sparse-attention": Report(
        "https://github.com/eugr/spark-vllm-docker/issues/67",
        "No valid attention backend",
        "attention",
        "image|release|model|build|without",
    ),
    "vllm-model-type-unknown": Report(
        "https://github.com/NVIDIA/dgx-spark-playbooks/issues/75",
        "gemma4",
        "Transformers|gemma4",
        "newer|image|install|upgrade",
    ),
    "vllm-quantized-layer-has-no-weight": Report(
        "https://github.com/vllm-project/vllm/issues/34561",
        "has no attribute 'weight'",
        "quantiz",
        "checkpoint|quantiz|release|image",
    ),
    "vllm-scale-not-expected": Report(
        "https://github.com/vllm-project/vllm/issues/51758",
        "w13_weight_scale",
        "checkpoint|tensor|weight|scale",
        "checkpoint|quantiz|release|image|audit",
    ),
    "vllm-chat-template-file-missing": Report(
        "https://github.com/eugr/spark-vllm-docker/issues/294",
        "appears path-like",
        "template",
        "path|file|chat-template",
    ),
    "sglang-kernels-of-cuda-12": Report(
        "https://github.com/sgl-project/sglang/issues/18203",
        "common_ops|libnvrtc.so.12",
        "CUDA 12|sgl.kernel",
        "cu130|CUDA 13|index",
    ),
    "sglang-no-processor-for-model": Report(
        "https://github.com/sgl-project/sglang/issues/12134",
        "No processor registered",
        "image|processor|multimodal",
        "newer|release|image|install",
    ),
    "sglang-no-kernel-image": Report(
        "https://github.com/mmcdermott/MEDS_EIC_AR/issues/163",
        "no kernel image is available",
        "(kernel|built|compiled).*(GPU|GB10|121|12\\.1)",
        "cu130|build|wheel|12\\.1|121|install",
    ),
    "sglang-memory-fraction-too-small": Report(
        "https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/8",
        "--mem-fraction-static",
        "memory|weights|KV",
        "mem-fraction-static",
    ),
    "llamacpp-no-kernel-image": Report(
        "https://github.com/ZengboJamesWang/Qwen3.5-35B-A3B-openclaw-dgx-spark/issues/3",
        "no kernel image is available",
        "(kernel|built|compiled).*(GPU|GB10|121|12\\.1)",
        "CMAKE_CUDA_ARCHITECTURES|build|12\\.1|121",
    ),
    "llamacpp-assertion-while-loading": Report(
        "https://github.com/ggml-org/llama.cpp/issues/20570",
        "GGML_ASSERT",
        "check|assert|bug",
        "release|build|newer|file|report",
    ),
    "llamacpp-file-not-there": Report(
        "https://github.com/Michael-A-Kuykendall/shimmy/issues/163",
        "failed to open GGUF file",
        "file|model",
        "path|file|pull|ls",
    ),
}


MORE = {
    each.pop("name"): each
    for file in ("second", "third")
    for each in yaml.safe_load((LOGS / f"{file}.yaml").read_text())
}


def wrong(report: Report, log: str) -> str | None:
    """What is wrong with the answer; None if it is right."""
    diagnosis = diagnose(log)
    cause = diagnosis.cause
    if diagnosis.state != "failed" or cause is None:
        return f"{diagnosis.state}, no cause; suspect {diagnosis.suspect}"
    line = log.splitlines()[cause.line - 1]
    if not any(part in line for part in report.line.split("|")):
        return f"{cause.id} points at: {line}"
    if not re.search(report.says, cause.says, re.IGNORECASE):
        return f"{cause.id} says: {cause.says}"
    if not re.search(report.next, cause.next or "", re.IGNORECASE):
        return f"{cause.id} advises: {cause.next}"
    answers = [f"{each.id}: {each.says}; {each.next}" for each in diagnosis.causes]
    return next((each for each in answers if report.never and re.search(report.never, each)), None)


@pytest.mark.parametrize("name", REPORTS)
def test_a_reported_failure_is_explained(name: str) -> None:
    assert wrong(REPORTS[name], (LOGS / f"{name}.log").read_text()) is None


@pytest.mark.parametrize("name", MORE)
def test_a_failure_of_a_later_sample_is_explained(name: str) -> None:
    report = Report(**{key: text for key, text in MORE[name].items() if key != "log"})
    assert wrong(report, MORE[name]["log"]) is None
