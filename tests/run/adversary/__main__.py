"""Runs `verify` against every fault and oddity, and prints the table of what its gates say.

python -m tests.run.adversary http://127.0.0.1:8000 [NAME ...]     # a running smollm2
python -m tests.run.adversary speaker [NAME ...]                   # the server of the tests
"""

from __future__ import annotations

import asyncio
import sys
import time

from tests.run.adversary.change import Modification
from tests.run.adversary.faults import FAULTS
from tests.run.adversary.honest import Honest
from tests.run.adversary.judge import HONEST, Verdict, fits, judge
from tests.run.adversary.oddities import ODDITIES
from tests.run.adversary.speaker import Speaker

_HEAD = ("| name | needs | expected | verdict | fits | gates | s |", "|---|---|---|---|---|---|---|")
_AT_ONCE = 6


def _row(one: Modification, verdict: Verdict, took_s: float) -> str:
    needs, fit = " ".join(sorted(one.needs)), "yes" if fits(one, verdict) else "NO"
    gates = ", ".join([*verdict.failed, *(f"{name} (note)" for name in verdict.noted)])
    return f"| {one.name} | {needs} | {one.gate} | {verdict.outcome} | {fit} | {gates} | {took_s:.0f} |"


async def table(source: str, names: list[str]) -> None:
    honest = Speaker("llamacpp") if source == "speaker" else Honest(source, shorten=True)
    slots = asyncio.Semaphore(_AT_ONCE)

    async def row(one: Modification) -> str:
        async with slots:
            start = time.monotonic()
            verdict = await judge(one, honest)
        sys.stderr.write(f"{one.name}: {verdict.outcome}, {verdict.observed}\n")
        return _row(one, verdict, time.monotonic() - start)

    await row(HONEST)  # asks most of the questions
    for title, entries in (("Faults", (HONEST, *FAULTS)), ("Oddities", ODDITIES)):
        chosen = [one for one in entries if not names or one.name in names]
        rows = await asyncio.gather(*map(row, chosen))
        sys.stdout.write("\n".join([f"\n## {title}\n", *_HEAD, *rows, ""]))


if __name__ == "__main__":
    asyncio.run(table(sys.argv[1], sys.argv[2:]))
