"""What Ollama's clients ask about models: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`.

An inference key is enough, for its own models. Models are added and removed in the service file, so what
changes Ollama's store (`/api/pull`, `/api/delete`, ...) is refused, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from aiohttp import web

from firesteel import __version__
from firesteel.gateway.interfaces import AdminRejected, Rejection
from firesteel.gateway.state import ModelStatus
from firesteel.gateway.translate.ollama import timestamp

VERSION = "0.13.0"
"""The release of Ollama whose API this is; some clients refuse an older one."""
_CAPABILITIES = ["completion", "tools"]
_STORE_PATHS = ("pull", "push", "create", "copy", "delete")
_FAR_FUTURE = "2318-01-01T00:00:00Z"
"""Ollama's own value for a model that stays."""
VisibleModels = Callable[[web.Request], list[ModelStatus]]


def ollama_routes(visible_models: VisibleModels) -> list[web.RouteDef]:
    """`visible_models` are those that the caller of a request may use."""

    async def tags(request: web.Request) -> web.Response:
        return _json({"models": tag_rows(visible_models(request))})

    async def running(request: web.Request) -> web.Response:
        return _json({"models": running_rows(visible_models(request))})

    async def show(request: web.Request) -> web.Response:
        return _json(model_document(visible_models(request), await _name(request)))

    async def version(request: web.Request) -> web.Response:
        return _json({"version": VERSION, "firesteel": __version__})

    return [
        web.get("/api/tags", tags),
        web.get("/api/ps", running),
        web.post("/api/show", show),
        web.get("/api/version", version),
        *(web.route("*", f"/api/{name}", _refuse_store) for name in _STORE_PATHS),
    ]


def tag_rows(models: list[ModelStatus]) -> list[dict[str, Any]]:
    """Every name that can be asked for."""
    return [_row(model, name) for model in models for name in (model.name, *model.aliases)]


def running_rows(models: list[ModelStatus]) -> list[dict[str, Any]]:
    return [_running_row(model) for model in models if model.phase == "ready"]


def _row(model: ModelStatus, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "model": name,
        "modified_at": timestamp(model.since or 0.0),
        "size": _size(model),
        "digest": sha256(name.encode()).hexdigest(),
        "details": _details(model),
    }


def _running_row(model: ModelStatus) -> dict[str, Any]:
    ttl_s, since = model.ttl_s, model.since
    expires = timestamp(since + ttl_s) if ttl_s is not None and since is not None else _FAR_FUTURE
    more = {"size_vram": _size(model), "expires_at": expires, "context_length": model.context or 0}
    return _row(model, model.name) | more


def model_document(models: list[ModelStatus], name: str) -> dict[str, Any]:
    """`/api/show`. Raises `AdminRejected` for a model that there is not."""
    plain = name.removesuffix(":latest")
    found = [model for model in models if {name, plain} & {model.name, *model.aliases}]
    if not found:
        raise AdminRejected(Rejection(404, "unknown_model", f"model '{name[:100]}' not found"))
    model = found[0]
    family = model.engine or "unknown"
    info: dict[str, Any] = {"general.architecture": family, "general.basename": model.name}
    if model.context:
        info[f"{family}.context_length"] = model.context
    return {
        "modelfile": f"# {model.name} is served by firesteel; its service file has its settings.",
        "parameters": f"num_ctx {model.context}" if model.context else "",
        "template": "{{ .Prompt }}{{ .Tools }}",
        "details": _details(model),
        "model_info": info,
        "capabilities": _CAPABILITIES,
        "modified_at": timestamp(model.since or 0.0),
    }


def _details(model: ModelStatus) -> dict[str, Any]:
    family = model.engine or "unknown"
    return {
        "parent_model": "",
        "format": "gguf" if family == "llamacpp" else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": "",
    }


def _size(model: ModelStatus) -> int:
    return model.measured_bytes or model.planned_bytes or 0


async def _name(request: web.Request) -> str:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        body = None
    name = (body.get("model") or body.get("name")) if isinstance(body, dict) else None
    if not isinstance(name, str):
        raise AdminRejected(Rejection(400, "bad_request", '`model` is missing: send `{"model": "NAME"}`'))
    return name


async def _refuse_store(request: web.Request) -> web.StreamResponse:
    why = f"{request.path} is not supported: models are added and removed in the service file."
    raise AdminRejected(Rejection(501, "not_supported", why))


def _json(content: object) -> web.Response:
    return web.json_response(content, headers={"Cache-Control": "no-store"})
