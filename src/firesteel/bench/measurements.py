"""Points, samples, figures and runs: the values that the parts of `bench` exchange, and their JSON.

Field names are the keys of the stored runs. A document is `{"firesteel_run": 2, "run": {...},
"samples": [...]}`, in the history and in a file with one run. Fields that a newer firesteel added are
ignored; a field of the wrong type is a UsageError that names its place. What is read here may be displayed,
so its text is made printable. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from firesteel.errors import UsageError, printable, printable_json
from firesteel.launch import Text
from firesteel.values import InvalidValue, Value, from_json, plain

Wrong = Literal[
    "http", "refused", "dropped", "stalled", "garbled", "no usage", "wrong usage", "short", "late", "unsent"
]
"""http: a status other than 200. refused: no connection. dropped: the stream ended early. stalled: no data
for too long. garbled: not the protocol. wrong usage: an impossible count. short: fewer tokens than asked
for, although the request forbids an early end. late: in an open loop, the client itself sent it too late.
unsent: too many requests were open, so this one was never sent."""


class Point(Value):
    """One load to measure: number of users, prompt size, answer size."""

    shape: str
    """A name in `data/bench/shapes.yaml`: `single`, `sweep`, `depth`, `agent`, `rag`, `burst`, `open`."""
    text: Text = "prose"
    users: int = 1
    """Concurrent streams, each of which asks again when it is answered; in an open loop, the maximum."""
    prompt_tokens: int = 512
    """New tokens in each request, after the shared prefix."""
    answer_tokens: int = 128
    shared_tokens: int = 0
    """Length of a prefix that all requests of this point share."""
    turns: int = 1
    """Requests per conversation; each carries the whole conversation before it."""
    rate_per_s: float | None = None
    """Open loop: requests arrive at this rate, answered or not. None: each user asks when answered."""
    prompts: str = ""
    """Name and digest of a file with prompts of the user's own; `prompt_tokens` is about their mean. Empty:
    generated."""

    @property
    def depth(self) -> int:
        return self.shared_tokens + self.prompt_tokens

    @property
    def text_label(self) -> str:
        """The kind of text, or the file that it comes from."""
        return self.prompts or self.text


class RequestSample(Value):
    """One request as the client saw it. Times are seconds since it was sent."""

    point: int
    """Index into the points of the run."""
    repetition: int
    started_s: float
    """On the clock of the run."""
    first_s: float | None = None
    """Until the first chunk with text (reasoning or content)."""
    last_s: float | None = None
    """Until the last such chunk."""
    total_s: float = 0.0
    gaps_s: tuple[float, ...] = ()
    """Between chunks with text."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    is_cold: bool = False
    """Part of the first repetition of its point; figures of a warm server leave it out."""
    wrong: Wrong | None = None
    why: str = ""
    finish: str | None = None
    text_hash: str = ""
    """Hash of the whole answer, to compare answers at temperature 0."""
    server_decode_tokens_per_s: float | None = None
    server_prefill_tokens_per_s: float | None = None
    """The engine's own rates (`timings` of llama.cpp), to check ours against."""
    late_s: float = 0.0
    """How long after its due time it was sent; its user waits this long as well."""
    queued_s: float = 0.0
    """The part of `late_s` spent waiting for a free slot or a connection: the server's fault, not the
    client's."""
    stream: int | None = None
    """Index of the user who asked; None: every user asked once."""
    first_tokens: int = 1
    """Tokens in the first chunk with text; more than one where an engine buffers or hides reasoning."""
    hidden_tokens: int = 0
    """Tokens that `usage` counts and no chunk showed: reasoning without text."""
    client_late_s: float = 0.0
    """How late the client read its clock while the load of this repetition lasted (p99)."""


class MeasuredFigure(Value):
    """A measured number with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """As a share of the value."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0


