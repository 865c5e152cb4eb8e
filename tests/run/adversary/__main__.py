"""Runs `firesteel verify --url` against every fault and oddity, and prints the table of what its gates say.

python -m tests.run.adversary http://127.0.0.1:8000 [NAME ...]     # a running smollm2
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.run.adversary.change import Change, Modification
from tests.run.adversary.faults import FAULTS
from tests.run.adversary.honest import Honest
from tests.run.adversary.oddities import ODDITIES
from tests.run.adversary.server import Adversary, serving

import firesteel.run.verify.verify  # noqa: F401 - loaded before the fork
from firesteel.cli.main import main

HONEST = Modification("honest", "nothing changed", "", Change())
_HEAD = ("| name | needs | expected | verdict | gates | requests |", "|---|---|---|---|---|---|")
_LIMIT_S = 120
_AT_ONCE = 6


async def verify(one: Modification, honest: Honest) -> tuple[str, str, int]:
    """The exit code in words, the gates that did not pass, and how many requests there were."""
    adversary = Adversary(honest, one.change, reasoning="reasoning" in one.needs)
    async with serving(adversary) as url:
        with tempfile.TemporaryDirectory() as home:
            code, out = await asyncio.to_thread(_forked, Path(home), "verify", "--url", f"{url}/v1", "--json")
    return *_verdict(code, out), len(adversary.asked)


def _forked(home: Path, *arguments: str) -> tuple[int, str]:
    """Runs the command in a fork: importing it 160 times would take most of the time."""
    output = home / "output"
    if not (child := os.fork()):
        code = 70
        try:
            os.environ["FIRESTEEL_HOME"] = str(home / "home")
            opened = os.open(output, os.O_CREAT | os.O_WRONLY)
            os.dup2(opened, 1)
            os.dup2(opened, 2)
            signal.alarm(_LIMIT_S)
            main(list(arguments))
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 70
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), output.read_text()


def _verdict(code: int, out: str) -> tuple[str, str]:
    if code == -signal.SIGALRM:
        return "unfinished", f"still running after {_LIMIT_S} s"
    verdict = {0: "passed", 1: "failed", 5: "not tested"}.get(code, f"exit {code}")
    try:
        return verdict, _gates(json.loads(out[out.index("{") :]))
    except ValueError:
        return verdict, " ".join(out.split())[:160]


def _gates(document: dict[str, Any]) -> str:
    failed = [check for check in document.get("checks", ()) if not check["passed"]]
    named = [check["name"] + (" (note)" if check["level"] == "note" else "") for check in failed]
    return ", ".join(named) or str(document.get("error", ""))[:120]


async def table(url: str, names: list[str]) -> None:
    # The default has too few threads for both the forks and the servers that they talk to.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(8 * _AT_ONCE))
    honest, slots = Honest(url, shorten=True), asyncio.Semaphore(_AT_ONCE)

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
    asyncio.run(table(sys.argv[1], sys.argv[2:]))
