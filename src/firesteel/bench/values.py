"""What passes between the parts of `bench`: points, samples, figures, runs. Plain values, JSON-shaped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Text = Literal["code", "prose", "json", "math"]
Wrong = Literal[
    "http", "refused", "dropped", "stalled", "garbled", "no usage", "wrong usage", "short", "late", "unsent"
]
"""http: a status that is not 200. refused: no connection. dropped: it ended without its end. stalled: nothing
came for too long. garbled: not the protocol. wrong usage: a count that cannot be. short: fewer tokens than
were asked for, though it was told to go on. late: it began after its time in an open-loop load because the
client itself was behind. unsent: so many were open that its turn never came."""


@dataclass(frozen=True, slots=True)
class Point:
    """One thing to measure: so many users, such prompts, such answers."""

    shape: str
    """Of `data/bench/shapes.yaml`: `single`, `sweep`, `depth`, `agent`, `rag`, `burst`, `open`."""
    text: Text = "prose"
    users: int = 1
    """Streams at once, each asking again when it is answered; in an open-loop load, the most that may be."""
    prompt_tokens: int = 512
    """New ones in each request, after the shared prefix."""
    answer_tokens: int = 128
    shared_tokens: int = 0
    """A prefix that all requests of this point share."""
    turns: int = 1
    """Requests of one conversation, each with all before it."""
    rate_per_s: float | None = None
    """Open loop: requests arrive so often whatever becomes of them. None: each user asks when answered."""

    @property
    def depth(self) -> int:
        return self.shared_tokens + self.prompt_tokens


@dataclass(frozen=True, slots=True)
class RequestSample:
    """One request, as seen by the client. Times are seconds from when it was sent."""

    point: int
    """Which of the run's points."""
    repetition: int
    started_s: float
    """On the run's clock."""
    first_s: float | None = None
    """To the first chunk that had words in it (reasoning or content)."""
    last_s: float | None = None
    """To the last such chunk."""
    total_s: float = 0.0
    gaps_s: tuple[float, ...] = ()
    """Between chunks that had words in them."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    is_cold: bool = False
    """The first of its point after a start or a flush; warm figures leave it out."""
    wrong: Wrong | None = None
    why: str = ""
    finish: str | None = None
    text_hash: str = ""
    """Of the whole answer, to hold answers at temperature 0 against each other."""
    server_decode_tps: float | None = None
    server_prefill_tps: float | None = None
    """The engine's own (`timings` of llama.cpp), to hold ours against."""
    late_s: float = 0.0
    """How much later than meant it was sent; who waits for a first word waits this long too."""
    queued_s: float = 0.0
    """Of that, what it waited for room among as many as may be open, and for a connection: the server's
    doing, not the client's."""
    stream: int | None = None
    """Which of the users asked; None: each asked once."""
    first_tokens: int = 1
    """In the first chunk with words. More than one where an engine gathers, or hides its first thoughts."""
    hidden_tokens: int = 0
    """Counted by `usage` and never shown: thoughts without words of their own."""


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """A measured number with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """As a share of the value."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0


@dataclass(frozen=True, slots=True)
class PointFigures:
    """What one point came to; None: not known, never a guess."""

    point: Point
    samples: int
    wrong: Mapping[str, int] = field(default_factory=dict)
    decode_tps: MeasuredFigure | None = None
    """Of one user: tokens after the first, by the time they took."""
    total_tps: MeasuredFigure | None = None
    """All users together, over the time that the point was under load."""
    prefill_tps: MeasuredFigure | None = None
    ttft_ms: Mapping[str, float] = field(default_factory=dict)
    """`p50`, `p90`, `p99`, `mean`."""
    inter_token_ms: Mapping[str, float] = field(default_factory=dict)
    time_per_output_token_ms: Mapping[str, float] = field(default_factory=dict)
    goodput_per_s: float | None = None
    """Requests a second that met the stated target."""
    bandwidth_share: float | None = None
    """Of what the memory could give, where the plan knows the bytes of a token."""
    joules_per_token: float | None = None
    cached_share: float | None = None
    accepted_per_step: float | None = None
    ttft_mean_ms: MeasuredFigure | None = None
    visits: int = 0
    """How often the point was under load; what intervals are made of."""
    cold: Mapping[str, float] = field(default_factory=dict)
    """`ttft_ms` and `decode_tps` of the first visit, which the figures leave out."""
    server: Mapping[str, float] = field(default_factory=dict)
    """The engine's own `decode_tps` and `prefill_tps` over the same requests, where it tells."""
    kv_usage: float | None = None
    """The most of the cache that was seen in use, 0 to 1."""
    preemptions: int | None = None
    notes: tuple[str, ...] = ()
    """What a reader must know before believing it."""


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """How it was asked: without this a figure cannot be compared."""

    temperature: float | None = 0.0
    """None: not known, as in the files of other tools."""
    thinking: bool | None = None
    """None: the model has no such switch, or it was left as it is."""
    max_num_seqs: int | None = None
    seed: int = 0
    ignores_eos: bool = True
    target: Mapping[str, float] = field(default_factory=dict)
    """Goodput's: `ttft_ms`, `inter_token_ms`."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured."""

    url: str
    model: str
    engine: str | None = None
    version: str | None = None
    launch_key: str | None = None
    launch: Mapping[str, Any] = field(default_factory=dict)
    image_digest: str | None = None
    host: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What was predicted: `decode_tps`, `ttft_ms`, `prefill_tps` with bands, bytes of a token, bandwidth."""


@dataclass(frozen=True, slots=True)
class BenchRun:
    id: str
    began: str
    """UTC, ISO."""
    subject: Subject
    settings: RequestSettings
    points: tuple[Point, ...]
    figures: tuple[PointFigures, ...] = ()
    is_whole: bool = False
    """False: stopped before its budget or precision was reached; it can go on."""
    client: Mapping[str, float] = field(default_factory=dict)
    """The client's own cost: `p99_lag_ms`, `cpu_share`."""
    beside: Mapping[str, Any] = field(default_factory=dict)
    """What the sampler saw: clocks, power, heat, memory, engine metrics, as summaries."""
    notes: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    """`budget_s` and `precision` as they were asked for, to go on with; empty: not known."""
