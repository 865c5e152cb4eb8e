"""The JSON that `--json` prints: one document a command, each with its schema in `docs/json.md`.

These shapes are a promise to scripts: fields are added, never renamed, and `document` counts up when a
promise must break. Bytes are ints, speeds are tokens a second, bands are {low, expected, high}.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BandJson(Document):
    low: float
    expected: float
    high: float


class HostJson(Document):
    name: str
    title: str
    hardware: str | None
    cores: int
    memory_total_bytes: int
    memory_available_bytes: int
    room_bytes: int
    bandwidth_bytes_per_s: float | None
    bandwidth_kind: Literal["measured", "reported"]
    gpus: list[str]


class PartJson(Document):
    name: str
    bytes: BandJson
    basis: str
    why: str


class MemoryJson(Document):
    verdict: Literal["fits", "tight", "does not fit"]
    needed_bytes: BandJson
    room_bytes: int
    parts: list[PartJson]


class CacheGroupJson(Document):
    kind: str
    layers: int
    block_tokens: int
    page_bytes: int


class PrintedJson(Document):
    """What vLLM prints at start: `GPU KV cache size` and `Maximum concurrency`."""

    tokens: int
    concurrency: str
    context: int
    num_blocks: int
    refused: bool
    largest_context: int | None
    """Where it is refused: the longest request that would fit."""


class CacheJson(Document):
    bytes: int
    bytes_per_token: int
    state_bytes: int
    context: int
    users: int
    dtype: str
    pool_bytes: int
    """What the engine is given for it."""
    block_bytes: int | None
    groups: list[CacheGroupJson]
    request_bytes: int | None
    """Of one request of the whole context."""
    least_bytes: int | None
    """The smallest cache that the engine starts with."""
    printed: list[PrintedJson]
    """One answer; the fewest and the most tokens where the release is not known; none for other engines."""
    unsure: str | None
    """Why these may not be the engine's own figures; null: they are."""


class DepthJson(Document):
    depth: int
    decode_tokens_per_s: BandJson


class CrowdJson(Document):
    users: int
    each_tokens_per_s: BandJson
    total_tokens_per_s: BandJson
    why: str


class DraftedJson(Document):
    text: str
    decode_tokens_per_s: BandJson
    why: str


class PrefillJson(Document):
    prompt_tokens: int
    tokens_per_s: BandJson
    ttft_ms: BandJson
    why: str


class PhaseJson(Document):
    name: str
    seconds: BandJson
    why: str


class SpeedJson(Document):
    decode_tokens_per_s: BandJson
    bound_tokens_per_s: float
    bytes_per_token: int
    bandwidth_bytes_per_s: float
    rung: Literal["measured here", "measured recipe", "measured model", "fitted", "roofline"]
    why: str
    sources: list[str]
    parts_ms: dict[str, float]
    """Where the time of one step goes."""
    at_depth: list[DepthJson]
    crowd: CrowdJson | None
    drafted: list[DraftedJson]
    """With the launch's own drafter, by kind of text."""
    prefill: PrefillJson | None
    start_up: list[PhaseJson]
    """The first start, phase by phase; empty: not known."""


class SourceJson(Document):
    url: str
    seen: str


class FindingJson(Document):
    rule: str
    level: Literal["stop", "warn", "note"]
    says: str
    instead: str | None
    saw: str
    file: str | None
    line: int | None
    column: int | None
    fixable: bool
    confidence: str
    sources: list[SourceJson]


class LaunchJson(Document):
    name: str
    model: str
    engine: str
    version: str | None
    image: str | None
    port: int
    sparks: int
    flags: dict[str, object]
    env: dict[str, str]
    argv: list[str]
    docker: str


class OtherJson(Document):
    name: str
    why: str


class PlanJson(Document):
    """`firesteel plan MODEL --json`"""

    document: Literal["firesteel.plan/1"] = "firesteel.plan/1"
    name: str
    model: str
    status: str
    can_run: bool
    host: HostJson
    memory: MemoryJson
    cache: CacheJson
    speed: SpeedJson | None
    findings: list[FindingJson]
    notes: list[str]
    launch: LaunchJson
    others: list[OtherJson]
    """The other ways to serve it, and why each came after."""


