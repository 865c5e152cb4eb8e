"""Checks of what is quantized: against the config, and against what engines load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from firesteel.facts.model.contents import StoredModule, WrittenAs
from firesteel.facts.model.quantization import NVFP4, ModulePatterns, UnknownQuantization, read_quantization
from firesteel.facts.model.tensors import Role
from firesteel.rules.checkpoint.audited import AuditedCheckpoint, is_linear
from firesteel.rules.checkpoint.checks import CheckpointFinding, finding
from firesteel.units import show_bytes

_PLAIN_ROLES = {
    Role.ROUTER: ("router-quantized", "the router is quantized"),
    Role.EMBEDDINGS: ("embeddings-quantized", "the embedding table is quantized"),
    Role.NORMS: ("norms-quantized", "norms are quantized"),
}
_METHODS: Mapping[WrittenAs, tuple[str, ...]] = {
    "compressed-tensors": ("compressed-tensors",),
    "modelopt": ("modelopt",),
    "mxfp4-blocks": ("mxfp4", "modelopt", "compressed-tensors", "fp8"),
    "gptq-awq": ("gptq", "awq", "modelopt"),
    "block-fp8": ("fp8", "modelopt"),
    "fp8": ("fp8", "modelopt", "compressed-tensors", "bitsandbytes"),
}
"""The `quant_method`s under which an engine reads a layout."""


def check_quantization(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """Compare what the configs say about the quantization with what is stored."""
    yield from _roles(checkpoint)
    yield from _drafter(checkpoint)
    if checkpoint.declared_error:
        yield finding("quantization-unknown", "the quantization is not known", checkpoint.declared_error)
        return
    yield from _two_configs(checkpoint)
    if checkpoint.declared is None:
        if checkpoint.quantized:
            module = checkpoint.quantized[0]
            evidence = (
                f"`{module.name}` is stored as {module.format}, and config.json has no quantization_config"
            )
            yield finding(
                "quantization-config-missing",
                "the config does not say that the weights are quantized",
                evidence,
                module.name,
                len(checkpoint.quantized),
            )
        return
    if not checkpoint.quantized:
        if checkpoint.declared.method != "bitsandbytes" and checkpoint.contents.has_all_files:
            evidence = (
                f"quant_method {checkpoint.declared.method}, and every weight is stored in 16 or 32 bits"
            )
            yield finding(
                "nothing-is-quantized", "the config claims a quantization, the weights have none", evidence
            )
        return
    yield from _layout(checkpoint)
    yield from _by_module(checkpoint)
    yield from _group_size(checkpoint)
    yield from _experts(checkpoint)
    yield from _ignore_list(checkpoint)
    yield from _targets(checkpoint)
    yield from _activations(checkpoint)
    yield from _kv_cache(checkpoint)


def _roles(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """What engines keep in 16 bits whatever the config says."""
    found: dict[Role, list[StoredModule]] = {}
    for module in checkpoint.quantized:
        found.setdefault(module.role, []).append(module)
    for role, (check, says) in _PLAIN_ROLES.items():
        if modules := found.get(role):
            yield finding(check, says, _stored(modules[0]), modules[0].name, len(modules))
    if modules := found.get(Role.HEAD):
        yield finding("head-quantized", "the head is quantized", _stored(modules[0]), modules[0].name)


def _drafter(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    modules = [module for module in checkpoint.representatives if module.role is Role.DRAFTER]
    if checkpoint.drafter_layers and not modules and checkpoint.contents.has_all_files:
        evidence = f"the config has {checkpoint.drafter_layers} MTP layers, and no tensor belongs to one"
        yield finding("mtp-missing", "the MTP layers are absent", evidence, None, checkpoint.drafter_layers)
    packed = [module for module in modules if module.format in ("nvfp4", "mxfp4", "int")]
    if packed:
        yield finding(
            "mtp-quantized",
            "the MTP layers are stored in 4 bits",
            _stored(packed[0]),
            packed[0].name,
            len(packed),
        )
    declared = checkpoint.declared
    plain = [
        module
        for module in modules
        if module.is_matrix
        and not module.is_quantized
        and module.name.rpartition(".")[2].endswith("_proj")
        and module.name.rpartition(".")[2] not in ("eh_proj", "e_proj", "h_proj", "input_proj")
        and checkpoint.declared_format(module) is not None
    ]
    if plain and not packed and declared is not None and declared.bits == 4:
        yield finding(
            "mtp-not-ignored",
            "the MTP layers are in 16 bits, and the ignore list does not name them",
            _stored(plain[0]),
            plain[0].name,
            len(plain),
        )


def _two_configs(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    modelopt = checkpoint.contents.modelopt_config
    if modelopt is None or not checkpoint.config.get("quantization_config"):
        return
    try:
        own, other = read_quantization(checkpoint.config), read_quantization(modelopt)
    except UnknownQuantization:
        return
    if own and other and (own.method, own.format) != (other.method, other.format):
        names = [f"{each.method} {each.format.name if each.format else 'mixed'}" for each in (own, other)]
        evidence = f"config.json has {names[0]}, hf_quant_config.json has {names[1]}"
        yield finding("configs-differ", "two files describe the quantization differently", evidence)


def _layout(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    assert checkpoint.declared is not None
    layouts = Counter(module.layout for module in checkpoint.quantized)
    layout = layouts.most_common(1)[0][0]
    if checkpoint.declared.method not in _METHODS.get(layout, (checkpoint.declared.method,)):
        module = next(module for module in checkpoint.quantized if module.layout == layout)
        parts = ", ".join(sorted(module.parts))
        evidence = f"quant_method {checkpoint.declared.method}, and `{module.name}` has {parts}"
        yield finding(
            "layout-contradicts-config",
            f"the tensors are laid out as {layout}, the config says {checkpoint.declared.method}",
            evidence,
            module.name,
            layouts[layout],
        )


def _by_module(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """Each linear layer as the config has it."""
    unnamed, ignored, other = list[StoredModule](), list[StoredModule](), list[StoredModule]()
    for module in checkpoint.representatives:
        if not is_linear(module) or module.weight is None:
            continue
        wanted = checkpoint.declared_format(module)
        if wanted is None:
            if module.is_quantized:
                ignored.append(module)
        elif not module.is_quantized:
            if module.role is not Role.ROUTED_EXPERTS:  # experts have a check of their own
                unnamed.append(module)
        elif not _same_format(wanted.name, module):
            other.append(module)
    if unnamed:
        what = f"`{unnamed[0].name}` is in 16 bits, and the ignore list does not name it"
        yield finding("unquantized-not-ignored", what, _stored(unnamed[0]), unnamed[0].name, len(unnamed))
    if ignored:
        what = f"`{ignored[0].name}` is quantized, and the config says that it is not"
        yield finding("ignored-but-quantized", what, _stored(ignored[0]), ignored[0].name, len(ignored))
    if other:
        wanted = checkpoint.declared_format(other[0])
        what = f"`{other[0].name}` is not stored as the config says"
        evidence = f"{_stored(other[0])}; the config says {wanted.name if wanted else ''}"
        yield finding("format-contradicts-config", what, evidence, other[0].name, len(other))


def _group_size(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """How many weights share a scale, as the config has it and as the tensors have it."""
    declared = _declared_groups(checkpoint.section)
    block = checkpoint.section.get("weight_block_size")
    wrong = []
    for module in checkpoint.quantized:
        weight, scale = module.weight, module.parts.get("weight_scale") or module.parts.get("scales")
        inverse = module.parts.get("weight_scale_inv")
        if weight is None or len(weight.shape) < 2:
            continue
        if inverse is not None and isinstance(block, list) and len(block) == len(inverse.shape) == 2:
            sizes = [
                -(-size // step) for size, step in zip(weight.shape, block, strict=True) if type(step) is int
            ]
            if sizes and tuple(sizes) != inverse.shape:
                wrong.append(
                    (module, f"weight_block_size {block} makes {sizes} scales of {list(inverse.shape)}")
                )
        elif scale is not None and len(declared) == 1 and "weight_packed" in module.parts:
            (group,) = declared
            columns = weight.shape[-1] * (8 if weight.dtype == "I32" else 2)
            if scale.shape and scale.shape[-1] > 1 and scale.shape[-1] * group != columns:
                stored = columns // scale.shape[-1]
                wrong.append((module, f"group_size is {group}, and {stored} weights share a scale"))
    if wrong:
        module, evidence = wrong[0]
        what = "the config has another group size than the tensors"
        yield finding("group-size-contradicts-config", what, evidence, module.name, len(wrong))


def _declared_groups(section: Mapping[str, object]) -> set[int]:
    """Of compressed-tensors: the group sizes of the weights, where all groups have 4 bits."""
    groups = section.get("config_groups")
    sizes: set[int] = set()
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping) or weights.get("num_bits") != 4:
            return set()
        if type(size := weights.get("group_size")) is int:
            sizes.add(size)
    return sizes


def _same_format(wanted: str, module: StoredModule) -> bool:
    stored = module.format
    return wanted == stored or (wanted.startswith("int") and stored == "int") or stored == "other"


def _experts(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    plain: list[StoredModule] = []
    wanted_bits = 16
    mixed: list[tuple[str, Counter[str]]] = []
    for name, (module, formats) in checkpoint.kinds.items():
        if module.role is not Role.ROUTED_EXPERTS or module.weight is None or not is_linear(module):
            continue
        if len(formats) > 1:
            mixed.append((name, formats))
        elif "plain" in formats:
            plain.append(module)
            if form := checkpoint.declared_format(module):
                wanted_bits = min(wanted_bits, form.bits)
    if mixed:
        name, formats = mixed[0]
        evidence = ", ".join(f"{count} as {form}" for form, count in formats.most_common())
        yield finding(
            "experts-mixed",
            f"the experts of `{name}` are stored in several formats",
            evidence,
            name,
            len(mixed),
        )
    if not plain:
        return
    size = sum(
        tensor.bytes
        for module in checkpoint.modules.values()
        if module.role is Role.ROUTED_EXPERTS and not module.is_quantized
        for tensor in module.parts.values()
    )
    total = sum(checkpoint.bytes_by_role.values())
    share = f"{show_bytes(size)} of {show_bytes(total)} are experts in 16 bits"
    if wanted_bits < 16:
        small = show_bytes(total - size + size * wanted_bits // 16)
        yield finding(
            "experts-not-quantized",
            "the experts were skipped by the quantizer",
            f"{share}; with them in {wanted_bits} bits it would be about {small}",
            plain[0].name,
            len(plain),
        )
    elif size > total / 2:
        yield finding(
            "experts-left-in-16-bits",
            "most of the checkpoint is experts that are not quantized",
            share,
            plain[0].name,
            len(plain),
        )


def _ignore_list(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """Entries that name nothing."""
    entries = [
        entry
        for key in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
        for entry in _texts(checkpoint.section.get(key))
    ]
    if not entries or not checkpoint.contents.has_all_files:
        return
    paths: set[str] = set()
    leaves: set[str] = set()
    for module in checkpoint.representatives:
        parts = module.name.split(".")
        leaves.update(parts)
        paths.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    misses = [entry for entry in entries if not _names_something(entry, paths, leaves, checkpoint)]
    if misses:
        evidence = f"`{misses[0][:100]}` matches no module"
        what = f"{len(misses)} of {len(entries)} entries of the ignore list name nothing"
        yield finding("ignore-entry-misses", what, evidence, None, len(misses))


def _names_something(entry: str, paths: set[str], leaves: set[str], checkpoint: AuditedCheckpoint) -> bool:
    stem = entry.removesuffix("*").removesuffix(".")
    if checkpoint.parameters is not None and checkpoint.parameters.tied_head and stem.endswith("head"):
        return True  # quantizers list it for every model
    if not set("*?[") & set(stem) and not entry.startswith("re:"):
        last = stem.rpartition(".")[2]
        return (
            stem in paths or ("." not in stem and stem in leaves) or (last in leaves and not last.isdecimal())
        )
    try:
        patterns = ModulePatterns.parse([entry])
    except UnknownQuantization:
        return True
    return any(patterns.match(module.name) for module in checkpoint.representatives)


def _targets(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """vLLM finds experts called w1 and w3 only by a target of their own."""
    declared = checkpoint.declared
    if declared is None or declared.method != "compressed-tensors":
        return
    experts = [
        module
        for module in checkpoint.quantized
        if module.role is Role.ROUTED_EXPERTS and module.name.rpartition(".")[2] in ("w1", "w2", "w3")
    ]
    groups = checkpoint.section.get("config_groups")
    targets = [
        target
        for group in (groups.values() if isinstance(groups, Mapping) else ())
        for target in (_texts(group.get("targets")) if isinstance(group, Mapping) else ())
    ]
    if experts and targets == ["Linear"]:
        evidence = f"targets {targets}, and experts are called `{experts[0].name}`"
        yield finding("moe-target-missing", "no target names the experts", evidence, experts[0].name)


def _activations(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """W4A4 needs a scale for the activations of every matrix."""
    missing = [
        module
        for module in checkpoint.quantized
        if module.format == "nvfp4"
        and is_linear(module)
        and checkpoint.declared_format(module) is NVFP4
        and not {"input_scale", "input_global_scale"} & module.parts.keys()
    ]
    if missing:
        parts = ", ".join(sorted(missing[0].parts))
        evidence = f"the config quantizes activations, and `{missing[0].name}` has {parts}"
        yield finding(
            "input-scales-missing",
            "scales for the activations are absent",
            evidence,
            missing[0].name,
            len(missing),
        )


def _kv_cache(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    dtype = checkpoint.declared.kv_cache_dtype if checkpoint.declared else None
    if dtype is None or "8" not in dtype:
        return
    if not any({"k_scale", "v_scale"} & module.parts.keys() for module in checkpoint.representatives):
        evidence = f"the config names a KV cache of {dtype}, and no tensor is a k_scale or v_scale"
        yield finding("kv-scales-absent", "there are no scales for the KV cache", evidence)


def _stored(module: StoredModule) -> str:
    weight = module.weight
    if weight is None:
        return f"`{module.name}` has {', '.join(sorted(module.parts))}"
    return f"`{weight.name}` is {weight.dtype} [{', '.join(map(str, weight.shape))}]"


def _texts(value: object) -> list[str]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [entry for entry in value if isinstance(entry, str)]
