"""From findings to a repaired checkpoint: which changes, drafted, written, and audited again.

Two changes need no finding: `convert` between the layouts of compressed-tensors and ModelOpt (other names,
and the inverse of the global scale; weights stay), and `split` into files none larger than a size, tensors
whole and in order.
"""

from __future__ import annotations

import os
import shlex
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from firesteel.edge.contents import local_folder, read_contents, read_folder
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.model.contents import CheckpointContents, split_name
from firesteel.rules.checkpoint.checks import CheckpointFinding, Mend
from firesteel.rules.checkpoint.judge import judge
from firesteel.units import show_bytes
from firesteel.values import Value, replace
from firesteel.workshop.repair.config import (
    compressed_section,
    fix_config,
    modelopt_file,
    modelopt_section,
    not_quantized,
)
from firesteel.workshop.repair.draft import (
    Draft,
    DraftFile,
    DraftTensor,
    Progress,
    contents_of,
    draft_of,
    in_file_order,
    read_tensor,
    restore,
    write_folder,
    write_in_place,
)
from firesteel.workshop.repair.scales import ReconciledGroup, graft, reconcile

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
    """Lay an NVFP4 checkpoint out as another tool writes it: names, scalar scales and config change; the
    weights stay."""
    modules = draft.modules()
    quantized = [module for module in modules.values() if module.is_quantized and module.weight is not None]
    if not quantized:
        raise FiresteelError(
            f"{draft.folder} is not quantized",
            next=f"firesteel quantize {shlex.quote(str(draft.folder))} --to nvfp4",
        )
    if other := next((module for module in quantized if module.format != "nvfp4"), None):
        raise FiresteelError(
            f"`{other.name}` is {other.format}: only checkpoints that are all NVFP4 can be converted",
            next=f"firesteel quantize MODEL --to nvfp4, which writes {to}"
            if to != "modelopt"
            else "use it as it is",
        )
    if all(module.layout == to for module in quantized):
        raise FiresteelError(
            f"{draft.folder} is {to} already", next=f"firesteel audit {shlex.quote(str(draft.folder))}"
        )
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
        modelopt = modelopt_file(quantized, ignore)
    else:
        config["quantization_config"] = compressed_section(quantized, ignore)
        modelopt = None
    return replace(
        made,
        config=config,
        modelopt_config=modelopt,
        done=(*draft.done, f"{len(nvfp4):,} modules are laid out as {to}"),
    )


def split(draft: Draft, shard_bytes: int) -> Draft:
    shards: list[list[DraftTensor]] = [[]]
    size = 0
    for tensor in draft.tensors():
        if shards[-1] and size + tensor.size > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size
    count = len(shards)
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    if count == 1:
        names = ["model.safetensors"]
    files = tuple(DraftFile(name, in_file_order(held)) for name, held in zip(names, shards, strict=True))
    largest = max(sum(tensor.size for tensor in held) for held in shards)
    did = f"{len(draft.files)} files became {count}, of at most {show_bytes(largest)}"
    return replace(draft, files=files, has_index=count > 1, done=(*draft.done, did))


_OWN: tuple[Mend, ...] = ("scales", "invert", "index", "config")
"""What needs no other checkpoint."""


# --- the repair ---


class RepairOptions(Value):
    mends: frozenset[Mend] = frozenset()
    """What to repair; empty: everything that needs no other checkpoint."""
    graft: str | None = None
    to: WrittenLayout | None = None
    shard_bytes: int | None = None
    out: Path | None = None
    in_place: bool = False

    @property
    def writes(self) -> bool:
        return self.in_place or self.out is not None


class RepairReport(Value, tag_field="document", tag="firesteel.repair/1"):
    """`firesteel audit MODEL --fix --json`"""

    model: str
    done: tuple[str, ...]
    """What was changed, or would be."""
    groups: tuple[ReconciledGroup, ...]
    mended: tuple[str, ...]
    """Checks that found something before and nothing after; empty where nothing was written."""
    left: tuple[CheckpointFinding, ...]
    """What was not repaired, or is not repaired yet."""
    written: str | None
    """The folder; None: nothing was written."""