class CompareJson(Document):
    """`firesteel plan --compare MODEL MODEL --json`"""

    document: Literal["firesteel.compare/1"] = "firesteel.compare/1"
    plans: list[PlanJson]


class ModelRowJson(Document):
    name: str
    model: str
    title: str
    engine: str
    status: str
    verdict: Literal["fits", "tight", "does not fit"]
    can_run: bool
    needed_bytes: BandJson
    decode_tokens_per_s: BandJson | None
    speed_from: str | None
    weights_from: str
    quality: list[dict[str, object]]


class ModelsJson(Document):
    """`firesteel models --json`"""

    document: Literal["firesteel.models/1"] = "firesteel.models/1"
    host: HostJson
    models: list[ModelRowJson]


class AllowedJson(Document):
    finding: FindingJson
    reason: str


class FixedJson(Document):
    file: str
    rules: list[str]
    diff: str


class UnreadJson(Document):
    file: str
    why: str


class CheckJson(Document):
    """`firesteel check WHAT --json`"""

    document: Literal["firesteel.check/1"] = "firesteel.check/1"
    launches: int
    hardware: str | None
    files: list[str]
    findings: list[FindingJson]
    allowed: list[AllowedJson]
    """What an allow-comment speaks for."""
    fixed: list[FixedJson]
    """With --fix what was mended, with --diff what would be."""
    unread: list[UnreadJson]


class RuleJson(Document):
    """`firesteel check --explain RULE --json`"""

    document: Literal["firesteel.rule/1"] = "firesteel.rule/1"
    rule: str
    level: Literal["stop", "warn", "note"]
    says: str
    instead: str | None
    confidence: str
    hits: list[str]
    misses: list[str]
    sources: list[SourceJson]


class FactsSpanJson(Document):
    first: str
    last: str | None
    """None: to the newest release that is known."""
    level: Literal["stop", "warn", "note"] | None
    """None: no rule objects."""
    rules: list[str]


class FactsRowJson(Document):
    what: str
    guides: str
    now: str
    spans: list[FactsSpanJson]


class FactsJson(Document):
    """`firesteel facts TABLE --json`"""

    document: Literal["firesteel.facts/1"] = "firesteel.facts/1"
    table: str
    title: str
    rows: list[FactsRowJson]


class ComparedJson(Document):
    what: str
    unit: str
    planned: BandJson
    measured: float
    within: bool


class ProofJson(Document):
    name: str
    passed: bool
    saw: str
    level: Literal["gate", "note"] = "gate"
    """A failed gate fails the whole; a note only tells."""


class VerifyJson(Document):
    """`firesteel verify --json`"""

    document: Literal["firesteel.verify/1"] = "firesteel.verify/1"
    name: str
    verified: bool
    checks: list[ProofJson]


class UpJson(Document):
    """`firesteel up --json`"""

    document: Literal["firesteel.report/1"] = "firesteel.report/1"
    name: str
    url: str
    model: str
    engine: str
    version: str | None
    verified: bool
    already_running: bool
    checks: list[ProofJson]
    compared: list[ComparedJson]
    start_s: float
    first_token_ms: float
    log: str


class ReportsJson(Document):
    """`firesteel up -f FILE --json`"""

    document: Literal["firesteel.reports/1"] = "firesteel.reports/1"
    reports: list[UpJson]


class ServiceJson(Document):
    name: str
    phase: Literal[
        "starting", "ready", "stopping", "unkept", "dead", "not running", "answers", "does not answer"
    ]
    url: str
    pid: int | None
    started_at: float | None
    restarts: int
    at_boot: bool
    why: str | None
    next: str | None
    log: str | None


class GatewayJson(Document):
    url: str
    models: list[str]
    has_keys: bool
    pid: int


