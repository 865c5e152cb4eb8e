"""The values that the parts of `bench` exchange: points, samples, figures, runs.

All are frozen dataclasses of plain JSON types, and their field names are the keys of the stored runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from firesteel.launch import Text
from firesteel.values import Value

Wrong = Literal[
    "http", "refused", "dropped", "stalled", "garbled", "no usage", "wrong usage", "short", "late", "unsent"
]
"""http: a status other than 200. refused: no connection. dropped: the stream ended early. stalled: no data
for too long. garbled: not the protocol. wrong usage: an impossible count. short: fewer tokens than asked
for, although the server was told to continue. late: in an open loop, the client itself sent it too late.
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
    """The highest load that holds a target (`settings.target`), as far as it can be told."""

    kind: LoadKind
    holds: float | None = None
    """The highest that certainly holds it; None: none does."""
    misses: float | None = None
    """The lowest that certainly does not; None: none was seen."""
    unclear: tuple[float, ...] = ()
    """Loads below that which were measured and cannot be told: their intervals contain the target."""
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
    """The client's own cost: `p99_lag_ms` under load, `machine_p99_lag_ms` beside it, `cpu_share`."""
    beside: Mapping[str, Any] = {}
    """Summaries of what the sampler saw: clocks, power, temperature, memory, engine metrics."""
    notes: tuple[str, ...] = ()
    limits: Mapping[str, float] = {}
    """`budget_s` and `precision` of the request, for `--resume`; empty: unknown."""
    found: tuple[FoundLoad, ...] = ()
    """What `bench --find` found; empty: it did not search."""
