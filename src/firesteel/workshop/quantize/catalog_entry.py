"""The result as entries of a catalog: a model file and a recipe, for FIRESTEEL_HOME/catalog."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from firesteel.workshop.quantize.plan import QuantizationPlan

FOLDER = "firesteel-catalog"
IMAGE = "vllm-openai-0.28"
_MAX_CONTEXT, _USERS = 32_768, 4
_UNKNOWN_ORGANIZATION = "local"


def catalog_entries(plan: QuantizationPlan, name: str, organization: str | None) -> dict[str, str]:
    """Path under the catalog -> text. Without an organization on the Hub it is `local`, to be replaced."""
    hub_id = f"{organization or _UNKNOWN_ORGANIZATION}/{name}"
    short = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")
    return {f"models/{hub_id}.yaml": _model(plan, hub_id), f"recipes/{short}.yaml": _recipe(plan, hub_id)}


def _source(plan: QuantizationPlan, hub_id: str) -> str:
    """The day is that of the source's files: a run that goes on the next day writes the same."""
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
