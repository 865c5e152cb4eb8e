"""Which checks name a case, in each mode of `verify`; and what each mode costs.

python -m tests.run.adversary.trial                  # prints the tables, with speakers behind the faults
python -m tests.run.adversary.trial URL [FILE]       # with a real engine, whose answers are kept in FILE
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.run.adversary.cases import CASES, HARMLESS, MODES, SPEAKERS, Case, Mode
from tests.run.adversary.change import Change
from tests.run.adversary.honest import Honest
from tests.run.adversary.judge import SEED
from tests.run.adversary.server import Adversary, serving
from tests.run.adversary.speaker import Speaker

from firesteel.errors import FiresteelError
from firesteel.run.verify.verify import Verification, VerifyBudget, target_at_url, verify

Truth = Honest | Speaker


@dataclass(frozen=True, slots=True)
class Trial:
    failed: dict[str, str]
    """Checks that did not pass, with what they saw; notes as well."""
    gates: frozenset[str]
    requests: int
    asked_tokens: int
    """Upper limits of the answers."""
    used_tokens: int = 0
    checks: tuple[tuple[str, str], ...] = ()


async def tried(
    truth: Truth,
    change: Change,
    mode: Mode,
    *,
    reasoning: bool = False,
    task: str = "chat",
    scale: float = 0.002,
) -> Trial:
    adversary = Adversary(truth.fresh(), change, reasoning=reasoning, time_scale=scale)
    async with serving(adversary) as url:
        try:
            target = await target_at_url(url, task=task)  # type: ignore[arg-type]
            items = verify(
                url, target.model, target.expected, budget=VerifyBudget(3600, 600), seed=SEED,
                thorough=mode != "start", deep=mode == "deep",
            )  # fmt: skip
            found = [item async for item in items if isinstance(item, Verification)][-1]
        except FiresteelError as error:
            return Trial({"cannot be asked": error.what}, frozenset({"cannot be asked"}), 0, 0)
    return Trial(
        {check.name: check.observed for check in found.checks if not check.passed},
        frozenset(check.name for check in found.failed),
        len(adversary.asked),
        sum(
            request.get("max_tokens") or request.get("max_completion_tokens") or 0
            for request in adversary.asked
        ),
        adversary.used_tokens,
        tuple((check.name, check.observed) for check in found.checks),
    )


async def named(truth: Truth, case: Case, mode: Mode, honest: Trial) -> list[str] | None:
    """The checks that name it in all its forms; None if a form is not named."""
    checks: list[str] = []
    for form in case.forms:
        trial = await tried(truth, form, mode, reasoning=case.reasoning, task=case.task)
        new = [
            f"{name}{'' if name in trial.gates else ' (note)'}"
            for name in trial.failed
            if name not in honest.failed
        ]
        if not new:
            return None
        checks += [name for name in new if name not in checks]
    return checks


async def table(truth: Truth, cases: Sequence[Case] = CASES, modes: Sequence[Mode] = MODES) -> None:
    """A row for each case: the first mode that names it, and by which checks there."""
    _show("| | case | first named by | checks |", "|---|---|---|---|")
    honest: dict[tuple[Mode, bool, str], Trial] = {}
    named_in = dict.fromkeys(modes, 0)
    for case in cases:
        found: dict[Mode, list[str] | None] = {}
        for mode in modes:
            key = mode, case.reasoning, case.task
            if key not in honest:
                honest[key] = await tried(truth, Change(), mode, reasoning=case.reasoning, task=case.task)
            found[mode] = await named(truth, case, mode, honest[key])
            named_in[mode] += found[mode] is not None
        first = next((mode for mode in modes if found[mode]), None)
        said = ", ".join(found[first] or ()) if first else ""
        _show(f"| {case.number} | {case.group}: {case.what} | {first or '**none**'} | {said} |")
    _show("", ", ".join(f"{mode} names {count} of {len(cases)}" for mode, count in named_in.items()))
    for (mode, reasoning, task), trial in honest.items():
        if not reasoning:
            limits = f"limits of {trial.asked_tokens} tokens in all, {trial.used_tokens} used"
            _show(f"{mode}, {task}, no fault: {trial.requests} requests, {limits}; missed: {trial.failed}")


async def alarms(truth: Truth, modes: Sequence[Mode] = MODES) -> None:
    """What is said about what is harmless."""
    for mode in modes:
        usual = await tried(truth, Change(), mode)
        for name, change in HARMLESS.items():
            _show_alarm(mode, name, await tried(truth, change, mode), usual)
        if isinstance(truth, Speaker):
            for name, how in SPEAKERS.items():
                other = Speaker(truth.flavour, **how)
                _show_alarm(mode, name, await tried(other, Change(), mode), usual)


def _show_alarm(mode: Mode, name: str, trial: Trial, usual: Trial) -> None:
    new = {check: said for check, said in trial.failed.items() if check not in usual.failed}
    _show(f"{mode}, {name}: {new or 'left alone'}{' FAILED' if trial.gates - usual.gates else ''}")


def _show(*lines: str) -> None:
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


async def main(url: str | None = None, kept: str | None = None) -> None:
    if url is None:
        for flavour in ("vllm", "llamacpp"):
            _show("", f"## A server that says {flavour}", "")
            await table(Speaker(flavour))
            await alarms(Speaker(flavour))
        return
    path = Path(kept) if kept else None
    truth = Honest(url, path if path and path.exists() else None, shorten=True)
    try:
        await table(truth, [case for case in CASES if case.task == "chat"])
        await alarms(truth)
    finally:
        if path:
            truth.save(path)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