class PsJson(Document):
    """`firesteel ps --json`"""

    document: Literal["firesteel.ps/1"] = "firesteel.ps/1"
    services: list[ServiceJson]
    gateway: GatewayJson | None = None
    """Where `firesteel serve` answers, while it runs."""


class LogsJson(Document):
    """`firesteel logs --json`"""

    document: Literal["firesteel.logs/1"] = "firesteel.logs/1"
    name: str
    path: str
    lines: list[str]


class StepJson(Document):
    host: str
    command: list[str]
    env: dict[str, str]
    why: str
    undo: list[str] | None
    expects: str


class StepsJson(Document):
    """`firesteel up --dry-run --json`"""

    document: Literal["firesteel.steps/1"] = "firesteel.steps/1"
    name: str
    steps: list[StepJson]


class DoneJson(Document):
    """`firesteel down --json` and `firesteel pull --json`"""

    document: Literal["firesteel.done/1"] = "firesteel.done/1"
    done: list[str]


class RenderJson(Document):
    """`firesteel render MODEL --json`"""

    document: Literal["firesteel.render/1"] = "firesteel.render/1"
    name: str
    names: list[str]
    """Several in one Kubernetes manifest."""
    format: str
    text: str
    path: str | None
    """Where it was written."""


class ClientJson(Document):
    """`firesteel client NAME [MODEL] --json`"""

    document: Literal["firesteel.client/1"] = "firesteel.client/1"
    client: str
    title: str
    speaks: Literal["chat", "messages", "responses"]
    url: str
    model: str
    context: int | None
    output: int | None
    """The longest answer that the client is told to ask for."""
    key_variable: str | None
    """The variable that holds the key; null: none is asked for."""
    format: Literal["json", "toml", "yaml", "env"]
    text: str
    path: str | None
    """Where it belongs; null: it is told by variables."""
    written: bool
    backup: str | None
    """Where the file as it was before is kept."""
    taken: Literal["gateway", "service", "plan"]
    """What it is pointed at: `firesteel serve`, a service's own port, or where `up` would serve it."""
    notes: list[str]
    sources: list[SourceJson]


class LearnJson(Document):
    """`firesteel learn ENGINE VERSION --json`"""

    document: Literal["firesteel.learn/1"] = "firesteel.learn/1"
    engine: str
    version: str
    was_known: bool
    flags: int
    variables: int
    path: str | None


class LearnImageJson(Document):
    """`firesteel learn --image IMAGE --json`"""

    document: Literal["firesteel.learned-image/1"] = "firesteel.learned-image/1"
    image: str
    digests: list[str]
    engine: str
    version: str
    was_known: bool
    flags: int
    variables: int
    entrypoint: list[str] | None
    path: str | None


class KnownJson(Document):
    """`firesteel learn ENGINE --list --json`"""

    document: Literal["firesteel.known/1"] = "firesteel.known/1"
    engine: str
    versions: list[str]


class WelcomeJson(Document):
    """`firesteel --json`"""

    document: Literal["firesteel.welcome/1"] = "firesteel.welcome/1"
    host: HostJson
    fits: list[str]
    best: str | None
    running: list[ServiceJson]
    next: str


class WasteJson(Document):
    kind: str
    path: str
    bytes: int
    why: str


class PruneJson(Document):
    """`firesteel pull --prune --json`"""

    document: Literal["firesteel.prune/1"] = "firesteel.prune/1"
    waste: list[WasteJson]
    bytes: int
    removed: bool
    """False: only looked, or some could not be removed."""
    left: list[str]
    """What could not be removed: it belongs to somebody else."""


class CauseJson(Document):
    id: str
    kind: Literal["root", "trouble", "follows", "note"]
    says: str
    next: str | None
    host: bool
    """The machine lacks something; no change to the launch would help."""
    line: int
    text: str
    count: int
    confidence: str
    sources: list[SourceJson]


class FoldedJson(Document):
    """Harmless lines that look bad"""

    id: str
    says: str
    line: int
    count: int


