"""How fast a launch will be, and how we know: the best rung of the ladder that holds.

    measured here     the user's own benches of this launch on this machine: `own_runs.py`, laid over the rest
    measured recipe   runs of this checkpoint in this engine and version, with this KV cache
    measured model    runs of this checkpoint in this engine, other versions or settings
    fitted            the class model of `decode.py`, with the errors it had on models left out of its fit
    roofline          what bandwidth allows, and a share of it that was seen on such machines

A measured rung does not quote a run: it takes the fitted figure and corrects it by how far off that was
for the runs, so depth and KV format may differ. Every band comes from errors that were seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot, log2
from typing import Literal

from firesteel.engines import KvCache
from firesteel.errors import UsageError
from firesteel.facts import Architecture, Weights
from firesteel.launch import Launch
from firesteel.planner.band import Band
from firesteel.planner.memory.pool import MemoryPool
from firesteel.planner.speed import prefill, published
from firesteel.planner.speed.constants import ConstantsSchema, constants
from firesteel.planner.speed.decode import (
    StepReads,
    Stored,
    Terms,
    all_reduces,
    at_depth,
    step_ms,
    step_reads,
    stored,
    terms,
)
from firesteel.planner.speed.published import PublishedRun
from firesteel.planner.speed.roofline import share
from firesteel.planner.speed.speculation import DraftedSpeed, drafted
from firesteel.planner.speed.startup import StartUp, start_up

Rung = Literal["measured here", "measured recipe", "measured model", "fitted", "roofline"]
DEPTH = 1024
"""Tokens already in the sequence, for which the figure is given."""
_FEW = 3
"""Runs of a checkpoint below which their agreement is chance."""
_ON_FOUR = (9, 1.6)
"""Runs of one user on 4 Sparks, and how much faster than the figure here the fastest was: 37 tok/s for
Qwen3.5-397B-A17B in int4, where the others gave 23 to 26. Whether they drafted their sources do not say, so
nothing is fitted to them. `data/measured/runs.csv`, seen 2026-11-15."""
_PROMPT = 8192
_DEPTHS = (1024, 8192, 32768, 131072)
MAX_USERS = 1024
MAX_CONTEXT = 2**24
"""More than any model or machine here could serve: such an ask is a slip of the finger."""


@dataclass(frozen=True, slots=True)
class BatchSpeed:
    """All users of a launch decoding at once, about a thousand tokens in, with no prompts arriving."""

    users: int
    each_tokens_per_s: Band
    total_tokens_per_s: Band
    why: str


@dataclass(frozen=True, slots=True)
class PrefillSpeed:
    """One prompt into an idle server that has nothing of it cached."""

    prompt_tokens: int
    tokens_per_s: Band
    ttft_ms: Band
    why: str


@dataclass(frozen=True, slots=True)
class Speed:
    decode_tokens_per_s: Band
    """One user, no speculation, about a thousand tokens into the answer."""
    bound_tokens_per_s: float
    """What the bandwidth allows at most."""
    bytes_per_token: int
    bandwidth_bytes_per_s: float
    rung: Rung
    why: str
    sources: tuple[str, ...] = ()
    """Addresses behind the figure."""
    parts_ms: Mapping[str, float] = field(default_factory=dict)
    """Where the time of a step goes, as far as the rung tells."""
    at_depth: tuple[tuple[int, Band], ...] = ()
    """The same figure deeper into a conversation, as far as the context reaches."""
    crowd: BatchSpeed | None = None
    """None for one user, or where nothing is known of several."""
    drafted: tuple[DraftedSpeed, ...] = ()
    """With the launch's own drafter, by kind of text; empty when it has none."""
    prefill: PrefillSpeed | None = None
    start_up: StartUp | None = None


