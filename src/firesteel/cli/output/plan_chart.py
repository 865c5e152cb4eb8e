"""A plan as a picture: what fills the memory, and how its speed stands to what bandwidth allows."""

from __future__ import annotations

from firesteel.planner import Band, Plan, Speed
from firesteel.render import Bar, Panel, draw_chart
from firesteel.rules import Proposal
from firesteel.units import show_bytes


def picture(proposal: Proposal) -> str:
    plan = proposal.plan
    panels = [_memory(plan)]
    if plan.speed:
        panels.append(_speed(plan.speed))
    title = f"{plan.launch.model} on {plan.host.title}: {plan.memory.verdict}"
    engine = f"{plan.launch.engine} {plan.launch.version or ''}".rstrip()
    size = f"{plan.cache.users} x {plan.cache.context:,} tokens"
    return draw_chart(title, panels, f"{engine}, {size}; whiskers are the bands of what is estimated")


def _memory(plan: Plan) -> Panel:
    bars = tuple(
        Bar(
            part.name,
            part.bytes.low,
            part.bytes.expected,
            part.bytes.high,
            show_bytes(round(part.bytes.expected)),
        )
        for part in plan.memory.parts
    )
    room = plan.memory.budget_bytes
    return Panel("memory", bars, float(room), f"room {show_bytes(room)}", is_stack=True)


def _size(name: str, band: Band) -> Bar:
    return Bar(name, band.low, band.expected, band.high, show_bytes(round(band.expected)))


def _speed(speed: Speed) -> Panel:
    bars = [_rate("one user", speed.decode_tokens_per_s)]
    bars += [_rate(f"{depth:,} tokens in", rate) for depth, rate in speed.at_depth if depth > 1024]
    if speed.batch:
        bars.append(_rate(f"each of {speed.batch.users}", speed.batch.per_user_tokens_per_s))
    bound = speed.bound_tokens_per_s
    title = f"decode, tok/s; {speed.basis}, {show_bytes(speed.bytes_per_token)} read a token"
    return Panel(title, tuple(bars), bound, f"bandwidth allows {bound:.0f}")


def _rate(name: str, band: Band) -> Bar:
    words = f"{band.expected:.0f} ({band.low:.0f} to {band.high:.0f})"
    return Bar(name, band.low, band.expected, band.high, words)
