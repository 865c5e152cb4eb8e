"""Checks of what an engine reports about itself against the plan: kernels, speculation, KV cache, speed.

Pure, like `checks`. A difference between plan and machine is usually only reported. What fails a launch is
what is not worth serving: a drafter whose tokens are never accepted, a speed of a fifth of the planned
minimum.
"""

from __future__ import annotations

from collections.abc import Iterable

from firesteel.edge.http.answer import Answer
from firesteel.engines import metrics
from firesteel.engines.metrics import DraftCounters, PrometheusSample
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.expected import Expected

MIN_ACCEPTANCE = 0.05
"""A drafter that matches its model has a higher acceptance rate on any text: 0.24 to 0.40 with thinking off
and on, 0.7 on code. One whose experts were left out of a quantization is near zero while answers stay correct
(https://github.com/jschmied/dgx-spark-setup-guide, seen 2026-11-15)."""
MIN_DRAFTED = 50
MAX_SLOWDOWN = 5
"""A speed this many times below the planned minimum means another code path, not a busy host."""


def kernels(expected: Expected, log: str) -> list[CheckResult]:
    """The kernels named in the log against the flags that selected them. Hybrid models log several kernels
    per flag: one of them has to match."""
    if expected.engine is None:
        return []
    logged_by_flag = metrics.logged_kernels(expected.engine, log)
    checks = []
    for flag, asked in expected.kernels.items():
        logged = logged_by_flag.pop(flag, None)
        matches, observed = True, f"{asked} was asked for; the log names none"
        if logged is not None:
            matches = any(metrics.is_same_kernel(asked, kernel) for kernel in logged)
            observed = f"asked for {asked}, the log names {', '.join(logged)}"
        checks.append(CheckResult(flag, matches, observed, "note"))
    others = [f"{flag} {', '.join(names)}" for flag, names in logged_by_flag.items()]
    if others:
        checks.append(CheckResult("kernels", True, "; ".join(others), "note"))
    checks += [CheckResult("slow path", False, alarm, "note") for alarm in metrics.slow_path_warnings(log)]
    return checks


def late_compilations(before: str, after: str) -> CheckResult | None:
    """Kernels compiled after the warm-up, which missed a shape."""
    late = metrics.late_compilations(after) - metrics.late_compilations(before)
    if late <= 0:
        return None
    return CheckResult(
        "warm", False, f"{late} kernels were compiled after the warm-up, while the checks ran", "note"
    )


def speculation(
    expected: Expected,
    before: tuple[PrometheusSample, ...],
    after: tuple[PrometheusSample, ...],
    answers: Iterable[Answer],
) -> CheckResult | None:
    """The acceptance rate of the drafter on the requests of these checks."""
    counters = _draft_counters(before, after, answers)
    if counters is None or not counters.drafted:
        if accepted := metrics.latest_acceptance(after):
            rate, tokens_per_step = accepted
            observed = f"{rate:.0%} of drafted tokens accepted lately, {tokens_per_step:.2f} tokens a step"
            return CheckResult("speculation", True, observed, "note")
        if expected.drafts is None:
            return None
        observed = f"{expected.drafts} was planned, but the engine drafted no token"
        return CheckResult("speculation", False, observed, "note")
    observed = f"{counters.accepted} of {counters.drafted} drafted tokens accepted, {counters.rate:.0%}"
    if counters.steps:
        observed += f", {counters.tokens_per_step:.2f} tokens a step"
    if counters.drafted < MIN_DRAFTED:
        return CheckResult("speculation", True, f"{observed}; too few to tell", "note")
    return CheckResult("speculation", counters.rate >= MIN_ACCEPTANCE, observed)


def _draft_counters(
    before: tuple[PrometheusSample, ...], after: tuple[PrometheusSample, ...], answers: Iterable[Answer]
) -> DraftCounters | None:
    """From the metrics where they exist, else from the figures that llama.cpp sends with each answer."""
    then, now = metrics.draft_counters(before), metrics.draft_counters(after)
    if then and now and now.drafted > then.drafted:
        return now.since(then)
    drafted = [answer for answer in answers if answer.draft_tokens]
    if not drafted:
        return now
    accepted = sum(answer.accepted_tokens or 0 for answer in drafted)
    return DraftCounters(0, sum(answer.draft_tokens or 0 for answer in drafted), accepted)


def speculation_speedup(expected: Expected, measured: float | None) -> CheckResult | None:
    """Speculation that is slower than the plan without it."""
    plain = expected.plan.decode_tokens_per_s
    if expected.drafts is None or plain is None or measured is None or measured >= plain.expected:
        return None
    observed = f"{measured:.1f} tok/s with {expected.drafts}, {plain.expected:.1f} were planned without it"
    return CheckResult("speculation pays", False, f"{observed}; try it without", "note")


def kv_cache(
    expected: Expected, samples: tuple[PrometheusSample, ...], log_tokens: int | None
) -> CheckResult | None:
    """The size that the engine reports, against the plan and against one full request."""
    tokens = metrics.kv_cache_tokens(samples) or log_tokens
    if tokens is None:
        return None
    if expected.context and tokens < expected.context:
        observed = f"{tokens:,} tokens, less than the {expected.context:,} that one request may use"
        return CheckResult("KV cache", False, observed)
    if expected.kv_tokens is None:
        return CheckResult("KV cache", True, f"{tokens:,} tokens", "note")
    low, high = expected.kv_tokens
    planned = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return CheckResult("KV cache", low <= tokens <= high, f"{tokens:,} tokens, planned {planned}", "note")


def speed(expected: Expected, answers: Iterable[Answer]) -> CheckResult | None:
    """The fastest answer counts: anything else that the host does only slows answers down."""
    measured = fastest_decode(answers)
    drafted = expected.plan.drafted
    band = drafted.get("prose") or drafted.get("any") or expected.plan.decode_tokens_per_s
    if measured is None:
        return None
    if band is None:
        return CheckResult("speed", True, f"{measured:.1f} tok/s, nothing planned", "note")
    observed = f"{measured:.1f} tok/s, planned {band.low:.1f} to {band.high:.1f}"
    if measured < band.low / MAX_SLOWDOWN:
        return CheckResult("speed", False, observed, "note" if expected.is_cpu else "gate")
    return CheckResult("speed", band.low <= measured <= band.high, observed, "note")


def fastest_decode(answers: Iterable[Answer]) -> float | None:
    return max((rate for answer in answers if (rate := answer.decode_tokens_per_s)), default=None)


def nan_logits(
    before: tuple[PrometheusSample, ...], after: tuple[PrometheusSample, ...]
) -> CheckResult | None:
    """vLLM counts requests with NaN in their logits when VLLM_COMPUTE_NANS_IN_LOGITS is set."""
    name = "vllm:corrupted_requests"
    then, now = metrics.metric_total(before, name), metrics.metric_total(after, name)
    if now is None:
        return None
    new = now - (then or 0)
    return CheckResult("no NaN", new <= 0, f"vLLM counted {new:.0f} requests with NaN in their logits")
