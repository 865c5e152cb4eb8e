"""The server that is measured: a firesteel service with its launch and its plan, or any other with what it
reports about itself.

Before the first measurement, a few tiny requests show how it counts tokens, what its chat template adds, and
whether it obeys `ignore_eos`. A failure here becomes a note and does not end the run: a server that answers
HTTP 500 is reported through its samples, not by a refusal to measure it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct

from firesteel.bench.load.prompts import Count, PromptWriter, text_blocks
from firesteel.bench.measurements import RequestSettings, Subject
from firesteel.edge.http.engine_client import (
    EngineRefused,
    chat,
    count_tokens,
    offered_count,
    offered_models,
    status,
)
from firesteel.edge.http.sync_client import get_from_engine
from firesteel.engines.engine import served_capacity
from firesteel.errors import FiresteelError, ServerNotReady, UsageError, printable
from firesteel.facts.host.hardware import Host
from firesteel.launch import Launch, Text
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
    """A subject and the limits of its server: no point may ask for more than it can answer."""

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
    """Any OpenAI endpoint; its engine is unknown unless the server reports it."""
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
    """vLLM, SGLang and llama.cpp report their name in `owned_by`; only vLLM has `/version`."""
    owner = str(row.get("owned_by", "")).lower()
    known = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
    engine = known.get(owner)
    if engine != "vllm":
        return engine, None
    code, text = get_from_engine(f"{base}/version", key)
    version = text.partition('"version"')[2].split('"')[1:2] if code == 200 else []
    return engine, printable(version[0][:40]) if version else None


# --- how it counts tokens ---

_TIMEOUT_S = 120.0
_EOS_PROBE_TOKENS = 24
_SHORT_CHARS, _LONG_CHARS = 300, 1500
"""Lengths of the two texts from which token length is estimated if the server has no tokenizer."""
_PROBES = (
    "The harbour was quiet that morning.",
    "Nobody had seen the old station for years, and so it was sold.",
)
_FIXED_SLACK = 2
"""Tokens by which a prompt may be off even with a tokenizer: its text touches that of the template."""


class Prepared(Value):
    """How to send requests to this server."""

    writers: Mapping[Text, PromptWriter]
    template_tokens: int | None
    """Tokens that the chat template adds to one message; None: unknown."""
    is_exact: bool
    obeys_ignore_eos: bool
    """It continues to `max_tokens` if the request says so."""
    extra: Mapping[str, Any]
    """Fields of every request besides the messages."""
    slack_share: float = 0.0
    notes: tuple[str, ...] = ()

    def slack(self, tokens: int) -> int:
        return _FIXED_SLACK + round(self.slack_share * tokens)


class _Probe(Struct):
    subject: Subject
    key: str | None
    extra: dict[str, Any]
    notes: list[str] = []

    async def count(self, text: str) -> int | None:
        return await count_tokens(self.subject.url, self.subject.model, text, timeout_s=60, key=self.key)

    async def usage(
        self, text: str, max_tokens: int, more: Mapping[str, Any] | None = None
    ) -> tuple[int, int] | None:
        """The server's own token counts of a prompt and its answer."""
        answer = await chat(
            self.subject.url, self.subject.model, text, max_tokens=max_tokens, stream=False,
            extra={**self.extra, **(more or {})}, timeout_s=_TIMEOUT_S, key=self.key,
        )  # fmt: skip
        if answer.prompt_tokens is None or answer.completion_tokens is None:
            return None
        return answer.prompt_tokens, answer.completion_tokens


async def prepare(
    subject: Subject,
    settings: RequestSettings,
    texts: Iterable[Text],
    *,
    key: str | None = None,
    requests: Mapping[str, Any] | None = None,
) -> Prepared:
    """`requests`: more fields for every request, such as `chat_template_kwargs`."""
    extra: dict[str, Any] = {"temperature": settings.temperature, "seed": settings.seed}
    if (thinking := settings.thinking) is not None:
        # Most templates read `enable_thinking`, DeepSeek's and some more `thinking`; each ignores the other.
        extra["chat_template_kwargs"] = {"enable_thinking": thinking, "thinking": thinking}
    extra |= requests or {}
    probe = _Probe(subject, key, extra)
    try:
        obeys_ignore_eos = await _obeys_ignore_eos(probe) if settings.ignores_eos else False
        return await _prepare_counting(probe, tuple(dict.fromkeys(texts)), obeys_ignore_eos)
    except FiresteelError as error:
        note = f"a first tiny request failed ({error.what}), so prompt lengths are a guess"
        writers = {text: PromptWriter(_estimate(4.0)) for text in texts}
        return Prepared(writers, None, False, False, extra, 1.0, (*probe.notes, note))


async def _obeys_ignore_eos(probe: _Probe) -> bool:
    """Does it continue past its own end if asked to? vLLM, SGLang and llama.cpp all know `ignore_eos`."""
    try:
        usage = await probe.usage("Reply with the single word OK.", _EOS_PROBE_TOKENS, {"ignore_eos": True})
    except EngineRefused as refused:
        if refused.status not in (400, 422):
            raise
        probe.notes.append("the server does not accept `ignore_eos`: answers end where the model ends them")
        return False
    if usage is None or usage[1] < _EOS_PROBE_TOKENS:
        probe.notes.append("the server ends answers in spite of `ignore_eos`: their lengths differ")
        return False
    probe.extra["ignore_eos"] = True
    return True


async def _prepare_counting(probe: _Probe, texts: tuple[Text, ...], obeys_ignore_eos: bool) -> Prepared:
    first, second = [await _template_tokens(probe, text) for text in _PROBES]
    if first is None:
        return await _prepare_estimates(probe, texts, obeys_ignore_eos)
    if second != first:
        probe.notes.append(f"the chat template adds {first} tokens to one text and {second} to another")

    async def count(text: str) -> int:
        return await probe.count(text) or 0

    writers = {text: PromptWriter(count) for text in texts}
    return Prepared(writers, first, True, obeys_ignore_eos, probe.extra, 0.0, tuple(probe.notes))


async def _template_tokens(probe: _Probe, text: str) -> int | None:
    counted = await probe.count(text)
    usage = await probe.usage(text, 1)
    return usage[0] - counted if usage is not None and counted else None


async def _prepare_estimates(probe: _Probe, texts: tuple[Text, ...], obeys_ignore_eos: bool) -> Prepared:
    """Two lengths of each kind of text: the slope is characters per token, the offset is the template."""
    writers: dict[Text, PromptWriter] = {}
    offsets = []
    for kind in texts:
        short, long = (
            "".join(islice(text_blocks(kind, f"length {chars}"), 200))[:chars].strip()
            for chars in (_SHORT_CHARS, _LONG_CHARS)
        )
        usages = [await probe.usage(text, 1) for text in (short, long)]
        if usages[0] is None or usages[1] is None or usages[1][0] <= usages[0][0]:
            raise FiresteelError("the server does not report the number of prompt tokens")
        chars_per_token = (len(long) - len(short)) / (usages[1][0] - usages[0][0])
        offsets.append(usages[0][0] - len(short) / chars_per_token)
        writers[kind] = PromptWriter(_estimate(chars_per_token), {kind: chars_per_token})
    probe.notes.append(
        "the server has no /tokenize: prompts are within about 10 % of their lengths; `usage` is exact"
    )
    template = max(0, round(min(offsets)))
    return Prepared(writers, template, False, obeys_ignore_eos, probe.extra, 0.15, tuple(probe.notes))


def _estimate(chars_per_token: float) -> Count:
    async def count(text: str) -> int:
        return round(len(text) / chars_per_token)

    return count