class PointFigures(Value):
    """The results of one point. None means unknown, never a guess."""

    point: Point
    samples: int
    wrong: Mapping[str, int] = {}
    decode_tokens_per_s: MeasuredFigure | None = None
    """Of one user: tokens after the first, over the time that they took."""
    total_tokens_per_s: MeasuredFigure | None = None
    """Of all users together, over the time that the point was under load."""
    prefill_tokens_per_s: MeasuredFigure | None = None
    ttft_ms: Mapping[str, float] = {}
    """`p50`, `p90`, `p99`, `mean`."""
    inter_token_ms: Mapping[str, float] = {}
    time_per_output_token_ms: Mapping[str, float] = {}
    goodput_per_s: float | None = None
    """Requests per second that met the target."""
    bandwidth_share: float | None = None
    """Share of the memory bandwidth in use, where the plan knows the bytes per token."""
    joules_per_token: float | None = None
    cached_share: float | None = None
    accepted_per_step: float | None = None
    ttft_mean_ms: MeasuredFigure | None = None
    repetitions: int = 0
    """How often the point was under load; the observations behind the intervals."""
    cold: Mapping[str, float] = {}
    """`ttft_ms` and `decode_tokens_per_s` of the first repetition, which the other figures leave out."""
    server: Mapping[str, float] = {}
    """The engine's own `decode_tokens_per_s` and `prefill_tokens_per_s` of the same requests, if it reports
    them."""
    kv_usage: float | None = None
    """Highest observed use of the KV cache, 0 to 1."""
    preemptions: int | None = None
    notes: tuple[str, ...] = ()
    """What a reader must know before trusting the figures."""


LoadKind = Literal["users", "requests per second"]


class FoundLoad(Value):
    """The highest load that holds a target (`settings.target`), as far as it is known."""

    kind: LoadKind
    holds: float | None = None
    """The highest that certainly holds it; None: none does."""
    misses: float | None = None
    """The lowest that certainly does not; None: none was seen."""
    unclear: tuple[float, ...] = ()
    """Loads below that which were measured and are unclear: their intervals contain the target."""
    is_final: bool = True
    """False: time was up."""
    why: str = ""
    """What was measured at the lowest load that does not certainly hold it."""


class RequestSettings(Value):
    """How requests were made. Figures are comparable only if these are equal."""

    temperature: float | None = 0.0
    """None: unknown, as in result files of other tools."""
    thinking: bool | None = None
    """None: the model has no such switch, or its default was kept."""
    max_num_seqs: int | None = None
    seed: int = 0
    ignores_eos: bool = True
    target: Mapping[str, float] = {}
    """Limits that count as goodput: `ttft_ms`, `inter_token_ms`."""


class Subject(Value):
    """The server that was measured."""

    url: str
    model: str
    engine: str | None = None
    version: str | None = None
    launch_key: str | None = None
    launch: Mapping[str, Any] = {}
    image_digest: str | None = None
    host: Mapping[str, Any] = {}
    plan: Mapping[str, Any] = {}
    """The prediction: `decode_tokens_per_s`, `prefill_tokens_per_s` and `ttft_ms` as bands, bytes per token,
    bandwidth."""


class BenchRun(Value):
    id: str
    began: str
    """UTC, ISO 8601."""
    subject: Subject
    settings: RequestSettings
    points: tuple[Point, ...]
    figures: tuple[PointFigures, ...] = ()
    is_whole: bool = False
    """False: stopped before every point was measured; `--resume` continues it."""
    client: Mapping[str, float] = {}
    """The client's own cost: `p99_lag_ms` under load, `machine_p99_lag_ms` of the machine, `cpu_share`."""
    beside: Mapping[str, Any] = {}
    """Summaries of what the sampler saw: clocks, power, temperature, memory, engine metrics."""
    notes: tuple[str, ...] = ()
    limits: Mapping[str, float] = {}
    """`budget_s` and `precision` of the request, for `--resume`; empty: unknown."""
    found: tuple[FoundLoad, ...] = ()
    """What `bench --find` found; empty: it did not search."""


# --- the context of a point ---

SHARE_LOW, SHARE_HIGH = 0.45, 0.95
"""Share of the bandwidth that decode of one user reached in 222 published runs on a GB10; outside of it,
something is wrong."""
_MAX_SHARE_DEPTH = 4096
"""Depth up to which the plan's bytes per token, given for about a thousand tokens, are close enough."""


