"""What to point a client at: the running gateway, a running service, or where a plan would serve the model.

What is known about a running model is what its verification showed, from the files of the service. Its
start command is not read: a launch that first installs a plugin starts with `bash -c`, and its flags are then
inside a script.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from firesteel.errors import UsageError
from firesteel.gateway.address import Address
from firesteel.gateway.keys import KeyRing, keys_path
from firesteel.launch import Ask
from firesteel.planner.propose import Proposal
from firesteel.render.clients import ClientEndpoint
from firesteel.run.report import read_report
from firesteel.run.service import Service
from firesteel.run.verify.expected import Expected, expected, stored_expected
from firesteel.values import Value, replace
from firesteel.workspace import Workspace

KEY_VARIABLE = "FIRESTEEL_API_KEY"
"""The environment variable that clients read the key from."""
_PLAN_HOST = "gb10"
_TIMEOUT_S = 3


class ClientTarget(Value):
    """What the client will talk to."""

    endpoint: ClientEndpoint
    kind: Literal["gateway", "service", "plan"]
    note: str


def find_target(
    workspace: Workspace,
    services: Iterable[Service],
    gateway: Address | None,
    model: str | None = None,
    context: int | None = None,
) -> ClientTarget:
    """The gateway comes first: a port behind it answers only until its model is evicted."""
    running = {service.name: service for service in services if service.phase != "dead"}
    if gateway and gateway.models and (model is None or model in gateway.models):
        model = model or gateway.models[0]
        return _of_gateway(workspace, gateway, model, context, running.get(model))
    if model is None and len(running) == 1:
        model = next(iter(running))
    if model is None:
        if running:
            raise UsageError(
                f"several services are running: {', '.join(running)}",
                next=f"add a name: {next(iter(running))}",
            )
        raise UsageError(
            "nothing is running, and no MODEL was given",
            next="add the name of one, running or not: firesteel models lists them",
        )
    if model in running:
        endpoint = of_service(workspace, running[model], context)
        return ClientTarget(endpoint, "service", f"this is the service `{model}` itself, on its own port")
    return _of_plan(workspace, model, context)


def of_service(workspace: Workspace, service: Service, context: int | None = None) -> ClientEndpoint:
    """A recipe of the same name knows the rest about the model."""
    spec, known = service.spec, stored_expected(service.folder)
    try:
        proposal = workspace.propose(Ask(service.name), workspace.host(_PLAN_HOST))[0]
    except UsageError:
        proposal = None
    planned = proposal.plan.cache.context if proposal else None
    endpoint = ClientEndpoint(
        f"{spec.url}/v1",
        spec.model,
        context or known.context or planned,
        key=KEY_VARIABLE if spec.is_guarded_by_key else None,
    )
    return _with_abilities(endpoint, known, _check_results(service), proposal)


def _of_gateway(
    workspace: Workspace, gateway: Address, model: str, context: int | None, service: Service | None
) -> ClientTarget:
    # The gateway sees a new key a few seconds later than it is written.
    has_keys = gateway.has_keys or not KeyRing.read(keys_path(workspace.home)).is_open
    key = KEY_VARIABLE if has_keys else None
    url = _local_url(gateway.url)
    is_silent = context is None and key is not None and not os.environ.get(key)
    context = context or asyncio.run(_offered_context(url, model, key))
    endpoint = ClientEndpoint(f"{url}/v1", model, context, key=key)
    if service:
        engine = of_service(workspace, service, context)
        endpoint = replace(
            endpoint,
            tools=engine.tools,
            images=engine.images,
            reasoning=engine.reasoning,
            requests=engine.requests,
        )
    note = f"this is the gateway, which loads `{model}` when a request asks for it"
    if others := [name for name in gateway.models if name != model]:
        note += f"; it serves {', '.join(others)} too, by name"
    if is_silent:
        note += (
            "; it says its context only to a key: export one from `firesteel serve key add NAME`"
            f" as {KEY_VARIABLE}, and run this again"
        )
    elif key:
        note += f"; set {KEY_VARIABLE} to a key from `firesteel serve key add NAME`"
    return ClientTarget(endpoint, "gateway", note)


def _local_url(url: str) -> str:
    """The URL for this machine: a server that listens on all addresses is reached at the loopback one."""
    parts = urlsplit(url)
    try:
        is_wildcard = ip_address(parts.hostname or "").is_unspecified
    except ValueError:
        return url
    host = "[::1]" if ":" in (parts.hostname or "") else "127.0.0.1"
    return f"{parts.scheme}://{host}:{parts.port}" if is_wildcard else url


async def _offered_context(url: str, model: str, variable: str | None) -> int | None:
    """The context that the gateway planned the model with; without the key it cannot be asked."""
    from firesteel.edge.http import engine_client  # slow to load, and only a gateway needs it

    key = os.environ.get(variable) if variable else None
    if variable and not key:
        return None
    rows = await engine_client.offered_models(url, timeout_s=_TIMEOUT_S, key=key)
    contexts = [row.get("context") for row in rows if row.get("id") == model]
    return next((context for context in contexts if type(context) is int and context > 0), None)


def _of_plan(workspace: Workspace, model: str, context: int | None) -> ClientTarget:
    best = workspace.propose(Ask(model, context=context), workspace.host(_PLAN_HOST))[0]
    launch = best.plan.launch
    endpoint = ClientEndpoint(f"http://127.0.0.1:{launch.port}/v1", launch.name, best.plan.cache.context)
    note = f"`{model}` does not run; this is where `up` would serve it"
    return ClientTarget(_with_abilities(endpoint, expected(best), {}, best), "plan", note)


def _check_results(service: Service) -> Mapping[str, bool]:
    """Which checks of the start passed; empty before the verification, or if its report is damaged."""
    try:
        checks = read_report(service.report or {}).checks
    except ValueError:
        return {}
    return {check.name: check.passed for check in checks}


def _with_abilities(
    endpoint: ClientEndpoint, known: Expected, passed: Mapping[str, bool], proposal: Proposal | None
) -> ClientEndpoint:
    """Whether it takes tools and images, and reasons; None: not known. Before a check, what is expected."""
    tools: bool | None = passed.get("tool call", True) if known.tool_parser else None
    if known.engine == "vllm" and not known.tool_parser:
        tools = False  # it answers HTTP 400 to `tool_choice: auto` then
    # A failed check does not show that a model never thinks: a small one may have had too few tokens for it.
    reasons = bool(known.reasoning_parser) and passed.get("reasoning split", True)
    return replace(
        endpoint,
        tools=tools,
        images=_takes_images(proposal),
        reasoning=reasons or None,
        requests=known.requests,
    )


def _takes_images(proposal: Proposal | None) -> bool | None:
    if proposal is None or proposal.model is None or proposal.model.modality is None:
        return None
    launch = proposal.plan.launch
    if "image" not in proposal.model.modality:
        return False
    if launch.engine == "llamacpp":
        return None  # it needs a projector file, which a launch may lack
    return launch.flags.get("language-model-only") is not True