@dataclass(frozen=True, slots=True)
class _Model:
    """Everything that the figures of one launch are made from."""

    launch: Launch
    shape: Architecture
    stored: Stored
    read: StepReads
    """At the start of a conversation."""
    kv_dtype: str
    bandwidth: float
    """Of one machine."""
    costs: Mapping[str, float]
    low: float
    high: float
    """Measured over predicted, for models that the costs were not fitted to."""

    def reading(self, depth: int, kv_dtype: str | None = None) -> StepReads:
        return at_depth(self.read, self.shape, depth, self.kv_dtype if kv_dtype is None else kv_dtype)

    def terms(self, depth: int, users: int = 1, independence: float = 1.0) -> Terms:
        return terms(self.reading(depth), self.bandwidth, users, independence)

    def tokens_per_s(self, parts: Terms) -> Band:
        """Of one user; the band is that of an unknown format, where there is one."""
        least, likely, most = step_ms(_costed(self.launch), parts, self.costs)
        return Band(*(1000 / self._spread_over_sparks(each) for each in (most, likely, least)))

    def _spread_over_sparks(self, milliseconds: float) -> float:
        if self.launch.sparks < 2:
            return milliseconds
        return self._in_steps(milliseconds, self.launch.sparks - 1)

    def _in_steps(self, milliseconds: float, steps: float) -> float:
        """Each sum goes from Spark to Spark, in so many steps as two of them need one of."""
        sums_ms = all_reduces(self.shape) * constants().all_reduce_ms.expected
        return milliseconds / self.launch.sparks + steps * sums_ms

    def gain_of_a_tree(self) -> float:
        """How much faster it would be if sums were made by pairs of pairs, not around a ring."""
        likely = step_ms(_costed(self.launch), self.terms(0), self.costs)[1]
        return self._spread_over_sparks(likely) / self._in_steps(likely, log2(self.launch.sparks))


def decode_speed(
    launch: Launch, shape: Architecture, weights: Weights, kv: KvCache, pool: MemoryPool
) -> Speed | None:
    """None when the bandwidth of the memory is not known. `weights` are those that the engine holds."""
    _refuse_the_absurd(kv)
    if not pool.bandwidth_bytes_per_s:
        return None
    speed = _speed(launch, shape, weights, kv, pool, pool.bandwidth_bytes_per_s)
    return speed if weights.spread == (1.0, 1.0) else _for_a_label(speed, *weights.spread)


def _for_a_label(speed: Speed, least: float, most: float) -> Speed:
    """A lighter file reads faster, a heavier one slower; the bound is that of the expected one."""

    def wider(band: Band) -> Band:
        return Band(band.low / most, band.expected, band.high / least)

    return replace(
        speed,
        decode_tokens_per_s=wider(speed.decode_tokens_per_s),
        at_depth=tuple((depth, wider(band)) for depth, band in speed.at_depth),
        why=f"{speed.why}; files under a label differ: the band has {least:.0%} to {most:.0%} of its bytes",
    )


def _speed(
    launch: Launch, shape: Architecture, weights: Weights, kv: KvCache, pool: MemoryPool, bandwidth: float
) -> Speed:
    parts = stored(weights)
    found = constants()
    if pool.hardware != found.hardware:
        return _roofline(launch, shape, weights, parts, kv, bandwidth)
    model = _model(launch, shape, weights, parts, kv, bandwidth, found)
    speed = _anchored(model, _fitted(model, kv, found), kv, found)
    return replace(
        speed,
        crowd=_slower(_crowd(model, kv, found), speed.decode_tokens_per_s),
        drafted=drafted(launch, shape, speed.decode_tokens_per_s),
        prefill=_prefill(model, kv, found),
        start_up=start_up(launch, weights.total_bytes),
    )


def _refuse_the_absurd(kv: KvCache) -> None:
    if kv.users > MAX_USERS:
        raise UsageError(
            f"{kv.users:,} users at once are more than any figure here tells of; the limit is {MAX_USERS:,}",
            next=f"--users {MAX_USERS}",
        )
    if kv.context > MAX_CONTEXT:
        raise UsageError(
            f"a context of {kv.context:,} tokens is more than any model has; the limit is {MAX_CONTEXT:,}",
            next=f"--context {MAX_CONTEXT}",
        )


def _costed(launch: Launch) -> str:
    """Whose costs are taken: SGLang runs much the same kernels as vLLM and has too few public runs."""
    return "llamacpp" if launch.engine == "llamacpp" else "vllm"


