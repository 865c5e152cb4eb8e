"""Tensors from another checkpoint of the same model: those that are absent here, or damaged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from firesteel.errors import FiresteelError
from firesteel.facts.model.contents import TOKENIZER_FILES, CheckpointContents, StoredModule, split_name
from firesteel.facts.model.tensors import Role, role_of
from firesteel.rules.checkpoint.checks import CheckpointFinding
from firesteel.rules.checkpoint.subject import AuditSubject
from firesteel.values import replace
from firesteel.workshop.repair.draft import Draft, DraftTensor, in_file_order

_SMALL_FILES = (*TOKENIZER_FILES, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_PLAIN = {
    "router-quantized": Role.ROUTER, "embeddings-quantized": Role.EMBEDDINGS, "norms-quantized": Role.NORMS,
    "mtp-quantized": Role.DRAFTER,
}  # fmt: skip
_BROKEN_SCALES = ("scale-missing", "scale-shape", "scale-dtype", "scale-not-positive", "weights-not-finite")


def graft(
    draft: Draft,
    contents: CheckpointContents,
    findings: Iterable[CheckpointFinding],
    other: Draft,
    other_contents: CheckpointContents,
) -> Draft:
    checks = {found.check for found in findings}
    named = {
        split_name(found.tensor)[0] for found in findings if found.check in _BROKEN_SCALES and found.tensor
    }
    theirs = {tensor.name: tensor for tensor in other.tensors()}
    their_modules, modules = other.modules(), draft.modules()
    wanted = _replaced(AuditSubject(contents), checks, named, their_modules)
    wanted |= {
        name for name in their_modules if name not in modules and _belongs(name, other_contents, checks)
    }
    if not wanted and "tokenizer-missing" not in checks and "tokenizer-damaged" not in checks:
        raise FiresteelError(
            f"{other.folder} has nothing that {draft.folder} lacks", next=f"firesteel audit {draft.folder}"
        )
    added = [theirs[part.name] for name in sorted(wanted) for part in their_modules[name].parts.values()]
    copied = {
        name: other.folder / name
        for name in _SMALL_FILES
        if (other.folder / name).is_file() and not (draft.folder / name).exists()
    }
    if checks & {"tokenizer-damaged", "tokenizer-missing"}:
        copied |= {name: other.folder / name for name in _SMALL_FILES if (other.folder / name).is_file()}
    return _with(draft, wanted, added, copied)


def _replaced(
    subject: AuditSubject, checks: set[str], named: set[str], theirs: dict[str, StoredModule]
) -> set[str]:
    """Modules that are here and damaged, where the other checkpoint has them sound."""
    roles = {role for check, role in _PLAIN.items() if check in checks}
    plain = {
        module.name
        for module in subject.modules.values()
        if module.role in roles and module.is_quantized and module.name in theirs
        and not theirs[module.name].is_quantized
    }  # fmt: skip
    broken = {
        name
        for name in named
        if name in theirs and name in subject.modules and theirs[name].format == subject.modules[name].format
    }
    return plain | broken


def _belongs(name: str, other: CheckpointContents, checks: set[str]) -> bool:
    """What is absent here: MTP layers only where they are missed."""
    if role_of(name, AuditSubject(other).whole_number("num_hidden_layers")) is Role.DRAFTER:
        return bool(checks & {"mtp-missing", "mtp-quantized"})
    return bool(
        checks & {"layers-missing", "experts-missing", "tensor-missing", "head-missing", "scale-missing"}
    )


def _with(draft: Draft, modules: set[str], added: list[DraftTensor], copied: dict[str, Path]) -> Draft:
    """New parts of a module replace the old ones in their file; those of a new module go into the last."""
    names = {tensor.name for tensor in added}
    home: dict[str, str] = {}
    files = []
    for file in draft.files:
        kept = [
            tensor
            for tensor in file.tensors
            if split_name(tensor.name)[0] not in modules and tensor.name not in names
        ]
        for tensor in file.tensors:
            module = split_name(tensor.name)[0]
            if module in modules:
                home.setdefault(module, file.name)
        is_same = len(kept) == len(file.tensors)
        files.append(file if is_same else replace(file, tensors=tuple(kept), origin=None))
    last = files[-1].name
    placed = []
    for file in files:
        own = [tensor for tensor in added if home.get(split_name(tensor.name)[0], last) == file.name]
        is_changed = bool(own) or file.origin is None
        placed.append(
            replace(file, tensors=in_file_order((*file.tensors, *own)), origin=None) if is_changed else file
        )
    did = f"{len(added):,} tensors of {len(modules):,} modules" if added else ""
    small = ", ".join(sorted(copied))
    what = " and ".join(text for text in (did, small) if text)
    return replace(
        draft, files=tuple(placed), copied={**draft.copied, **copied},
        done=(*draft.done, f"{what} taken from the other checkpoint"),
    )  # fmt: skip
