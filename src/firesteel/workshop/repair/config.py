"""A config that describes the tensors: their format, what is not quantized, and what activations need."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from firesteel.errors import FiresteelError
from firesteel.facts.model.contents import CheckpointContents, StoredModule
from firesteel.facts.model.tensors import Role
from firesteel.rules.checkpoint.audited import AuditedCheckpoint, is_linear
from firesteel.rules.checkpoint.checks import CheckpointFinding
from firesteel.values import replace
from firesteel.workshop.repair.draft import Draft

_NVFP4 = {
    "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True,
    "dynamic": False, "observer": "memoryless_minmax", "scale_dtype": "torch.float8_e4m3fn",
}  # fmt: skip
_FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
_FP8_INPUT = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
_REWRITES = ("quantization-config-missing", "layout-contradicts-config", "nothing-is-quantized")


def fix_config(draft: Draft, contents: CheckpointContents, findings: Iterable[CheckpointFinding]) -> Draft:
    """The config for what was found; the rest of it stays as it is written."""
    if contents.config is None:
        raise FiresteelError(
            f"{contents.origin} has no config.json, and its values do not follow from the tensors alone",
            next="copy the config.json of the model that it was made from",
        )
    config = copy.deepcopy(dict(contents.config))
    modelopt = copy.deepcopy(dict(contents.modelopt_config)) if contents.modelopt_config else None
    checks = {found.check for found in findings}
    done = []
    if checks & set(_REWRITES):
        config, modelopt = _describe(config, draft)
        done.append("config.json describes the format that the tensors have")
    subject = AuditedCheckpoint(replace(contents, config=config, modelopt_config=modelopt))
    section = _section(config)
    if section is not None:
        done += _ignore_list(subject, section)
        done += _activations(subject, section, checks)
        done += _targets(section, checks)
        if modelopt is not None and section.get("quant_method") == "modelopt":
            modelopt = {**modelopt, "quantization": _modelopt_quantization(modelopt, section)}
            if "configs-differ" in checks:
                done.append("hf_quant_config.json says the same as config.json")
    if not done:
        return draft
    return replace(draft, config=config, modelopt_config=modelopt, done=(*draft.done, *done))


def _section(config: dict[str, Any]) -> dict[str, Any] | None:
    for parent in (config, config.get("text_config")):
        if isinstance(parent, dict) and isinstance(section := parent.get("quantization_config"), dict):
            return section
    return None


# --- the whole section ---


def _describe(config: dict[str, Any], draft: Draft) -> tuple[dict[str, Any], dict[str, Any] | None]:
    modules = draft.modules()
    quantized = [module for module in modules.values() if module.is_quantized and module.weight is not None]
    formats = {module.format for module in quantized}
    config.pop("quantization_config", None)
    config.pop("compression_config", None)
    if not quantized:
        return config, None
    if not formats <= {"nvfp4", "fp8"}:
        raise FiresteelError(
            f"firesteel cannot describe weights stored as {', '.join(sorted(formats))}",
            next="quantize the model again, or copy the config of its publisher",
        )
    ignore = sorted(not_quantized(modules.values()))
    if any(module.layout == "modelopt" for module in quantized):
        return config | {"quantization_config": modelopt_section(quantized, ignore)}, modelopt_file(
            quantized, ignore
        )
    return config | {"quantization_config": compressed_section(quantized, ignore)}, None


def compressed_section(quantized: Iterable[StoredModule], ignore: list[str]) -> dict[str, Any]:
    """`quantization_config` of compressed-tensors for these modules."""
    modules = list(quantized)
    groups: dict[str, Any] = {}
    for form in ("nvfp4", "fp8"):
        own = [module for module in modules if module.format == form]
        if not own:
            continue
        inputs = any("input_global_scale" in module.parts or "input_scale" in module.parts for module in own)
        group: dict[str, Any] = {"targets": ["Linear"]}
        if form == "nvfp4":
            group |= {
                "weights": _NVFP4,
                "input_activations": {**_NVFP4, "dynamic": "local"} if inputs else None,
            }
            group["format"] = "nvfp4-pack-quantized"
        else:
            group |= {"weights": _FP8, "input_activations": _FP8_INPUT, "format": "float-quantized"}
        if any(module.format != form for module in modules):
            group["targets"] = sorted(f"re:.*{re.escape(kind)}$" for kind in _kinds(own))
        groups[f"group_{len(groups)}"] = group
    form = next(iter(groups.values()))["format"] if len(groups) == 1 else "mixed-precision"
    return {
        "quant_method": "compressed-tensors", "quantization_status": "compressed", "format": form,
        "ignore": ignore, "config_groups": groups, "kv_cache_scheme": None,
    }  # fmt: skip


def modelopt_section(quantized: Iterable[StoredModule], ignore: list[str]) -> dict[str, Any]:
    has_inputs = any("input_scale" in module.parts for module in quantized)
    return {
        "quant_method": "modelopt", "quant_algo": "NVFP4" if has_inputs else "W4A16_NVFP4", "group_size": 16,
        "ignore": ignore,
    }  # fmt: skip


def modelopt_file(quantized: Iterable[StoredModule], ignore: list[str]) -> dict[str, Any]:
    section = modelopt_section(quantized, ignore)
    return {
        "producer": {"name": "modelopt"},
        "quantization": {
            "quant_algo": section["quant_algo"], "group_size": 16, "kv_cache_quant_algo": None,
            "exclude_modules": ignore,
        },
    }  # fmt: skip


def _kinds(modules: Iterable[StoredModule]) -> set[str]:
    """`.self_attn.q_proj`: the last two names of each, with experts left out."""
    return {"." + ".".join(re.sub(r"\.\d+\.", ".", module.name).split(".")[-2:]) for module in modules}


def not_quantized(modules: Iterable[StoredModule]) -> Iterator[str]:
    """By name, not by pattern: what every engine understands."""
    for module in modules:
        weight = module.weight
        if weight is None or module.is_quantized or len(weight.shape) < 2:
            continue
        if module.role not in (Role.EMBEDDINGS, Role.NORMS) and "conv1d" not in module.name:
            yield module.name


# --- parts of it ---


def _ignore_list(subject: AuditedCheckpoint, section: dict[str, Any]) -> Iterator[str]:
    key = next(
        (key for key in ("ignore", "exclude_modules", "modules_to_not_convert") if key in section), "ignore"
    )
    entries = [entry for entry in section.get(key) or [] if isinstance(entry, str)]
    missing = [
        module.name
        for module in subject.representatives
        if (is_linear(module) or module.role is Role.DRAFTER)
        and module.is_matrix
        and not module.is_quantized
        and module.role is not Role.ROUTED_EXPERTS
        and subject.declared_format(module) is not None
    ]
    wrong = {
        module.name
        for module in subject.representatives
        if is_linear(module) and module.is_quantized and subject.declared_format(module) is None
    } & set(entries)
    if missing or wrong:
        section[key] = [entry for entry in entries if entry not in wrong] + missing
    if missing:
        yield f"{len(missing)} modules in 16 bits were added to the ignore list"
    if wrong:
        yield f"{len(wrong)} quantized modules were taken from the ignore list"


def _activations(subject: AuditedCheckpoint, section: dict[str, Any], checks: set[str]) -> Iterator[str]:
    """Without scales for activations the weights can still be used, with activations in 16 bits."""
    if "input-scales-missing" not in checks:
        return
    if section.get("quant_method") == "modelopt":
        section["quant_algo"] = "W4A16_NVFP4"
    for group in (section.get("config_groups") or {}).values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, Mapping) and weights.get("num_bits") == 4:
            group["input_activations"] = None
    yield "activations stay in 16 bits, because their scales are absent"


def _targets(section: dict[str, Any], checks: set[str]) -> Iterator[str]:
    if "moe-target-missing" not in checks:
        return
    for group in (section.get("config_groups") or {}).values():
        if isinstance(group, dict) and group.get("targets") == ["Linear"]:
            group["targets"] = ["Linear", "RoutedExperts"]
            yield "the target RoutedExperts was added"


def _modelopt_quantization(modelopt: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, Any]:
    own = modelopt.get("quantization")
    quantization = dict(own) if isinstance(own, Mapping) else {}
    return quantization | {
        "quant_algo": section.get("quant_algo"),
        "exclude_modules": section.get("ignore") or section.get("exclude_modules") or [],
    }
