"""Opens LoRA adapters: a PEFT folder, a GGUF file, or a repository that was pulled from the Hub."""

from __future__ import annotations

import json
from pathlib import Path

from firesteel.edge.files.byte_sources import FileSource
from firesteel.edge.hub.cache import Store, local_snapshot
from firesteel.edge.model_reference import is_path
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.formats import gguf, safetensors
from firesteel.facts.model.adapter import Adapter, adapter_of_gguf, adapter_of_peft
from firesteel.launch import is_hub_id

_MAX_CONFIG = 1024 * 1024


def open_adapter(name: str, reference: str, store: Store) -> Adapter:
    """Raises FiresteelError with what to type."""
    if is_path(reference):
        path = Path(reference).expanduser().absolute()
        if not path.exists():
            raise UsageError(f"there is no adapter at {path}", next="give its PEFT folder or its GGUF")
        return _open(name, path, str(path))
    if not is_hub_id(reference):
        raise UsageError(
            f"`{reference}` is neither a path nor a Hub id", next="write a path with a `/` or ORG/NAME"
        )
    folder = local_snapshot(store, reference)
    if folder is None:
        raise UsageError(f"{reference} is not here yet", next=f"firesteel pull {reference}")
    return _open(name, folder, reference)


def _open(name: str, path: Path, given: str) -> Adapter:
    """`given`: a Hub id stays one, since its snapshot is a folder of links into the cache."""
    ggufs = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
    if path.is_dir() and (path / "adapter_config.json").exists():
        return _open_peft(name, path, given)
    if not ggufs or ggufs[0].suffix != ".gguf":
        raise UsageError(
            f"{path} has neither an adapter_config.json nor a GGUF", next="give a PEFT folder or a GGUF"
        )
    with FileSource(ggufs[0]) as source:
        return adapter_of_gguf(name, str(ggufs[0].resolve()), gguf.read_header(source))


def _open_peft(name: str, folder: Path, given: str) -> Adapter:
    config = folder / "adapter_config.json"
    weights = folder / "adapter_model.safetensors"
    if not weights.exists():
        raise UsageError(f"{folder} has no adapter_model.safetensors", next="save the adapter as safetensors")
    try:
        with config.open("rb") as file:
            parsed = json.loads(file.read(_MAX_CONFIG))
    except (ValueError, RecursionError) as error:
        raise FiresteelError(f"{config} is not JSON: {error}", next="download it again") from None
    with FileSource(weights) as source:
        return adapter_of_peft(name, given, parsed, safetensors.read_header(source))
