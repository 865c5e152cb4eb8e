"""Runs `firesteel verify --url` against every fault and oddity, and prints the table of what its gates say.

python -m tests.run.adversary http://127.0.0.1:8000 [NAME ...]     # a running smollm2
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.run.adversary.change import Change, Modification
from tests.run.adversary.faults import FAULTS
from tests.run.adversary.honest import Honest
from tests.run.adversary.oddities import ODDITIES
from tests.run.adversary.server import Adversary, serving

HONEST = Modification("honest", "nothing changed", "", Change())
_HEAD = ("| name | needs | expected | verdict | gates | requests |", "|---|---|---|---|---|---|")
_LIMIT_S = 240
_AT_ONCE = 6


async def verify(one: Modification, honest: Honest) -> tuple[str, str, int]:
    """The exit code in words, the gates that did not pass, and how many requests there were."""
    adversary = Adversary(honest, one.change, reasoning="reasoning" in one.needs)
    async with serving(adversary) as url:
        with tempfile.TemporaryDirectory() as home:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "firesteel", "verify", "--url", f"{url}/v1", "--json",
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "FIRESTEEL_HOME": home},
            )  # fmt: skip
            try:
                out, err = await asyncio.wait_for(process.communicate(), _LIMIT_S)
            except TimeoutError:
                process.kill()
                await process.wait()
                return "unfinished", f"still running after {_LIMIT_S} s", len(adversary.asked)
    if folder := os.environ.get("ADVERSARY_OUT"):
        (Path(folder) / f"{one.name}.json").write_bytes(out + err)
    return *_verdict(process.returncode, out.decode(), err.decode()), len(adversary.asked)


def _verdict(code: int | None, out: str, err: str) -> tuple[str, str]:
    verdict = {0: "passed", 1: "failed", 5: "not tested"}.get(code or 0, f"exit {code}")
    try:
        gates = _gates(json.loads(out))
    except ValueError:
        gates = err.strip().replace("\n", " ")[:120]
    return verdict, gates


def _gates(document: dict[str, Any]) -> str:
    failed = [check for check in document.get("checks", ()) if not check["passed"]]
    named = [check["name"] + (" (note)" if check["level"] == "note" else "") for check in failed]
    return ", ".join(named) or str(document.get("error", ""))[:120]


async def main(url: str, names: list[str]) -> None:
    honest, slots = Honest(url), asyncio.Semaphore(_AT_ONCE)

    async def row(one: Modification) -> str:
        async with slots:
            verdict, gates, asked = await verify(one, honest)
        sys.stderr.write(f"{one.name}: {verdict} {gates}\n")
        return f"| {one.name} | {' '.join(sorted(one.needs))} | {one.gate} | {verdict} | {gates} | {asked} |"

    await row(HONEST)  # records most of the answers
    for title, entries in (("Faults", (HONEST, *FAULTS)), ("Oddities", ODDITIES)):
        chosen = [one for one in entries if not names or one.name in names]
        rows = await asyncio.gather(*map(row, chosen))
        sys.stdout.write("\n".join([f"\n## {title}\n", *_HEAD, *rows, ""]))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
