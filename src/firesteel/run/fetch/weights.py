"""Which files of which repositories a launch needs: no more is fetched. Pure.

vLLM and SGLang read safetensors and what stands beside them; PyTorch's own files, another engine's formats
and the makers' originals hold the same weights once more. llama.cpp reads one GGUF of the many that a
repository holds, told by its label (`ORG/NAME:Q4_K_M`), with all its parts, and a projector for images where
there is one; the choice is the one that llama.cpp makes itself (`common/download.cpp`,
https://github.com/ggml-org/llama.cpp, seen 2026-11-15), else it would fetch another, or find none offline.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from firesteel.catalog import Asset
from firesteel.edge.hub.cache import HubFile
from firesteel.edge.model_reference import is_hub_id
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import EngineName, FlagValue
from firesteel.rules import Proposal

MAIN = "main"
_SAME_WEIGHTS = (
    ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite", ".mlmodel",
    ".gguf", ".nemo", ".llamafile",
)  # fmt: skip
_SAME_FOLDERS = ("original", "metal", "onnx", "openvino", "coreml", "gguf")
_FOR_PEOPLE = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".mp4", ".pdf", ".gitattributes")
_LEFT_OVER = ("training_args.bin", "optimizer.bin", "scheduler.bin")
_NOT_A_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf\Z", re.IGNORECASE)
_TAG = re.compile(r"[-.]([A-Z0-9_]+)\Z", re.IGNORECASE)
_FIRST_LABELS = ("Q4_K_M", "Q8_0")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class WeightsNeed:
    """Something of a repository that must be in the store."""

    repository: str
    engine: EngineName | None = None
    """Who will read it; None: nobody in particular."""
    revision: str = MAIN
    label: str | None = None
    """Of one GGUF among several."""
    patterns: tuple[str, ...] = ()
    """Exactly these files, `*` as in a shell."""
    load_format: str = "auto"
    what: str = "weights"

    @property
    def name(self) -> str:
        return f"{self.repository}:{self.label}" if self.label else self.repository


def weights_needed(proposal: Proposal) -> tuple[WeightsNeed, ...]:
    """Model, drafts and plugin files of a launch in a container; a checkpoint on this disk needs nothing."""
    launch = proposal.plan.launch
    if launch.container is None:
        return ()
    assets = proposal.recipe.assets if proposal.recipe else ()
    found = [want for asset in assets if (want := _asset(asset, launch.engine))]
    own = _own(proposal)
    if own is None:
        return tuple(found)
    others = dict.fromkeys(want for want in found if want.repository != own.repository or want.patterns)
    return (own, *others)


def _own(proposal: Proposal) -> WeightsNeed | None:
    launch, model = proposal.plan.launch, proposal.model
    repository, _, label = (model.id if model else launch.model).partition(":")
    if not is_hub_id(repository):
        return None
    files = tuple(file.path for file in model.files if file.package is None) if model else ()
    one = launch.flags.get("hf-file")
    return WeightsNeed(
        repository,
        launch.engine,
        _text(launch.flags.get("revision")) or (model.revision if model else None) or MAIN,
        label or None,
        (one,) if isinstance(one, str) else files,
        _text(launch.flags.get("load-format")) or "auto",
    )


def _text(value: FlagValue | None) -> str | None:
    return value if isinstance(value, str) else None


def _asset(asset: Asset, engine: EngineName) -> WeightsNeed | None:
    if asset.kind == "package":
        return None
    patterns = (asset.path, f"{asset.path}/*") if asset.path else ()
    return WeightsNeed(asset.name, engine, patterns=patterns, what=asset.kind)


def packages(proposal: Proposal) -> tuple[str, ...]:
    """What pip installs in the container before the engine starts."""
    assets = proposal.recipe.assets if proposal.recipe else ()
    return tuple(asset.name for asset in assets if asset.kind == "package")


def parse_name(name: str, patterns: Sequence[str]) -> WeightsNeed:
    """`ORG/NAME`, `ORG/NAME:LABEL` or `ORG/NAME@REVISION`, as the user writes it."""
    rest, _, revision = name.partition("@")
    repository, _, label = rest.partition(":")
    if not is_hub_id(repository):
        raise UsageError(f"`{name}` is not a Hub repository", next="firesteel pull ORG/NAME")
    return WeightsNeed(repository, None, revision or MAIN, label or None, tuple(patterns))


def select_files(files: Sequence[HubFile], want: WeightsNeed) -> tuple[HubFile, ...]:
    """The files that a want comes to; a sentence when they are not there."""
    if want.patterns:
        return _matching(files, want)
    has_safetensors = any(file.path.endswith(".safetensors") for file in files)
    if want.engine == "llamacpp" or want.label or (want.engine is None and not has_safetensors):
        ggufs = [file for file in files if _is_model(file)]
        if ggufs or want.engine == "llamacpp" or want.label:
            return _gguf(files, ggufs, want)
    return _safetensors(files, want, has_safetensors)


def _matching(files: Sequence[HubFile], want: WeightsNeed) -> tuple[HubFile, ...]:
    found = tuple(file for file in files if any(fnmatchcase(file.path, each) for each in want.patterns))
    if not found:
        raise FiresteelError(
            f"{want.repository} has no file like {want.patterns[0]}; it has {_some(files)}",
            next=f"firesteel pull {want.repository} --include PATTERN",
        )
    return found


def _some(files: Sequence[HubFile]) -> str:
    names = [file.path for file in sorted(files, key=lambda file: -file.bytes)]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "nothing") + more


# --- safetensors ---


def _safetensors(files: Sequence[HubFile], want: WeightsNeed, has_safetensors: bool) -> tuple[HubFile, ...]:
    kept = [file for file in files if not _is_aside(file.path, has_safetensors)]
    kept = [file for file in kept if not _is_other_set(file.path, kept, want)]
    if not any(file.path.endswith((".safetensors", ".bin")) for file in kept):
        reader = want.engine or "an engine"
        raise FiresteelError(
            f"{want.repository} has no weights that {reader} reads; it has {_some(files)}",
            next=f"firesteel pull {want.repository} --include PATTERN",
        )
    return tuple(kept)


def _is_aside(path: str, has_safetensors: bool) -> bool:
    """The same weights in another form, and what only people look at."""
    name = path.rpartition("/")[2]
    if path.lower().endswith(_FOR_PEOPLE) or name in _LEFT_OVER or path.split("/")[0] in _SAME_FOLDERS:
        return True
    same = _SAME_WEIGHTS if has_safetensors else tuple(end for end in _SAME_WEIGHTS if end != ".bin")
    return path.lower().endswith(same)


def _is_other_set(path: str, files: Sequence[HubFile], want: WeightsNeed) -> bool:
    """Mistral's repositories hold the weights twice, for its own loader and for everyone's.

    Which of them vLLM's `auto` takes has changed between releases, so then both are kept.
    """
    weights = [file.path for file in files if file.path.endswith(".safetensors") and "/" not in file.path]
    own = {each for each in weights if each.startswith("consolidated")}
    if not own or len(own) == len(weights) or not path.endswith(".safetensors") or "/" in path:
        return False
    if want.load_format == "mistral":
        return path not in own
    return path in own and (want.load_format != "auto" or want.engine == "sglang")


# --- GGUF ---


def _is_model(file: HubFile) -> bool:
    name = file.path.rpartition("/")[2]
    return name.endswith(".gguf") and not any(word in name for word in _NOT_A_MODEL)


def _gguf(files: Sequence[HubFile], models: Sequence[HubFile], want: WeightsNeed) -> tuple[HubFile, ...]:
    first = _first_part(models, want)
    projector = _projector(files, first)
    return (*_parts(models, first, want), *((projector,) if projector else ()))


def _first_part(models: Sequence[HubFile], want: WeightsNeed) -> HubFile:
    starts = [file for file in models if not (part := _PART.match(file.path)) or int(part[2]) == 1]
    if want.label is None and want.engine is None and len(starts) > 1:
        labels = sorted({_tag(file.path) for file in starts})
        raise UsageError(
            f"{want.repository} has {len(starts)} GGUF models: {', '.join(labels)}",
            next=f"firesteel pull {want.repository}:{_usual(labels)}",
        )
    for label in (want.label,) if want.label else _FIRST_LABELS:
        wanted = re.compile(re.escape(label) + "[.-]", re.IGNORECASE)
        if found := next((file for file in starts if wanted.search(file.path)), None):
            return found
    if want.label is None and starts:
        return starts[0]
    raise UsageError(
        f"{want.repository} has no GGUF called {want.label or '*.gguf'}; it has {_some(models)}",
        next=f"firesteel pull {want.repository} --include PATTERN",
    )


def _usual(labels: Sequence[str]) -> str:
    return next((label for label in _FIRST_LABELS if label in labels), labels[0])


def _tag(path: str) -> str:
    part = _PART.match(path)
    found = _TAG.search(part[1] if part else path.removesuffix(".gguf"))
    return found[1].upper() if found else PurePosixPath(path).stem


def _parts(models: Sequence[HubFile], first: HubFile, want: WeightsNeed) -> tuple[HubFile, ...]:
    start = _PART.match(first.path)
    if start is None:
        return (first,)
    count = int(start[3])
    found = {
        int(part[2]): file
        for file in models
        if (part := _PART.match(file.path)) and (part[1], part[3]) == (start[1], start[3])
    }
    if missing := [number for number in range(1, min(count, 99_999) + 1) if number not in found]:
        raise FiresteelError(
            f"{want.repository} lacks part {missing[0]} of {count} of {first.path}",
            next="tell its makers, or take another label",
        )
    return tuple(found[number] for number in sorted(found))


def _projector(files: Sequence[HubFile], model: HubFile) -> HubFile | None:
    """The nearest folder first, then the width nearest to the model's own."""
    above = PurePosixPath(model.path).parents
    near = [
        file
        for file in files
        if "mmproj" in file.path and file.path.endswith(".gguf") and PurePosixPath(file.path).parent in above
    ]
    return min(
        near,
        key=lambda file: (-len(PurePosixPath(file.path).parts), abs(_bits(file.path) - _bits(model.path))),
        default=None,
    )


def _bits(path: str) -> int:
    digits = re.search(r"[0-9]+", _tag(path))
    return int(digits[0][:6]) if digits else 0
