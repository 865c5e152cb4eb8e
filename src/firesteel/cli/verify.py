"""`firesteel verify [NAME]`, `firesteel verify --url http://host:8000/v1`"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import get_args

import click

from firesteel.cli.endpoints import require_one_target
from firesteel.cli.options import common, complete
from firesteel.cli.output.proofs import proofs_view
from firesteel.cli.output.show import err, out
from firesteel.errors import UsageError
from firesteel.library import documents, run
from firesteel.run.endpoints import key_from
from firesteel.run.verify.expected import Task
from firesteel.run.verify.target import VerifyTarget
from firesteel.run.verify.verify import Verification


@click.command("verify")
@click.argument("name", required=False, shell_complete=complete.services)
@click.option("--url", help="Verify any OpenAI endpoint (http://host:8000/v1) instead of a service.")
@click.option("--model", help="With --url: verify this model, if the server has several.")
@click.option(
    "--task", type=click.Choice(get_args(Task)), help="With --url: what the server does (default chat)."
)
@click.option(
    "--takes",
    multiple=True,
    type=click.Choice(("image", "audio")),
    help="With --url: ask it with these, too.",
)
@click.option("--as-started", is_flag=True, hidden=True, help="Check only what `up` checks at a start.")
@common.json_option
def command(
    name: str | None,
    url: str | None,
    model: str | None,
    task: Task | None,
    takes: tuple[str, ...],
    as_started: bool,
    as_json: bool,
) -> int:
    """Verify again that NAME gives correct answers.

    \b
    Exits 0  every gate passed; notes do not fail it
          1  a gate failed: the answers are wrong
          5  it could not be tested: it does not run, does not answer, or stopped answering

    The key for --url is read from FIRESTEEL_API_KEY or OPENAI_API_KEY, never from the command line.
    """
    require_one_target("verify", name, url, model)
    if (task or takes) and not url:
        raise UsageError(
            "--task and --takes need --url; of a service they are known", next="firesteel verify"
        )
    key = key_from(os.environ) if url else None
    found = run.verify_target(name, url=url, model=model, key=key, task=task or "chat", takes=takes)
    verification, target = asyncio.run(_verify(found, thorough=not as_started))
    if as_json and verification.is_unanswered:
        raise target.unanswered(verification)  # the error is the one document on stdout
    if as_json:
        checks = tuple(verification.checks)
        document = documents.run.VerifyJson(name=target.name, verified=verification.is_good, checks=checks)
        common.print_json(document)
    else:
        out.print(proofs_view(verification.checks))
    if verification.is_unanswered:
        raise target.unanswered(verification)
    return 0 if verification.is_good else 1


async def _verify(found: Awaitable[VerifyTarget], *, thorough: bool) -> tuple[Verification, VerifyTarget]:
    target = await found
    async for event in target.verify(thorough=thorough):
        if isinstance(event, Verification):
            return event, target
        err.print(f"verify  {event} ...")
    raise AssertionError("the last event is the Verification")
