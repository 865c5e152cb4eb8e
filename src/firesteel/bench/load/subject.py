"""What is measured: a service of ours with its launch and its plan, or any server as far as it tells."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from firesteel.bench.values import Subject
from firesteel.edge.http.engine_client import offered_count, offered_models, status
from firesteel.edge.http.sync_client import get_from_engine
from firesteel.engines.engine import served_capacity
from firesteel.errors import ServerNotReady, UsageError, printable
from firesteel.facts.host.hardware import Host
from firesteel.launch import Launch
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.plan import Plan, PlanSummary, summarize
from firesteel.run.service import Service
from firesteel.run.verify.expected import Expected
from firesteel.values import Value, plain

_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_PLAN_KEYS = (
    "decode_tokens_per_s", "prefill_tokens_per_s", "ttft_ms", "prompt_tokens", "bytes_per_token",
    "bandwidth_bytes_per_s", "bound_tokens_per_s",
)  # fmt: skip
"""Named alike in a summary and in a stored run."""


class FoundSubject(Value):
    """A subject, and what its server offers: without it points could be asked that it cannot answer."""

    subject: Subject
    context: int | None = None
    users: int | None = None


def of_service(service: Service, expect: Expected, plan: Plan | None, host: Host) -> FoundSubject:
    """`plan`: of the very launch that runs; None where it can no longer be planned: then what was stored at
    its start is taken."""
    spec, container = service.spec, plan.launch.container if plan else None
    subject = Subject(
        url=spec.url,
        model=spec.model,
        engine=expect.engine or spec.engine,
        version=expect.version,
        launch_key=spec.launch or None,
        launch=_launch(plan.launch) if plan else {"start": list(spec.start)},
        image_digest=container.image.partition("@")[2] or None if container else None,
        host=host_of(host),
        plan=plan_json(summarize(plan) if plan else expect.plan, drafts=expect.drafts is not None),
    )
    users = served_capacity(plan.launch).users if plan else None
    return FoundSubject(subject, expect.context, users)


def host_of(host: Host) -> dict[str, Any]:
    return {
        "title": host.title,
        "hardware": host.hardware,
        "cores": host.cores,
        "memory_total_bytes": host.memory_total_bytes,
        "bandwidth_bytes_per_s": host.bandwidth_bytes_per_s,
        "gpus": [f"{gpu.name}, driver {gpu.driver}" for gpu in host.gpus],
    }


def plan_json(summary: PlanSummary, *, drafts: bool) -> dict[str, Any]:
    """What was predicted, in the keys of `values.Subject.plan`; without a prediction of speed, nothing."""
    if summary.decode_tokens_per_s is None and summary.prefill_tokens_per_s is None:
        return {}
    fields = plain(summary)
    found = {name: fields[name] for name in _PLAN_KEYS if fields[name] is not None}
    if summary.basis:  # of a whole plan; version 0.1 stored bands alone
        found |= {"why": summary.explanation, "rung": summary.basis, "drafted": fields["drafted"]}
        found["at_depth"] = [list(row) for row in fields["at_depth"]]
    if summary.batch_users:
        found["batch"] = {"users": summary.batch_users, "each_tokens_per_s": fields["batch_tokens_per_s"]}
    return {**found, "drafts": drafts or bool(summary.drafted)}


def _launch(launch: Launch) -> dict[str, Any]:
    """Without what must not be kept."""
    env = {
        name: value for name, value in launch.env.items() if not any(word in name.upper() for word in _SECRET)
    }
    return {
        "name": launch.name, "model": launch.model, "flags": dict(launch.flags), "env": env,
        "image": launch.container.image if launch.container else None, "sparks": launch.sparks,
        "key": launch_key(launch),
    }  # fmt: skip


# --- a server that we did not start ---


async def of_url(base: str, model: str | None, key: str | None = None) -> FoundSubject:
    """Any OpenAI endpoint; what kind of engine it is it says itself, or nobody knows."""
    rows = await offered_models(base, key=key)
    names = [str(row["id"]) for row in rows if isinstance(row.get("id"), str)]
    chosen = model or (names[0] if len(names) == 1 else None)
    if chosen is None:
        raise await _no_model(base, names, key)
    if chosen in names and not chosen.isprintable():  # it must be sent as it is, and cannot be shown so
        raise UsageError(
            f"{base} serves a model whose name cannot be shown: {printable(chosen)[:80]}",
            next="another name for it there (of vLLM and SGLang --served-model-name, of llama.cpp --alias)",
        )
    row: Mapping[str, Any] = next((each for each in rows if each.get("id") == chosen), {})
    engine, version = _engine(base, row, key)
    subject = Subject(base, chosen, engine, version)
    return FoundSubject(subject, offered_count(row, "max_model_len", "n_ctx"))


async def _no_model(base: str, names: list[str], key: str | None) -> UsageError | ServerNotReady:
    if names:
        shown = [printable(name)[:80] for name in names[:8]]
        return UsageError(
            f"{base} serves several models: {', '.join(shown)}", next=f"add --model {shlex.quote(shown[0])}"
        )
    seen = await status(f"{base}/v1/models", timeout_s=10, key=key)
    if seen in (401, 403):
        return ServerNotReady(
            f"{base} asks for a key (HTTP {seen})", next="the variable that has it: --key-env NAME"
        )
    if seen is None:
        return ServerNotReady(f"{base} does not answer", next=f"curl -i {base}/v1/models")
    return UsageError(f"{base} does not say which models it has", next="add --model NAME")


def _engine(base: str, row: Mapping[str, Any], key: str | None) -> tuple[str | None, str | None]:
    """vLLM and SGLang say who they are in `owned_by`, llama.cpp too; `/version` is vLLM's."""
    owner = str(row.get("owned_by", "")).lower()
    known = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
    engine = known.get(owner)
    if engine != "vllm":
        return engine, None
    code, text = get_from_engine(f"{base}/version", key)
    version = text.partition('"version"')[2].split('"')[1:2] if code == 200 else []
    return engine, printable(version[0][:40]) if version else None
