"""What is measured: a service of ours with its launch and its plan, or any server as far as it tells."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from firesteel import engines
from firesteel.bench.values import Subject
from firesteel.edge.http.engine_client import offered_models, status
from firesteel.edge.http.poll import get_from_engine
from firesteel.errors import HostNotReady, UsageError
from firesteel.facts import Host
from firesteel.launch import Launch
from firesteel.planner import Band, Plan, launch_key
from firesteel.printable import printable
from firesteel.run import Expected, Service

_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")


@dataclass(frozen=True, slots=True)
class FoundSubject:
    """A subject, and what its server offers: without it points could be asked that it cannot answer."""

    subject: Subject
    context: int | None = None
    users: int | None = None


def of_service(service: Service, expect: Expected, plan: Plan | None, host: Host) -> FoundSubject:
    """`plan`: of the very launch that runs; None where it is not known any more."""
    spec = service.spec
    subject = Subject(
        url=spec.url,
        model=spec.model,
        engine=expect.engine or spec.engine,
        version=expect.version,
        launch_key=spec.launch or None,
        launch=_launch(plan.launch) if plan else {"start": list(spec.start)},
        image_digest=_digest(plan.launch) if plan else None,
        host=host_of(host),
        plan=plan_of(plan) if plan else _promised(expect),
    )
    users = engines.served_capacity(plan.launch).users if plan else None
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


def plan_of(plan: Plan) -> dict[str, Any]:
    """What was predicted, in the names of `values.Subject.plan`."""
    speed = plan.speed
    if speed is None:
        return {}
    found: dict[str, Any] = {
        "decode_tokens_per_s": asdict(speed.decode_tokens_per_s),
        "bytes_per_token": speed.bytes_per_token,
        "bandwidth_bytes_per_s": speed.bandwidth_bytes_per_s,
        "bound_tokens_per_s": speed.bound_tokens_per_s,
        "why": speed.explanation,
        "rung": speed.basis,
        "at_depth": [[depth, asdict(band)] for depth, band in speed.at_depth],
        "drafts": bool(speed.drafted),
        "drafted": {row.text: asdict(row.decode_tokens_per_s) for row in speed.drafted},
    }
    if speed.batch:
        rate = asdict(speed.batch.per_user_tokens_per_s)
        found["batch"] = {"users": speed.batch.users, "each_tokens_per_s": rate}
    if speed.prefill:
        found |= {
            "prefill_tokens_per_s": asdict(speed.prefill.tokens_per_s),
            "ttft_ms": asdict(speed.prefill.ttft_ms),
            "prompt_tokens": speed.prefill.prompt_tokens,
        }
    return found


def _promised(expect: Expected) -> dict[str, Any]:
    """What `up` kept beside the service: bands only."""
    bands: dict[str, Band | None] = {
        "decode_tokens_per_s": expect.decode_tokens_per_s,
        "prefill_tokens_per_s": expect.prefill_tokens_per_s,
    }
    found: dict[str, Any] = {name: asdict(band) for name, band in bands.items() if band}
    return found | {"drafts": expect.drafts is not None} if found else {}


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


def _digest(launch: Launch) -> str | None:
    image = launch.container.image if launch.container else ""
    return image.partition("@")[2] or None


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
    return FoundSubject(subject, _count(row, "max_model_len", "n_ctx"))


async def _no_model(base: str, names: list[str], key: str | None) -> UsageError | HostNotReady:
    if names:
        shown = [printable(name)[:80] for name in names[:8]]
        return UsageError(
            f"{base} serves several models: {', '.join(shown)}", next=f"add --model {shlex.quote(shown[0])}"
        )
    seen = await status(f"{base}/v1/models", timeout_s=10, key=key)
    if seen in (401, 403):
        return HostNotReady(
            f"{base} asks for a key (HTTP {seen})", next="the variable that has it: --key-env NAME"
        )
    if seen is None:
        return HostNotReady(f"{base} does not answer", next=f"curl -i {base}/v1/models")
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


def _count(row: Mapping[str, Any], *names: str) -> int | None:
    meta = row.get("meta")
    said = {**(meta if isinstance(meta, dict) else {}), **row}
    found = (said.get(name) for name in names)
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)
