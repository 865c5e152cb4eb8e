"""The policy on every known config: nothing is left over by accident, and what engines join is stored alike.

Tensors have the names and shapes of `facts.model.parameters`, which are held against transformers elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firesteel.errors import FiresteelError
from firesteel.facts.model.architecture import UnknownArchitecture
from firesteel.facts.model.config import architecture_of_config, language_model_values
from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.quantization import read_quantization
from firesteel.facts.model.tensors import Role, quantize_policy, role_of, scale_partners
from firesteel.values import replace
from firesteel.workshop.quantize.plan import QuantizationPlan, plan_quantization
from firesteel.workshop.quantize.source import SourceCheckpoint, SourceTensor

CONFIGS_FOLDER = Path(__file__).parents[1] / "facts/configs"
CONFIGS = sorted(CONFIGS_FOLDER.rglob("*.json"))
REFUSED = {
    "deepseek_v4": "cannot be quantized",
    "gpt_oss": "cannot be quantized",
    "granitemoe": "cannot be quantized",
    "granitemoehybrid": "cannot be quantized",
}


def source_of(config: dict[str, Any]) -> SourceCheckpoint:
    architecture = architecture_of_config(config)
    tensors = tuple(_tensors(config, len(architecture.layers)))
    model_type = language_model_values(config).model_type
    return SourceCheckpoint(
        Path("/none"), "model", "org/model", config, architecture, model_type, tensors, ""
    )


def _tensors(config: dict[str, Any], layers: int) -> Iterator[SourceTensor]:
    for group in parameters_of_config(config).groups:
        name = group.name if group.name.endswith(("_bias", "_scalar")) else f"{group.name}.weight"
        size = 2
        for length in group.shape:
            size *= length
        shape = tuple(group.shape)
        if ".experts." in name and len(shape) == 2 and "experts.0." not in name and group.is_linear:
            family = quantize_policy().family(language_model_values(config).model_type)
            is_transposed = bool(family and family.experts and family.experts.transposed)
            shape = (group.count, *(reversed(shape) if is_transposed else shape))
            size, name = size * group.count, group.name
        yield SourceTensor(name, "BF16", shape, size, role_of(name, layers), "model.safetensors", 0)


def plans() -> Iterator[Any]:
    """One of each family."""
    seen = set()
    for path in CONFIGS:
        config = json.loads(path.read_text())
        config.pop("quantization_config", None)
        try:
            family = parameters_of_config(config).model_type
        except UnknownArchitecture:
            continue
        if family in seen:
            continue
        seen.add(family)
        yield pytest.param(config, id=path.stem)


@pytest.mark.parametrize("config", list(plans()))
def test_every_family_is_quantized_or_refused_by_name(config: dict[str, Any]) -> None:
    source = source_of(config)
    for to in ("fp8-dynamic", "nvfp4-spark"):
        try:
            plan = plan_quantization(source, to)
        except FiresteelError as error:
            expected = REFUSED.get(source.model_type, "not a multiple of")
            assert expected in error.what, error.what
            continue
        assert source.model_type not in REFUSED
        check(plan, to)


def test_the_experts_of_gemma_4_are_cut() -> None:
    config = json.loads((CONFIGS_FOLDER / "google--gemma-4-26B-A4B.json").read_text())
    source = source_of(config)
    layer, hidden, wide = "model.language_model.layers.0.experts", 2816, 704
    fused = tuple(
        SourceTensor(f"{layer}.{name}", "BF16", (128, rows, columns), 256 * rows * columns,
                     Role.ROUTED_EXPERTS, "model.safetensors", 0)
        for name, rows, columns in (("gate_up_proj", 2 * wide, hidden), ("down_proj", hidden, wide))
    )  # fmt: skip
    others = tuple(tensor for tensor in source.tensors if ".experts." not in tensor.name)
    plan = plan_quantization(replace(source, tensors=(*fused, *others)), "nvfp4")
    check(plan, "nvfp4")
    modules = {matrix.module for matrix in plan.matrices if matrix.role is Role.ROUTED_EXPERTS}
    assert len(modules) == 3 * 128 and f"{layer}.127.up_proj" in modules


def check(plan: QuantizationPlan, to: str) -> None:
    schemes = {matrix.module: matrix.scheme for matrix in plan.matrices}
    roles = {matrix.role for matrix in plan.matrices}
    assert not roles & {Role.ROUTER, Role.EMBEDDINGS, Role.NORMS, Role.TOWER, Role.DRAFTER}
    assert Role.ATTENTION in roles or Role.DENSE_MLP in roles
    for module, scheme in schemes.items():
        for partner in scale_partners(module):
            assert schemes.get(partner, scheme) == scheme
    kept = sum(tensor.bytes for tensor in plan.kept if tensor.source.role not in (Role.EMBEDDINGS, Role.HEAD))
    experts = sum(t.bytes for t in plan.kept if t.source.role is Role.ROUTED_EXPERTS)
    assert experts == 0
    large = sum(tensor.bytes for tensor in plan.source.tensors if tensor.role in roles)
    towers = sum(t.bytes for t in plan.kept if t.source.role in (Role.TOWER, Role.DRAFTER))
    assert kept - towers < 0.1 * large, "almost everything that can be quantized is"
    quantization = read_quantization(plan.config)
    assert quantization is not None
    for module in schemes:
        assert not quantization.ignored.match(module), module
    for tensor in plan.kept:
        name = tensor.source.name.removesuffix(".weight")
        if len(tensor.source.shape) == 2 and tensor.source.role not in (Role.EMBEDDINGS, Role.NORMS):
            assert quantization.ignored.match(name), name
    for group in plan.config["quantization_config"]["config_groups"].values():
        if "Linear" not in group["targets"]:
            patterns = [re.compile(target.removeprefix("re:")) for target in group["targets"]]
            matched = {schemes[module] for module in schemes if any(p.match(module) for p in patterns)}
            assert len(matched) == 1