class SuspectJson(Document):
    """The first error of a kind that is not known"""

    line: int
    text: str


class DiagnosisJson(Document):
    """`firesteel diagnose LOG --json`; `causes` has the likeliest first"""

    document: Literal["firesteel.diagnosis/1"] = "firesteel.diagnosis/1"
    log: str
    engine: str | None
    version: str | None
    state: Literal["failed", "healthy", "unfinished"]
    stage: str | None
    lines: int
    causes: list[CauseJson]
    follows: list[CauseJson]
    notes: list[CauseJson]
    folded: list[FoldedJson]
    suspect: SuspectJson | None


class KeyJson(Document):
    name: str
    id: str
    """How the sha256 of its token begins."""
    scope: Literal["inference", "admin"]
    models: list[str] | None
    """Null: all."""
    requests: str | None
    """At most this many: `60/m`."""
    tokens: str | None
    priority: int
    created: str


class KeyAddedJson(Document):
    """`firesteel key add NAME --json`"""

    document: Literal["firesteel.key-added/1"] = "firesteel.key-added/1"
    token: str
    """Told here once, and kept nowhere."""
    key: KeyJson
    path: str


class KeysJson(Document):
    """`firesteel key list --json`"""

    document: Literal["firesteel.keys-listed/1"] = "firesteel.keys-listed/1"
    keys: list[KeyJson]


class KeyRevokedJson(Document):
    """`firesteel key revoke NAME --json`"""

    document: Literal["firesteel.key-revoked/1"] = "firesteel.key-revoked/1"
    key: KeyJson


class PointJson(Document):
    shape: str
    text: Literal["code", "prose", "json", "math"]
    users: int
    prompt_tokens: int
    """New ones in each request, after the shared prefix."""
    answer_tokens: int
    shared_tokens: int
    turns: int
    rate_per_s: float | None


