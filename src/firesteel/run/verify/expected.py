"""What a launch promised, as far as a running server can be held to it: made from a proposal, purely.

`up` makes it and keeps it beside the service as `expect.json`, so that `verify` asks the same of a service
that has run for a week. Of a server that firesteel did not start nothing is known, and `Expect()` says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from firesteel import engines
from firesteel.edge.files.home import write_text
from firesteel.engines import introspection
from firesteel.facts.model.tensors import Role, Weights
from firesteel.launch import EngineName, FlagValue, Launch
from firesteel.planner import Band, Plan
from firesteel.rules import Proposal

Size = Literal["unknown", "tiny", "small", "able"]
TINY_BELOW, ABLE_FROM = 1_000_000_000, 4_000_000_000
"""Below the first a model may miss any fact; from the second on it may miss none that a child knows."""
_SAMPLING = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "repeat_penalty", "seed",
    }
)  # fmt: skip
_BITS = (
    (r"f32", 32.0), (r"f16|bf16|16-bit", 16.0), (r"q8|fp8|f8|int8|w8", 8.25), (r"q6", 6.6), (r"q5", 5.6),
    (r"q3", 3.5), (r"q2", 2.7), (r"q4|fp4|int4|w4|4-bit", 4.6),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expected:
    """None and empty: nobody promised that, or nobody knows."""

    engine: EngineName | None = None
    version: str | None = None
    parameters: int | None = None
    """Of the language model, all experts counted."""
    context: int | None = None
    """Tokens that one request may use."""
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    requests: Mapping[str, Any] = field(default_factory=dict)
    """What the model's makers advise to send with each request, as a body carries it."""
    tool_requests: Mapping[str, Any] = field(default_factory=dict)
    """The same for requests with tools."""
    thinking_request: Mapping[str, Any] = field(default_factory=dict)
    """What makes it think, where it does not by itself."""
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Flags that choose kernels: `moe-backend` -> `marlin`."""
    drafts: str | None = None
    """How it speculates: `mtp`, `dflash`; None: it does not."""
    decode_tokens_per_s: Band | None = None
    drafted_tokens_per_s: Band | None = None
    """On prose, with its drafter."""
    prefill_tokens_per_s: Band | None = None
    kv_tokens: tuple[int, int] | None = None
    """The fewest and the most that the engine should say its cache holds."""
    is_cpu: bool = False
    """Nothing is compiled on first use, and other programs share the cores."""

    @property
    def size(self) -> Size:
        if self.parameters is None:
            return "unknown"
        return "tiny" if self.parameters < TINY_BELOW else "small" if self.parameters < ABLE_FROM else "able"


def expected(proposal: Proposal) -> Expected:
    plan = proposal.plan
    launch, speed = plan.launch, plan.speed
    said = proposal.recipe.requests if proposal.recipe else {}
    prose = next((each for each in speed.drafted if each.text == "prose"), None) if speed else None
    return Expected(
        engine=launch.engine,
        version=launch.version,
        parameters=_parameters(proposal),
        context=plan.cache.context,
        tool_parser=_parser(launch, "tool-call-parser") or ("asked for" if "for_tools" in said else None),
        reasoning_parser=_parser(launch, "reasoning-parser"),
        requests=_body(said),
        tool_requests=_body(said) | _body(_map(said.get("for_tools"))),
        thinking_request=_thinking(_map(said.get("per_request"))),
        kernels=_kernels(launch),
        drafts=_drafts(plan),
        decode_tokens_per_s=speed.decode_tokens_per_s if speed else None,
        drafted_tokens_per_s=prose.decode_tokens_per_s if prose else None,
        prefill_tokens_per_s=speed.prefill.tokens_per_s if speed and speed.prefill else None,
        kv_tokens=_kv_tokens(plan),
        is_cpu=launch.container is None or launch.container.gpus is None,
    )


def as_plain(expected: Expected) -> dict[str, Any]:
    return asdict(expected)


def write_expected(folder: Path, expected: Expected) -> None:
    write_text(folder / "expect.json", json.dumps(as_plain(expected), indent=1))


def stored_expected(folder: Path) -> Expected:
    """What was promised when it was started; nothing, where no such file is."""
    try:
        plain = json.loads((folder / "expect.json").read_text("utf-8"))
    except (OSError, ValueError):
        return Expected()
    return read_expected(plain) if isinstance(plain, dict) else Expected()


def read_expected(plain: Mapping[str, object]) -> Expected:
    """The inverse of `as_plain`; what cannot be read promises nothing."""
    try:
        return TypeAdapter(Expected).validate_python(plain)
    except ValidationError:
        return Expected()


def _parameters(proposal: Proposal) -> int | None:
    known = proposal.model.parameters if proposal.model else None
    return known or estimate_parameters(proposal.plan.weights)


def estimate_parameters(weights: Weights) -> int | None:
    """From their bytes and formats, to a tenth or so: enough to tell small from large."""
    bits = [
        (size * 8, next((each for pattern, each in _BITS if re.search(pattern, form.lower())), 8.0))
        for (role, form), size in weights.bytes_by_format.items()
        if role not in (Role.TOWER, Role.DRAFTER)
    ]
    return round(sum(size / each for size, each in bits)) or None


def _parser(launch: Launch, flag: str) -> str | None:
    value = launch.flags.get(flag)
    return value if isinstance(value, str) else None


def _body(said: Mapping[str, Any]) -> dict[str, Any]:
    """What of a recipe's `requests` a request's body takes; the rest is for people."""
    return {key: value for key, value in said.items() if key in _SAMPLING} | _map(said.get("per_request"))


def _thinking(per_request: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe that switches thoughts off for each request still has a model that thinks without that."""
    template = _map(per_request.get("chat_template_kwargs"))
    return {} if template.get("enable_thinking") is False else dict(per_request)


def _map(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _kernels(launch: Launch) -> dict[str, str]:
    flags: Iterable[tuple[str, FlagValue]] = engines.written_out(launch).items()
    known = introspection.kernel_flags(launch.engine)
    return {
        name: value for name, value in flags if name in known and isinstance(value, str) and value != "auto"
    }


def _drafts(plan: Plan) -> str | None:
    drafted = plan.speed.drafted if plan.speed else ()
    config = plan.launch.flags.get("speculative-config")
    method = config.get("method") if isinstance(config, dict) else None
    if drafted:
        return drafted[0].why.partition(":")[0]
    return str(method) if method else None


def _kv_tokens(plan: Plan) -> tuple[int, int] | None:
    tokens = [each.tokens for each in plan.printed if not each.refused]
    return (min(tokens), max(tokens)) if tokens else None