def _model(
    launch: Launch,
    shape: Architecture,
    weights: Weights,
    parts: Stored,
    kv: KvCache,
    bandwidth: float,
    found: ConstantsSchema,
) -> _Model:
    fitted = found.engines[_costed(launch)].decode
    off = fitted.left_out if launch.engine in found.engines else found.elsewhere[launch.engine]
    low, high = min(off.low, fitted.left_out.low), max(off.high, fitted.left_out.high)
    # The fit's runs are one hand's; another machine and version differ as much as hands were seen to.
    low, high = 1 - hypot(1 - low, 1 - found.carried.low), 1 + hypot(high - 1, found.carried.high - 1)
    read = step_reads(_costed(launch), shape, parts, weights.tied_head, 0, kv.dtype)
    return _Model(launch, shape, parts, read, kv.dtype, bandwidth, fitted.costs, low, high)


def _fitted(model: _Model, kv: KvCache, found: ConstantsSchema) -> Speed:
    depth = min(DEPTH, kv.context)
    read = model.reading(depth)
    bound = model.bandwidth * model.launch.sparks / read.bytes()
    low, high = _doubts(model, read)
    decode = _capped(model.tokens_per_s(model.terms(depth)), low, high, bound)
    engine = found.engines[_costed(model.launch)].decode
    words = (
        f"fitted to {engine.fitted.runs} runs of {engine.fitted.models} shapes on a GB10; models left out of "
        f"the fit were off by {engine.left_out.mean:.1%} on average, {engine.left_out.worst:.0%} at worst"
    )
    return Speed(
        decode,
        bound,
        round(read.bytes()),
        model.bandwidth * model.launch.sparks,
        "fitted",
        words + _but(model, read),
        _addresses(_costed(model.launch)),
        _parts_ms(model, depth),
        tuple(
            (each, _capped(model.tokens_per_s(model.terms(each)), low, high, bound))
            for each in _DEPTHS
            if each <= kv.context
        ),
    )


def _capped(predicted: Band, low: float, high: float, bound: float) -> Band:
    """Widened by the errors that were seen, and never above what memory allows."""
    expected = min(predicted.expected, bound)
    return Band(
        min(predicted.low * low, expected), expected, max(expected, min(predicted.high * high, bound))
    )


def _doubts(model: _Model, read: StepReads) -> tuple[float, float]:
    """Wider where the launch leaves what the fit has seen."""
    low, high = model.low, model.high
    if read.unseen:
        low, high = low * 0.9, high * 1.1
    if model.launch.sparks > 1:
        two = constants().two_sparks
        low, high = min(low, two.low), max(high, two.high)
    if model.launch.sparks > 2:
        low, high = low * 0.6, max(high * 1.2, _ON_FOUR[1], model.gain_of_a_tree() * high)
    if model.launch.flags.get("enforce-eager") is True:
        low *= 0.75  # 26 tok/s where graphs give 33.5, gpt-oss-120b on a Spark
    return low, high


def _but(model: _Model, read: StepReads) -> str:
    words = ""
    if model.launch.engine not in constants().engines:
        few = constants().elsewhere[model.launch.engine]
        words += (
            f"; those are runs of vLLM, and {few.runs} of {model.launch.engine} were off by {few.mean:.0%}"
        )
    if "" in read.weights:
        words += "; the formats of the weights are not known, so the band covers every kind"
    if read.unseen:
        words += f"; no run with weights in {' and '.join(sorted(read.unseen))} is among them"
    if model.launch.sparks == 2:
        two = constants().two_sparks
        words += f"; on two Sparks half the step and {two.runs} runs' all-reduces, off by {two.mean:.0%}"
    return words + _but_on_many(model.launch.sparks)


def _but_on_many(sparks: int) -> str:
    """Beyond two Sparks nothing is fitted."""
    if sparks < 3:
        return ""
    runs = constants().all_reduce_ms.runs
    if sparks == 4:
        return (
            f"; all-reduces as {runs} runs on two Sparks had them, {sparks - 1} times; the {_ON_FOUR[0]} "
            "runs that are known on 4 do not say whether they drafted, and only widen the band"
        )
    return (
        f"; no run on {sparks} Sparks is known: an extrapolation, with all-reduces as {runs} runs on two had "
        f"them, {sparks - 1} times"
    )