class FigureJson(Document):
    """A measured number with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int


class FiguresJson(Document):
    point: PointJson
    samples: int
    wrong: dict[str, int]
    """Requests that went wrong, by kind; none of them is in a figure."""
    decode_tokens_per_s: FigureJson | None
    total_tokens_per_s: FigureJson | None
    prefill_tokens_per_s: FigureJson | None
    ttft_ms: dict[str, float]
    inter_token_ms: dict[str, float]
    time_per_output_token_ms: dict[str, float]
    goodput_per_s: float | None
    bandwidth_share: float | None
    joules_per_token: float | None
    cached_share: float | None
    accepted_per_step: float | None
    ttft_mean_ms: FigureJson | None
    repetitions: int
    cold: dict[str, float]
    server: dict[str, float]
    kv_usage: float | None
    preemptions: int | None
    notes: list[str]


class SubjectJson(Document):
    url: str
    model: str
    engine: str | None
    version: str | None
    launch_key: str | None
    launch: dict[str, object]
    image_digest: str | None
    host: dict[str, object]
    plan: dict[str, object]


class SettingsJson(Document):
    temperature: float | None
    thinking: bool | None
    max_num_seqs: int | None
    seed: int
    ignores_eos: bool
    target: dict[str, float]


class BenchJson(Document):
    """`firesteel bench --json`"""

    document: Literal["firesteel.bench/1"] = "firesteel.bench/1"
    id: str
    began: str
    subject: SubjectJson
    settings: SettingsJson
    points: list[PointJson]
    figures: list[FiguresJson]
    is_whole: bool
    client: dict[str, float]
    beside: dict[str, object]
    notes: list[str]
    html: str | None
    """Where the report was written."""


class DifferenceJson(Document):
    """The second over the first, with its interval; `p`: how often chance alone shows as much."""

    ratio: float
    low: float
    high: float
    p: float
    verdict: Literal["faster", "slower", "no difference seen", "too few"]


class ComparedRowJson(Document):
    point: PointJson
    measure: Literal["decode", "total", "prefill", "TTFT"]
    unit: str
    first: FigureJson
    second: FigureJson
    difference: DifferenceJson


class WhyNotJson(Document):
    setting: str
    says: str


class AnswersJson(Document):
    compared: int
    equal: int


class RunComparisonJson(Document):
    """`firesteel compare RUN RUN --json` and `firesteel compare --ab`"""

    document: Literal["firesteel.compared/1"] = "firesteel.compared/1"
    first: str
    second: str
    is_comparable: bool
    why_not: list[WhyNotJson]
    is_interleaved: bool
    apart: list[str]
    rows: list[ComparedRowJson]
    only_first: list[PointJson]
    only_second: list[PointJson]
    answers: AnswersJson | None
    notes: list[str]


class HeldJson(Document):
    point: PointJson
    measure: Literal["decode", "total", "prefill", "TTFT"]
    measured: FigureJson
    planned: BandJson
    off: float
    """Measured over expected."""
    verdict: Literal["inside the band", "faster than planned", "slower than planned"]


class AgainstPlanJson(Document):
    """`firesteel compare RUN --plan --json`"""

    document: Literal["firesteel.against_plan/1"] = "firesteel.against_plan/1"
    run: str
    planned_from: str | None
    rows: list[HeldJson]


class BesideJson(Document):
    point: PointJson
    measured: FigureJson
    published_tps: float
    depth: int | None
    version: str
    ratio: float
    verdict: str
    source: str
    note: str


class AgainstPublishedJson(Document):
    """`firesteel compare RUN --published --json`"""

    document: Literal["firesteel.against_published/1"] = "firesteel.against_published/1"
    run: str
    rows: list[BesideJson]


class HistoryLineJson(Document):
    id: str
    began: str
    model: str
    engine: str | None
    version: str | None
    origin: Literal["measured here", "reported"]
    is_whole: bool
    points: int
    samples: int


class HistoryJson(Document):
    """`firesteel history --json`"""

    document: Literal["firesteel.history/1"] = "firesteel.history/1"
    runs: list[HistoryLineJson]
    notes: list[str]


class TrialJson(Document):
    role: Literal["search", "confirm", "twin", "start"]
    changes: dict[str, str]
    run: str | None
    failed: str | None
    tokens_per_s: float | None
    low: float | None
    high: float | None
    rounds: int
    was_beaten: bool
    start_s: float | None
    took_s: float


class RefusedSettingJson(Document):
    changes: dict[str, str]
    why: str


class DraftingJson(Document):
    text: str
    users: int
    drafting_tps: float
    plain_tps: float
    ratio: float
    verdict: str


class TuneJson(Document):
    """`firesteel tune --json`"""

    document: Literal["firesteel.tune/1"] = "firesteel.tune/1"
    id: str
    model: str
    goal: Literal["latency", "throughput"]
    users: int | None
    settings_in_all: int
    is_better: bool
    changes: dict[str, str]
    words: str
    ratio: float
    ratio_low: float
    ratio_high: float
    verdict: str
    recipe: str | None
    recipe_path: str | None
    running: str | None
    trials: list[TrialJson]
    refused: list[RefusedSettingJson]
    drafting: list[DraftingJson]
    advice: list[str]
    notes: list[str]


class ErrorJson(Document):
    """Any command that failed, with the exit code that it left with"""

    document: Literal["firesteel.error/1"] = "firesteel.error/1"
    kind: str
    message: str
    next: str
    exit_code: int


DOCUMENTS: tuple[type[Document], ...] = (
    WelcomeJson, ModelsJson, PlanJson, CompareJson, CheckJson, RuleJson, FactsJson, UpJson, VerifyJson,
    StepsJson, PsJson, LogsJson, DoneJson, PruneJson, RenderJson, ClientJson, LearnJson, LearnImageJson,
    KnownJson, DiagnosisJson, KeyAddedJson, KeysJson, KeyRevokedJson, BenchJson,
    RunComparisonJson, AgainstPlanJson, AgainstPublishedJson, HistoryJson,
    TuneJson, ErrorJson,
)  # fmt: skip
