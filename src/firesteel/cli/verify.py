"""`firesteel verify [NAME]`, `firesteel verify --url http://host:8000/v1`"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, get_args

import click

from firesteel.cli import options
from firesteel.cli.options import require_one_target
from firesteel.cli.output.progress import proofs_view
from firesteel.cli.output.show import err, out
from firesteel.errors import UsageError
from firesteel.launch import Task
from firesteel.library import documents, run

if TYPE_CHECKING:
    from firesteel.run.verify.verify import Verification


@click.command("verify")
@click.argument("name", required=False, shell_complete=options.complete_service)
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
@click.option(
    "--deep",
    is_flag=True,
    help="Also ask for long answers, by all planned users at once, and about a full context. Takes minutes.",
)
@click.option(
    "--agent",
    "as_agent",
    is_flag=True,
    help="Also ask for tool calls as coding agents do: up to 60 tools, 40 turns deep. Takes minutes.",
)
@click.option("--as-started", is_flag=True, hidden=True, help="Check only what `up` checks at a start.")
@options.json_option
def command(
    name: str | None,
    url: str | None,
    model: str | None,
    task: Task | None,
    takes: tuple[str, ...],
    deep: bool,
    as_agent: bool,
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
    if (deep or as_agent) and as_started:
        option = "--deep" if deep else "--agent"
        raise UsageError(f"{option} asks more than a start does", next=f"firesteel verify {option}")
    key = run.environment_key() if url else None
    events = run.verify(
        name,
        url=url,
        model=model,
        key=key,
        task=task or "chat",
        takes=takes,
        thorough=not as_started,
        deep=deep,
        as_agent=as_agent,
    )
    verification = asyncio.run(_last(events))
    if as_json and verification.error:
        raise verification.error  # the error is the one document on stdout
    if as_json:
        options.print_json(
            documents.run.VerifyJson.of(
                name=verification.name,
                verified=verification.is_good,
                checks=verification.checks,
                calls=verification.calls,
            )
        )
    else:
        out.print(proofs_view(verification.checks))
    if verification.error:
        raise verification.error
    return 0 if verification.is_good else 1


async def _last(events: AsyncIterator[str | Verification]) -> Verification:
    async for event in events:
        if not isinstance(event, str):
            return event
        err.print(f"verify  {event} ...")
    raise AssertionError("the last event is the Verification")