class PointContext(Value):
    """What is known about a point besides its samples; None: unknown."""

    plan: Mapping[str, Any] = {}
    target: Mapping[str, float] = {}
    watts: float | None = None
    accepted_per_step: float | None = None
    cached_share: float | None = None
    """From the engine's counters; `usage` takes precedence."""
    kv_usage: float | None = None
    preemptions: int | None = None
    drafts: bool = False
    is_one_gpu: bool = True
    """The usual bandwidth share is that of one GB10; a CPU reaches less, and so do several hosts, which wait
    for each other. That is not a fault."""

    @classmethod
    def of(cls, subject: Subject, settings: RequestSettings) -> PointContext:
        return cls(
            plan=subject.plan,
            target=settings.target,
            drafts=bool(subject.plan.get("drafts")),
            is_one_gpu=subject.host.get("gpus") not in ([], ()) and (subject.launch.get("sparks") or 1) == 1,
        )


def bandwidth_share(point: Point, decode: MeasuredFigure | None, context: PointContext) -> float | None:
    """Steps per second x bytes per step / bandwidth. With speculation, a step gives several tokens."""
    step_bytes, bandwidth = context.plan.get("bytes_per_token"), context.plan.get("bandwidth_bytes_per_s")
    if decode is None or not step_bytes or not bandwidth:
        return None
    if point.users != 1 or point.depth > _MAX_SHARE_DEPTH:
        return None
    if context.drafts and context.accepted_per_step is None:
        return None
    return float(decode.value / (context.accepted_per_step or 1.0) * step_bytes / bandwidth)


# --- JSON ---

FORM = 2
OWN = "measured here"
_PRINTED = "firesteel.bench/1"
MAX_SAMPLES = 200_000
T = TypeVar("T")


class StoredRun(Value):
    """A run with its samples, if there are any, and its origin."""

    run: BenchRun
    samples: tuple[RequestSample, ...] = ()
    origin: str = OWN
    """Otherwise `reported`: from a file of another machine or another tool."""
    source: str = ""
    """The file of a reported run."""

    @property
    def is_own(self) -> bool:
        return self.origin == OWN


def to_json(value: BenchRun | RequestSample | Point | PointFigures) -> str:
    return json.dumps(plain(value), separators=(",", ":"))


def to_document(stored: StoredRun) -> dict[str, Any]:
    return {
        "firesteel_run": FORM,
        "run": plain(stored.run),
        "samples": [plain(sample) for sample in stored.samples],
    }


def is_document(value: object) -> bool:
    """Whether it is ours: an exported run, or the output of `firesteel bench --json`."""
    return isinstance(value, Mapping) and ("firesteel_run" in value or value.get("document") == _PRINTED)


def from_document(document: Mapping[str, Any], where: str) -> StoredRun:
    source = printable(where)
    if document.get("document") == _PRINTED:
        return StoredRun(validate_run(document, where), (), "reported", source)
    form = document.get("firesteel_run")
    if form != FORM:
        raise UsageError(
            f"{where}: a run in the form {str(form)[:20]}; this firesteel reads {FORM}",
            next="the newest firesteel, on the machine where it is read",
        )
    samples = document.get("samples", [])
    if not isinstance(samples, list) or len(samples) > MAX_SAMPLES:
        raise UsageError(
            f"{where}: `samples` must be a list of at most {MAX_SAMPLES:,}", next=f"head -c 300 {where}"
        )
    run = validate_run(document.get("run"), where)
    checked = (validate_sample(sample, f"{where}: samples[{index}]") for index, sample in enumerate(samples))
    return StoredRun(run, tuple(checked), "reported", source)


def validate_run(value: object, where: str) -> BenchRun:
    return _validate(BenchRun, value, where)


def validate_sample(value: object, where: str) -> RequestSample:
    return _validate(RequestSample, value, where)


def load_json(text: str, where: str) -> Any:
    """JSON from any source; a UsageError if it is broken or nested too deep."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as error:
        line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"{where} is not JSON{line}", next=f"head -c 300 {where}") from error


def parse_json(text: str) -> Any:
    """Like `json.loads`, with printable text. Plain ASCII without escapes needs no cleaning."""
    value = json.loads(text)
    return value if text.isascii() and "\\" not in text and "\x7f" not in text else printable_json(value)


def _validate(kind: type[T], value: object, where: str) -> T:
    try:
        return from_json(kind, value)
    except (InvalidValue, RecursionError) as error:
        raise invalid(error, where) from error


def invalid(error: InvalidValue | RecursionError, where: str) -> UsageError:
    """The first problem of a file, with its place."""
    what = str(error) if isinstance(error, InvalidValue) else "nested too deep"
    return UsageError(f"{where}: {what}", next="firesteel bench export, for an example")