def _parts_ms(model: _Model, depth: int) -> dict[str, float]:
    names = {"kv": "KV cache and states", "head": "head and sampling", "experts": "experts"}
    found: dict[str, float] = {}
    parts = model.terms(depth)
    for name, size in parts.items():
        also = {"perhaps_narrow": parts.get("perhaps_narrow", 0.0)} if not name else {}
        cost = step_ms(_costed(model.launch), {name: size, **also}, model.costs)[1]
        label = names.get(name, "layers" if name.endswith(("_layer", "step")) else "weights")
        if cost:
            found[label] = found.get(label, 0.0) + cost
    return found


def _addresses(engine: str) -> tuple[str, ...]:
    return tuple(published.origins()[name].url for name in sorted(published.CALIBRATED[engine]))


def _anchored(model: _Model, fitted: Speed, kv: KvCache, found: ConstantsSchema) -> Speed:
    """The fitted figure, corrected by runs of the same checkpoint where there are any."""
    launch = model.launch
    found_runs = published.runs_of(launch.model, launch.engine, launch.sparks)
    runs = [run for run in found_runs if _is_alike(run, model)]
    same = [run for run in runs if _is_same_recipe(run, model.launch, kv)]
    if not runs:
        return fitted
    ratios = [_ratio(model, run) for run in same or runs]
    middle = sum(ratios) / len(ratios)
    slower, faster = 1 - min(ratios) / middle, max(ratios) / middle - 1
    by_others = found.carried
    if same:
        low, high = min(by_others.low, 1 - slower), max(by_others.high, 1 + faster)
    else:  # runs that differ among themselves say less of one that differs from all
        low = 1 - hypot(1 - by_others.low, slower)
        high = 1 + hypot(by_others.high - 1, faster)
    few = not same and len(runs) < _FEW
    if few:  # of another version one or two runs say no more than the fit does, nor than a slower setting
        low = min(low, *(_ratio(model, run) / middle for run in found_runs))

    def corrected(band: Band) -> Band:
        told = _capped(Band(*(band.expected * middle,) * 3), low, high, fitted.bound_tokens_per_s)
        return Band(min(told.low, band.low), told.expected, max(told.high, band.high)) if few else told

    return replace(
        fitted,
        decode_tokens_per_s=corrected(fitted.decode_tokens_per_s),
        rung="measured recipe" if same else "measured model",
        why=_run_words(same or runs, bool(same), launch.sparks),
        sources=tuple(dict.fromkeys(published.origins()[run.source].url for run in same or runs)),
        parts_ms={part: took / middle for part, took in fitted.parts_ms.items()},
        at_depth=tuple((depth, corrected(band)) for depth, band in fitted.at_depth),
    )


def _is_alike(run: PublishedRun, model: _Model) -> bool:
    """Eager mode is another speed, and figures that sources only guess at count where there are no others."""
    eager = model.launch.flags.get("enforce-eager") is True
    return ("eager" in run.note) == eager


def _is_same_recipe(run: PublishedRun, launch: Launch, kv: KvCache) -> bool:
    version = run.version.split(" ")[0].removeprefix("b")
    return not run.kind and version == launch.version and (run.kv_dtype or "auto") == kv.dtype


def _ratio(model: _Model, run: PublishedRun) -> float:
    parts = terms(model.reading(run.middle_depth, run.kv_dtype), model.bandwidth)
    assert run.decode_tps is not None
    return run.decode_tps / model.tokens_per_s(parts).expected


