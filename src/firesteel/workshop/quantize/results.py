"""The result of a run (the relative error of every matrix, size, time) and the files next to the weights.

Those are config.json, files copied from the source, a README, and entries for FIRESTEEL_HOME/catalog (a model
file and a recipe). `upload_folder` uploads all of it to the Hub through `huggingface_hub`. An interrupted
upload is resumed: the Hub reports the digests of the files that it already has. A new repository is private
unless the user wants it public; an existing one keeps its visibility.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path

from firesteel import __version__
from firesteel.errors import FiresteelError, ServerNotReady, UsageError
from firesteel.launch import is_valid_hub_id
from firesteel.units import show_bytes
from firesteel.values import Value
from firesteel.workshop.quantize.plan import COMPRESSED_TENSORS, QuantizationPlan
from firesteel.workshop.quantize.worker import BlockError


class MatrixError(Value):
    module: str
    relative: float
    """The norm of the difference, divided by the norm of the weights."""


class QuantizationResult(Value):
    errors: tuple[MatrixError, ...]
    """The largest first."""
    bytes: int
    resumed_bytes: int
    seconds: float
    kernel: str
    threads: int

    @property
    def mean_error(self) -> float:
        return sum(error.relative for error in self.errors) / len(self.errors)


def collect_errors(entries: Iterable[tuple[BlockError, ...]]) -> tuple[MatrixError, ...]:
    sums: dict[str, tuple[float, float]] = {}
    for entry in entries:
        for block in entry:
            error, norm = sums.get(block.module, (0.0, 0.0))
            sums[block.module] = error + block.error, norm + block.norm
    errors = [MatrixError(name, sqrt(error / norm) if norm else 0.0) for name, (error, norm) in sums.items()]
    return tuple(sorted(errors, key=lambda error: (-error.relative, error.module)))


FOLDER = "firesteel-catalog"
IMAGE = "vllm-openai-0.28"


# --- catalog entries ---

_MAX_CONTEXT, _USERS = 32_768, 4
_UNKNOWN_ORGANIZATION = "local"


def catalog_entries(plan: QuantizationPlan, name: str, organization: str | None) -> dict[str, str]:
    """Path under the catalog -> text. Without an organization on the Hub it is `local`, to be replaced."""
    hub_id = f"{organization or _UNKNOWN_ORGANIZATION}/{name}"
    short = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")
    return {f"models/{hub_id}.yaml": _model(plan, hub_id), f"recipes/{short}.yaml": _recipe(plan, hub_id)}


def _source(plan: QuantizationPlan, hub_id: str) -> str:
    """The day is that of the source's files: a run that is resumed the next day writes the same."""
    files = {tensor.file for tensor in plan.source.tensors}
    newest = max((plan.source.folder / file).stat().st_mtime for file in files)
    day = datetime.fromtimestamp(newest, UTC).date()
    made = f"made from {plan.source.origin} by firesteel quantize --to {plan.format.name}"
    return f"  - {{url: {_quoted(f'https://huggingface.co/{hub_id}')}, seen: {day}, note: {_quoted(made)}}}"


def _model(plan: QuantizationPlan, hub_id: str) -> str:
    config = {key: value for key, value in plan.config.items() if key != "quantization_config"}
    section = {"quantization_config": plan.config["quantization_config"]}
    lines = [
        f"id: {hub_id}",
        f"title: {_quoted(f'{plan.source.name} in {plan.format.name}')}",
        f"family: {_quoted(plan.source.name.lower())}",
        "license: unknown",
        "gated: false",
        "modality: [text]",
        f"config: {_quoted(json.dumps(config))}",
        f"quantization: {_quoted(json.dumps(section))}",
        "sources:",
        _source(plan, hub_id),
    ]
    return "\n".join(lines) + "\n"


def _recipe(plan: QuantizationPlan, hub_id: str) -> str:
    context = min(plan.source.architecture.max_context or _MAX_CONTEXT, _MAX_CONTEXT)
    lines = [
        f"title: {_quoted(f'{plan.source.name} in {plan.format.name} in vLLM')}",
        f"model: {hub_id}",
        "engine: vllm",
        f"image: {IMAGE}",
        f"serves: {{context: {context}, users: {_USERS}}}",
        "status: untried",
        "sources:",
        _source(plan, hub_id),
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


# --- files next to the weights ---

_WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".onnx",
    ".h5",
    ".msgpack",
    ".index.json",
    ".part",
)
_REPLACED = ("config.json", "README.md", "hf_quant_config.json", "quantize_config.json", "firesteel.yaml")
_MAX_CARRIED_BYTES = 2**28
_WORST = 10