def repair(
    model: str,
    options: RepairOptions,
    *,
    on_progress: Progress = lambda done, total: None,
    environ: Mapping[str, str] = os.environ,
) -> RepairReport:
    """Repair a checkpoint in place or as a copy, and audit the result before it takes its place; without
    `options.writes` only say what would be done."""
    contents = read_contents(model, environ)
    folder = _folder(contents, environ)
    _require_whole(contents)
    findings = judge(contents)
    draft, groups = _drafted(draft_of(contents, folder), contents, findings, options, environ)
    before = tuple(found for found in findings if found.level != "note")
    if not draft.done:
        return RepairReport(model, (), groups, (), before, None)
    if not options.writes:
        return RepairReport(model, draft.done, groups, (), before, None)
    after: list[CheckpointFinding] = []

    def check(made: Path) -> None:
        after[:] = [found for found in judge(read_folder(made, environ)) if found.level != "note"]
        _require_better(before, after, made)

    target = options.out.expanduser().absolute() if options.out else folder
    if options.out:
        write_folder(draft, target, check, on_progress)
    else:
        write_in_place(draft, check, on_progress)
    left = {found.check for found in after}
    mended = tuple(dict.fromkeys(found.check for found in before if found.check not in left))
    return RepairReport(model, draft.done, groups, mended, tuple(after), str(target))


def undo_repair(model: str) -> tuple[str, ...]:
    """The files that are again as they were."""
    folder = Path(model).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", next="firesteel audit FOLDER --undo")
    return restore(folder)


def _folder(contents: CheckpointContents, environ: Mapping[str, str]) -> Path:
    if contents.format == "gguf":
        raise UsageError(
            "repair works on safetensors; a GGUF is converted again",
            next=f"firesteel audit {contents.origin}",
        )
    folder = local_folder(contents, environ)
    if folder is None:
        raise UsageError(f"{contents.origin} is not on this disk", next=f"firesteel pull {contents.origin}")
    return folder


def _require_whole(contents: CheckpointContents) -> None:
    """Bytes that are absent cannot be repaired, and what is built on them would look sound."""
    for file in contents.files:
        if file.defect and file.is_listed:
            raise FiresteelError(
                f"{file.why}; repair cannot restore missing bytes",
                next="download that file again, then firesteel audit",
            )


def _drafted(
    draft: Draft,
    contents: CheckpointContents,
    findings: tuple[CheckpointFinding, ...],
    options: RepairOptions,
    environ: Mapping[str, str],
) -> tuple[Draft, tuple[ReconciledGroup, ...]]:
    """The changes, in an order in which none undoes another."""
    has_task = bool(options.graft or options.to or options.shard_bytes)
    mends = options.mends or (frozenset[Mend]() if has_task else frozenset(_OWN))
    found: set[Mend] = {each.mend for each in findings if each.mend}
    groups: tuple[ReconciledGroup, ...] = ()
    if options.graft:
        other = read_contents(options.graft, environ)
        draft = graft(draft, contents, findings, draft_of(other, _folder(other, environ)), other)
        draft = fix_config(draft, contents_of(draft, contents), ())  # what came in 16 bits must be ignored
    if mends & {"scales", "invert"} and found & {"scales", "invert"}:
        draft, groups = reconcile(draft, contents, read_tensor)
    if "config" in mends and "config" in found:
        draft = fix_config(draft, contents, findings)
    if "index" in mends and "index" in found:
        _require_once(draft)
        done = (*draft.done, "the index lists what the files hold")
        draft = replace(draft, has_index=len(draft.files) > 1, done=done)
    if options.to:
        draft = convert(draft, contents, options.to, read_tensor)
    if options.shard_bytes:
        draft = split(draft, options.shard_bytes)
    return draft, groups


def _require_once(draft: Draft) -> None:
    seen: dict[str, str] = {}
    for file in draft.files:
        for tensor in file.tensors:
            if tensor.name in seen:
                raise FiresteelError(
                    f"`{tensor.name}` is in {seen[tensor.name]} and in {file.name}; one is wrong",
                    next="download the checkpoint again",
                )
            seen[tensor.name] = file.name


def _require_better(
    before: tuple[CheckpointFinding, ...], after: list[CheckpointFinding], made: Path
) -> None:
    """Nothing new is wrong, and nothing is wrong more often than before."""
    known = {found.check: found.count for found in before}
    worse = [found for found in after if found.count > known.get(found.check, 0)]
    if worse:
        raise FiresteelError(
            f"the repair is not written: afterwards {worse[0].says} ({worse[0].check})",
            next="firesteel audit MODEL, then repair one thing at a time",
        )
