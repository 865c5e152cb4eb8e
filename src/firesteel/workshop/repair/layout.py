"""compressed-tensors <-> ModelOpt: other names, and the inverse of the global scale. Weights stay."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Literal

from firesteel.errors import FiresteelError
from firesteel.facts.model.contents import CheckpointContents, split_name
from firesteel.values import replace
from firesteel.workshop.repair.config import (
    compressed_section,
    modelopt_file,
    modelopt_section,
    not_quantized,
)
from firesteel.workshop.repair.draft import Draft, DraftTensor, in_file_order

WrittenLayout = Literal["compressed-tensors", "modelopt"]
_RENAMED = {
    "modelopt": {
        "weight_packed": "weight", "weight_global_scale": "weight_scale_2",
        "input_global_scale": "input_scale",
    },
    "compressed-tensors": {
        "weight": "weight_packed", "weight_scale_2": "weight_global_scale",
        "input_scale": "input_global_scale",
    },
}  # fmt: skip
_INVERTED = frozenset({"weight_global_scale", "input_global_scale", "weight_scale_2", "input_scale"})


def convert(
    draft: Draft, contents: CheckpointContents, to: WrittenLayout, read: Callable[[DraftTensor], bytes]
) -> Draft:
    modules = draft.modules()
    quantized = [module for module in modules.values() if module.is_quantized and module.weight is not None]
    if not quantized:
        raise FiresteelError(
            f"{draft.folder} is not quantized", next=f"firesteel quantize {draft.folder} --to nvfp4"
        )
    if other := next((module for module in quantized if module.format != "nvfp4"), None):
        raise FiresteelError(
            f"`{other.name}` is {other.format}: only checkpoints that are all NVFP4 can be converted",
            next=f"firesteel quantize MODEL --to nvfp4, which writes {to}"
            if to != "modelopt"
            else "use it as it is",
        )
    if all(module.layout == to for module in quantized):
        raise FiresteelError(f"{draft.folder} is {to} already", next=f"firesteel audit {draft.folder}")
    nvfp4 = {module.name for module in quantized}

    def converted(tensor: DraftTensor) -> DraftTensor:
        module, part = split_name(tensor.name)
        if module not in nvfp4 or part not in _RENAMED[to]:
            return tensor
        renamed = replace(tensor, name=f"{module}.{_RENAMED[to][part]}")
        if part not in _INVERTED:
            return renamed
        (value,) = struct.unpack("<f", read(tensor))
        # ModelOpt's scalars have no dimension, those of compressed-tensors have one.
        shape = () if to == "modelopt" else (1,)
        return replace(renamed, shape=shape, content=struct.pack("<f", 1 / value))

    files = tuple(
        replace(file, tensors=in_file_order(map(converted, file.tensors)), origin=None)
        for file in draft.files
    )
    made = replace(draft, files=files)
    quantized = [module for module in made.modules().values() if module.name in nvfp4]
    ignore = sorted(not_quantized(made.modules().values()))
    config = {key: value for key, value in (contents.config or {}).items() if key != "compression_config"}
    if to == "modelopt":
        config["quantization_config"] = modelopt_section(quantized, ignore)
        beside = modelopt_file(quantized, ignore)
    else:
        config["quantization_config"] = compressed_section(quantized, ignore)
        beside = None
    return replace(
        made,
        config=config,
        modelopt_config=beside,
        done=(*draft.done, f"{len(nvfp4):,} modules are laid out as {to}"),
    )