def carried_files(folder: Path) -> Iterator[Path]:
    """Tokenizer, templates, generation config, license, code: the files next to the weights."""
    for path in sorted(folder.iterdir()):
        is_wanted = path.is_file() and not path.name.startswith(".") and path.name not in _REPLACED
        if is_wanted and not path.name.endswith(_WEIGHTS) and path.stat().st_size <= _MAX_CARRIED_BYTES:
            yield path


def write_documents(
    plan: QuantizationPlan, folder: Path, result: QuantizationResult, name: str, organization: str | None
) -> None:
    for path in carried_files(plan.source.folder):
        shutil.copyfile(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(plan.config, indent=2) + "\n", "utf-8")
    (folder / "README.md").write_text(readme(plan, result), "utf-8")
    for entry, text in catalog_entries(plan, name, organization).items():
        path = folder / FOLDER / entry
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    for path in folder.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def readme(plan: QuantizationPlan, result: QuantizationResult) -> str:
    """Without times and dates: a run that was killed and went on writes the same."""
    name = f"{plan.source.name} in {plan.format.name}"
    command = " ".join(
        [
            "firesteel quantize",
            plan.source.origin,
            "--to",
            plan.format.name,
            *(f"--keep {k}" for k in plan.keep),
        ]
    )
    kept = Counter(tensor.why for tensor in plan.kept)
    lines = [
        *_front_matter(plan),
        f"# {name}",
        "",
        f"{plan.format.about}. Made from `{plan.source.origin}` by firesteel {__version__}, without data:",
        "",
        f"    {command}",
        "",
        f"{show_bytes(plan.source.bytes)} before, {show_bytes(plan.bytes)} after. The layout is that of "
        f"compressed-tensors {COMPRESSED_TENSORS}; vLLM and SGLang read it by themselves.",
        "",
        f"`{FOLDER}` has a model file and a recipe, to be copied into FIRESTEEL_HOME/catalog.",
        "",
        "## Kept as it was",
        "",
        "| tensors | why |",
        "|---|---|",
        *(f"| {count:,} | {why} |" for why, count in kept.most_common()),
        "",
        "## Error of the weights",
        "",
        "The norm of the difference, divided by the norm of the weights. It does not measure the answers.",
        f"Mean of {len(result.errors):,} matrices: {result.mean_error:.2%}. The largest:",
        "",
        "| matrix | error |",
        "|---|---|",
        *(f"| `{error.module}` | {error.relative:.2%} |" for error in result.errors[:_WORST]),
        "",
    ]
    return "\n".join(lines)


_CARRIED = ("license", "license_name", "license_link", "language", "pipeline_tag", "tags")
_CARD_KEY = re.compile(r"^([A-Za-z_]+):(.*(?:\n(?:[ -].*|))*)", re.M)


def _front_matter(plan: QuantizationPlan) -> list[str]:
    """License, languages and tags as the model card of the source states them."""
    try:
        text = (plan.source.folder / "README.md").read_text("utf-8", errors="replace")
    except OSError:
        text = ""
    head = text.removeprefix("---").split("\n---", 1)[0] if text.startswith("---") else ""
    found = {match[1]: match[2].rstrip() for match in _CARD_KEY.finditer(head)}
    is_hub_id = not plan.source.origin.startswith((".", "/", "~"))
    base = f" {plan.source.origin}" if is_hub_id else found.get("base_model", "")
    tags = re.findall(r"[\w.:+-]*\w", found.pop("tags", ""))
    lines = [f"{key}:{found[key]}" for key in _CARRIED if key in found]
    if base:
        lines += [f"base_model:{base}", "base_model_relation: quantized"]
    tags = list(dict.fromkeys([*tags, "compressed-tensors", "firesteel"]))
    return ["---", *lines, "library_name: vllm", f"tags: [{', '.join(tags)}]", "---", ""]


# --- upload ---


def require_upload(repository: str) -> None:
    """Before hours of work, not after."""
    from huggingface_hub import get_token

    if not is_valid_hub_id(repository):
        raise UsageError(f"`{repository}` is not a Hub repository", next="--upload ORG/NAME")
    if get_token() is None:
        raise UsageError("an upload needs a token of the Hub", next="HF_TOKEN=... firesteel quantize ...")


def upload_folder(folder: Path, repository: str, *, is_public: bool = False) -> str:
    """Returns the address of the commit."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="firesteel")
    try:
        api.create_repo(repository, private=not is_public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Quantized by firesteel"
        )
    except HfHubHTTPError as error:
        raise FiresteelError(
            f"the Hub refused the upload: {error}",
            next=f"firesteel quantize ... --upload {repository}, again",
        ) from error
    except OSError as error:
        raise ServerNotReady(
            f"the Hub cannot be reached: {error}",
            next="the same command again: what is there is not sent twice",
        ) from error
    return str(commit.commit_url)
