"""From findings to a repaired checkpoint: which changes, drafted, written, and audited again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from firesteel.edge.contents import local_folder, read_contents, read_folder
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.model.contents import CheckpointContents
from firesteel.rules.checkpoint.checks import CheckpointFinding, Mend
from firesteel.rules.checkpoint.judge import judge
from firesteel.values import Value, replace
from firesteel.workshop.repair.config import fix_config
from firesteel.workshop.repair.draft import Draft, contents_of, draft_of
from firesteel.workshop.repair.graft import graft
from firesteel.workshop.repair.layout import WrittenLayout, convert
from firesteel.workshop.repair.scales import ReconciledGroup, reconcile
from firesteel.workshop.repair.shards import split
from firesteel.workshop.repair.write import Progress, read_tensor, restore, write_beside, write_in_place

_OWN: tuple[Mend, ...] = ("scales", "invert", "index", "config")
"""What needs no other checkpoint."""


class RepairOptions(Value):
    mends: frozenset[Mend] = frozenset()
    """What is mended; empty: everything that needs no other checkpoint."""
    graft: str | None = None
    to: WrittenLayout | None = None
    shard_bytes: int | None = None
    out: Path | None = None
    in_place: bool = False

    @property
    def writes(self) -> bool:
        return self.in_place or self.out is not None


class RepairReport(Value):
    model: str
    done: tuple[str, ...]
    """What was changed, or would be."""
    groups: tuple[ReconciledGroup, ...]
    mended: tuple[str, ...]
    """Checks that found something before and nothing after; empty where nothing was written."""
    left: tuple[CheckpointFinding, ...]
    """What was not mended, or is not mended yet."""
    written: str | None
    """The folder."""


def repair(
    model: str,
    options: RepairOptions,
    *,
    on_progress: Progress = lambda done, total: None,
    environ: Mapping[str, str] = os.environ,
) -> RepairReport:
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
        write_beside(draft, target, check, on_progress)
    else:
        write_in_place(draft, check, on_progress)
    left = {found.check for found in after}
    mended = tuple(dict.fromkeys(found.check for found in before if found.check not in left))
    return RepairReport(model, draft.done, groups, mended, tuple(after), str(target))


def undo_repair(model: str) -> tuple[str, ...]:
    """The files that are again as they were."""
    folder = Path(model).expanduser().absolute()
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", next="firesteel repair FOLDER --undo")
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
                f"{file.why}; repair cannot bring back what is not there",
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
            next="firesteel audit MODEL, and mend one thing at a time",
        )
