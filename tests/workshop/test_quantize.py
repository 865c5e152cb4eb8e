"""`quantize` of made checkpoints: the same bits as llm-compressor, and what stands beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firesteel.workshop.kernels.native import Kernel, NumpyKernel, load_kernel
from firesteel.workshop.quantize.plan import QuantizationPlan, plan_quantization
from firesteel.workshop.quantize.run import run_quantization
from firesteel.workshop.quantize.source import open_source
from tests.workshop import made_checkpoints as made
from tests.workshop.stored import digests
from tests.workshop.test_kernels_oracle import CASES, MODELS, ORACLE

CONFIGS: dict[str, Any] = {
    "llama": made.LLAMA,
    "llama-f32": made.LLAMA | {"torch_dtype": "float32"},
    "qwen3_moe": made.QWEN3_MOE,
}


@pytest.fixture(scope="session")
def c_kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    return load_kernel(tmp_path_factory.mktemp("kernels"))


def quantize(source: Path, out: Path, to: str, kernel: Kernel, **options: Any) -> QuantizationPlan:
    plan = plan_quantization(open_source(str(source)), to, **options)
    run_quantization(plan, out, kernel, threads=2)
    return plan


@pytest.mark.parametrize("kernel_name", ["C", "numpy"])
@pytest.mark.parametrize("case", CASES)
def test_every_tensor_is_that_of_llm_compressor(
    case: str, kernel_name: str, tmp_path: Path, c_kernel: Kernel
) -> None:
    model, to = case.split()
    source = made.write_checkpoint(tmp_path / "source", CONFIGS[model], MODELS[model](), shards=2)
    quantize(source, tmp_path / "out", to, c_kernel if kernel_name == "C" else NumpyKernel())
    assert digests(tmp_path / "out") == ORACLE[case]["tensors"]
    ours = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    theirs = ORACLE[case]["config"]
    assert ours["format"] == theirs["format"]
    (own,), (oracle,) = ours["config_groups"].values(), theirs["config_groups"].values()
    assert own == oracle
