"""What a plan expects of the running server, as far as a client can check it. Derived from a proposal. Pure.

`up` stores it as `expect.json` in the service's folder, so that `verify` can check a service that has run for
a week against the same expectations. `Expected()` expects nothing: it is for servers that firesteel did not
start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import field

from firesteel.catalog.recipe import RecipeRequests
from firesteel.edge import home
from firesteel.engines import metrics
from firesteel.engines.engine import expand_shortcuts
from firesteel.facts.model.tensors import Role, Weights
from firesteel.launch import EngineName, FlagValue, Launch, Task
from firesteel.planner.plan import Plan, PlanSummary, summarize
from firesteel.planner.propose import Proposal
from firesteel.values import InvalidValue, Value, from_json

Size = Literal["unknown", "tiny", "small", "able"]
TINY_BELOW, ABLE_FROM = 1_000_000_000, 4_000_000_000
"""Parameters. A tiny model may get any fact wrong; an able one must know what a child knows."""
_BITS = (
    (r"f32", 32.0), (r"f16|bf16|16-bit", 16.0), (r"q8|fp8|f8|int8|w8", 8.25), (r"q6", 6.6), (r"q5", 5.6),
    (r"q3", 3.5), (r"q2", 2.7), (r"q4|fp4|int4|w4|4-bit", 4.6),
)  # fmt: skip


class Expected(Value):
    """None or empty: not expected, or not known."""

    engine: EngineName | None = None
    version: str | None = None
    parameters: int | None = None
    """Of the language model, all experts counted."""
    context: int | None = None
    """Tokens that one request may use."""
    users: int | None = None
    """Planned to be served at once."""
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    requests: Mapping[str, Any] = {}
    """Request settings that the model's makers recommend, as in a request body."""
    tool_requests: Mapping[str, Any] = {}
    """The same, for requests with tools."""
    thinking_request: Mapping[str, Any] = {}
    """Request settings that turn thinking on, where it is off by default."""
    kernels: Mapping[str, str] = {}
    """Flags that select kernels: `moe-backend` -> `marlin`."""
    drafts: str | None = None
    """Speculation method: `mtp`, `dflash`; None: no speculation."""
    plan: PlanSummary = field(default_factory=PlanSummary)
    kv_tokens: tuple[int, int] | None = None
    """The smallest and the largest KV cache size that the engine should report."""
    task: Task = "chat"
    takes: tuple[str, ...] = ()
    """In addition to text: `image`, `audio`."""
    embedding_size: int | None = None
    """Numbers of a vector."""
    adapters: tuple[str, ...] = ()
    """LoRA, in the order of the engine's flags."""
    is_cpu: bool = False
    """Nothing is compiled at first use, and other programs share the cores."""

    @property
    def size(self) -> Size:
        if self.parameters is None:
            return "unknown"
        return "tiny" if self.parameters < TINY_BELOW else "small" if self.parameters < ABLE_FROM else "able"


def expected(proposal: Proposal) -> Expected:
    plan = proposal.plan
    launch = plan.launch
    requests = proposal.recipe.requests if proposal.recipe else RecipeRequests()
    counted = proposal.model.parameters if proposal.model else None
    # A recipe that turns thinking off in every request has a model that thinks by default.
    thinks_by_default = requests.template.get("enable_thinking") is False
    tokens = [report.tokens for report in plan.printed if not report.refused]
    return Expected(
        engine=launch.engine,
        version=launch.version,
        parameters=counted or estimate_parameters(plan.weights),
        context=plan.cache.context,
        users=plan.cache.users,
        tool_parser=_parser(launch, "tool-call-parser") or ("asked for" if requests.for_tools else None),
        reasoning_parser=_parser(launch, "reasoning-parser"),
        requests=requests.body,
        tool_requests=requests.tool_body,
        thinking_request={} if thinks_by_default else dict(requests.per_request),
        kernels=_kernels(launch),
        drafts=_drafts(plan),
        plan=summarize(plan),
        kv_tokens=(min(tokens), max(tokens)) if tokens else None,
        task=_task(launch),
        takes=_takes(proposal),
        embedding_size=plan.shape.hidden_size if _task(launch) == "embeddings" else None,
        adapters=tuple(adapter.name for adapter in proposal.adapters),
        is_cpu=not launch.uses_gpu,
    )


def write_expected(folder: Path, expected: Expected) -> None:
    home.write_state(folder / "expect.json", expected)


def stored_expected(folder: Path) -> Expected:
    """The expectations of the start; none if the file is missing or damaged."""
    return read_expected(home.read_json(folder / "expect.json"))


def read_expected(document: object) -> Expected:
    """What cannot be read expects nothing."""
    try:
        return from_json(Expected, document)
    except InvalidValue:
        return Expected()


def estimate_parameters(weights: Weights) -> int | None:
    """From the bytes in each format, to about 10 %: enough to tell small models from large ones."""
    count = 0.0
    for (role, format_name), size in weights.bytes_by_format.items():
        if role not in (Role.TOWER, Role.DRAFTER):
            matches = (bits for pattern, bits in _BITS if re.search(pattern, format_name.lower()))
            count += size * 8 / next(matches, 8.0)
    return round(count) or None


def _parser(launch: Launch, flag: str) -> str | None:
    value = launch.flags.get(flag)
    return value if isinstance(value, str) else None


def _task(launch: Launch) -> Task:
    """By the flags that turn a server of chats into another one."""
    flags = launch.flags
    if "rerank" in flags or "reranking" in flags or flags.get("task") == "score":
        return "rerank"
    kinds = (flags.get("task"), flags.get("convert"), flags.get("is-embedding") and "embed")
    is_embedding = bool({"embed", "embedding"} & {kind for kind in kinds if isinstance(kind, str)})
    return "embeddings" if is_embedding or flags.get("embeddings") or flags.get("embedding") else "chat"


def _takes(proposal: Proposal) -> tuple[str, ...]:
    """What the model takes and the launch leaves on."""
    launch, model = proposal.plan.launch, proposal.model
    if model is None or launch.flags.get("language-model-only") is True:
        return ()
    if launch.engine == "llamacpp" and not {"mmproj", "mmproj-url"} & launch.flags.keys():
        return ()
    limits = launch.flags.get("limit-mm-per-prompt")
    off = {kind for kind, most in limits.items() if most == 0} if isinstance(limits, dict) else set()
    return tuple(kind for kind in ("image", "audio") if kind in model.modality and kind not in off)


def _kernels(launch: Launch) -> dict[str, str]:
    flags: Iterable[tuple[str, FlagValue]] = expand_shortcuts(launch).items()
    known = metrics.kernel_flags(launch.engine)
    return {
        name: value for name, value in flags if name in known and isinstance(value, str) and value != "auto"
    }


def _drafts(plan: Plan) -> str | None:
    drafted = plan.speed.drafted if plan.speed else ()
    config = plan.launch.flags.get("speculative-config")
    method = config.get("method") if isinstance(config, dict) else None
    if drafted:
        return drafted[0].explanation.partition(":")[0]
    return str(method) if method else None
