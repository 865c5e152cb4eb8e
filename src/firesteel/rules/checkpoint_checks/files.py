"""Checks of files: are they whole, and do they hold what the index promises?"""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.facts.model.contents import WeightFile
from firesteel.rules.checkpoint_checks.checks import CheckpointFinding, finding
from firesteel.rules.checkpoint_checks.subject import AuditSubject

_DEFECTS = {
    "missing": "shard-missing",
    "pointer": "shard-is-a-pointer",
    "damaged": "shard-damaged",
    "truncated": "shard-truncated",
    "too long": "shard-too-long",
    "wrong size": "size-differs-from-hub",
    "wrong digest": "digest-differs",
}


def check_files(subject: AuditSubject) -> Iterator[CheckpointFinding]:
    contents = subject.contents
    for file in contents.files:
        if file.defect:
            yield finding(_DEFECTS[file.defect], file.why, file.why, file.name)
    if contents.format == "gguf":
        return
    if contents.index_defect:
        yield finding("index-damaged", "the index of the files cannot be read", contents.index_defect)
    weights = [file for file in contents.files if file.is_listed]
    if contents.index is None and not contents.index_defect and len(weights) > 1:
        evidence = f"{len(weights)} files and no model.safetensors.index.json"
        yield finding("index-missing", "there are several files and no index of them", evidence)
    for file in contents.files:
        if not file.is_listed and not file.name.startswith("consolidated"):
            evidence = f"{file.bytes:,} bytes, {len(file.tensors):,} tensors"
            yield finding("file-not-in-index", f"{file.name} is in no index", evidence, file.name)
    yield from _placed(subject)


def _placed(subject: AuditSubject) -> Iterator[CheckpointFinding]:
    """Each tensor where the index has it, and once."""
    contents = subject.contents
    holder: dict[str, str] = {}
    twice: list[tuple[str, str]] = []
    for file in contents.files:
        for tensor in file.tensors if file.is_listed else ():
            if tensor.name in holder:
                twice.append((tensor.name, file.name))
            holder.setdefault(tensor.name, file.name)
    if twice:
        name, second = twice[0]
        evidence = f"in {holder[name]} and in {second}"
        yield finding("tensor-twice", f"`{name}` is stored twice", evidence, name, len(twice))
    index = contents.index
    if index is None:
        return
    unreadable = {file.name for file in contents.files if _is_unreadable(file)}
    absent = [name for name, file in index.items() if name not in holder and file not in unreadable]
    if absent:
        evidence = f"the index expects it in {index[absent[0]]}"
        what = f"the index promises `{absent[0]}`, which no file holds"
        yield finding("index-promises-absent-tensor", what, evidence, absent[0], len(absent))
    moved = [
        name for name, file in index.items() if holder.get(name, file) != file and name not in dict(twice)
    ]
    if moved:
        name = moved[0]
        evidence = f"the index expects it in {index[name]}, it is in {holder[name]}"
        yield finding(
            "index-names-wrong-file",
            f"`{name}` is in another file than the index has",
            evidence,
            name,
            len(moved),
        )
    unlisted = [name for name in holder if name not in index]
    if unlisted:
        evidence = f"it is in {holder[unlisted[0]]}"
        yield finding(
            "tensor-not-in-index", f"`{unlisted[0]}` is in no index", evidence, unlisted[0], len(unlisted)
        )
    total = contents.index_bytes
    if total is not None and contents.has_all_files and not (absent or unlisted or twice):
        stored = sum(tensor.bytes for tensor in subject.tensors())
        if total != stored:
            evidence = f"total_size {total:,}, and the files hold {stored:,}"
            yield finding("index-total-differs", "the index has a wrong total", evidence)


def _is_unreadable(file: WeightFile) -> bool:
    return file.defect in ("missing", "pointer", "damaged")