def _run_words(runs: Sequence[PublishedRun], is_recipe: bool, sparks: int) -> str:
    rates = sorted(run.decode_tps or 0 for run in runs)
    versions = sorted({run.version or "a version not named" for run in runs})
    shown = f"{rates[0]:g}" if rates[0] == rates[-1] else f"{rates[0]:g} to {rates[-1]:g}"
    about = "about " if any(run.kind for run in runs) else ""
    many = "one published run" if len(runs) == 1 else f"{len(runs)} published runs"
    what = "this checkpoint, engine, version and KV cache" if is_recipe else "this checkpoint and engine"
    where = "a GB10" if sparks == 1 else f"{sparks} Sparks"
    return f"{about}{shown} tok/s in {many} of {what} on {where} ({', '.join(versions)})"


def _slower(crowd: BatchSpeed | None, alone: Band) -> BatchSpeed | None:
    """Nobody in a crowd is faster than one alone; two fits of their own may say so."""
    if crowd is None or crowd.each_tokens_per_s.expected <= alone.expected:
        return crowd
    each = crowd.each_tokens_per_s
    band = Band(min(each.low, alone.low), alone.expected, max(alone.expected, min(each.high, alone.high)))
    total = Band(*(crowd.users * rate for rate in (band.low, band.expected, band.high)))
    return replace(crowd, each_tokens_per_s=band, total_tokens_per_s=total)


def _crowd(model: _Model, kv: KvCache, found: ConstantsSchema) -> BatchSpeed | None:
    if kv.users < 2:
        return None
    depth = min(DEPTH, kv.context)
    crowd = found.engines[_costed(model.launch)].crowd
    many = replace(model, costs={**model.costs, **crowd.costs})

    def each(independence: float) -> float:
        return many.tokens_per_s(many.terms(depth, kv.users, independence)).expected

    own, shared = found.engines["vllm"].crowd.costs, found.engines["llamacpp"].crowd.costs
    expected = each(own["independence"])
    low = min(each(1.0), expected * crowd.left_out.low)
    high = max(each(shared["independence"]), expected * crowd.left_out.high)
    band = Band(low, expected, high)
    words = (
        f"{crowd.fitted.runs} runs of 2 to 32 users, off by {crowd.left_out.mean:.0%} for models left out; "
        "slower when prompts have nothing in common, faster when they share their experts"
    )
    return BatchSpeed(
        kv.users, band, Band(*(kv.users * each for each in (band.low, band.expected, band.high))), words
    )


def _prefill(model: _Model, kv: KvCache, found: ConstantsSchema) -> PrefillSpeed | None:
    """None where formats are not known, or no run shows the path: a guess would be off by a factor."""
    active = prefill.active_weights(model.shape, model.stored)
    if active is None or model.launch.engine not in found.engines or model.launch.sparks > 1:
        return None
    fitted = found.engines[model.launch.engine].prefill
    prompt = min(_PROMPT, kv.context)
    kernels = "marlin" if model.launch.flags.get("linear-backend") == "marlin" else ""
    on = prefill.kernel_path(model.shape, model.stored, kernels)
    if on not in fitted.costs:
        on = on.removesuffix("_marlin")
    took = prefill.ttft_ms(prefill.prefill_terms(model.shape, on, active, prompt), fitted.costs)
    if took is None:
        return None
    ttft = Band(took / fitted.left_out.high, took, took / fitted.left_out.low)
    rate = Band(*(1000 * prompt / each for each in (ttft.high, ttft.expected, ttft.low)))
    words = (
        f"{fitted.costs[on]:.0f} ms a tera-operation on the path {on}, fitted to {fitted.fitted.runs} runs; "
        f"models left out were off by {fitted.left_out.mean:.0%} on average"
    )
    return PrefillSpeed(prompt, rate, ttft, words)


def _roofline(
    launch: Launch, shape: Architecture, weights: Weights, parts: Stored, kv: KvCache, bandwidth: float
) -> Speed:
    depth = min(DEPTH, kv.context)
    read = step_reads(_costed(launch), shape, parts, weights.tied_head, depth, kv.dtype).bytes()
    bound, row = bandwidth / read, share(launch.engine)
    return Speed(
        Band(bound * row.low, bound * row.expected, bound * row.high),
        bound,
        round(read),
        bandwidth,
        "roofline",
        f"{row.expected:.0%} of the bandwidth bound: {row.why}",
        tuple(source.url for source in row.sources),
    )
