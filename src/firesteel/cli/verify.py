"""`firesteel verify [NAME]`"""

from __future__ import annotations

import asyncio

import click

from firesteel import library
from firesteel.cli import words
from firesteel.cli.documents import ProofJson, VerifyJson
from firesteel.cli.show import checks_view, err, out
from firesteel.edge.http import is_healthy
from firesteel.errors import FiresteelError
from firesteel.run import Check, Service, ask, death, judge_answers, pick


@click.command("verify")
@click.argument("name", required=False)
@words.json_option
def command(name: str | None, as_json: bool) -> int:
    """Prove again that NAME answers, answers the same twice, and does not loop. Exits 1 when it does not."""
    service = pick(library.home(), name)
    if service.phase == "dead":
        raise FiresteelError(f"{service.name} is dead: {death(service.state)}", next=service.spec.again)
    checks = asyncio.run(_verify(service))
    passed = all(check.passed for check in checks)
    if as_json:
        proofs = [ProofJson(name=check.name, passed=check.passed, saw=check.saw) for check in checks]
        words.print_json(VerifyJson(name=service.name, verified=passed, checks=proofs))
    else:
        out.print(checks_view(checks))
    return 0 if passed else 1


async def _verify(service: Service) -> tuple[Check, ...]:
    if not await is_healthy(service.spec.url, timeout_s=10):
        raise FiresteelError(
            f"{service.name} runs but does not answer at {service.spec.url}/health within 10 s",
            next=f"firesteel logs {service.name}, then firesteel down {service.name}",
        )
    async for each in ask(service.spec.url, service.spec.model):
        if not isinstance(each, str):
            return judge_answers(each)
        err.print(f"verify  {each} ...")
    raise AssertionError("ask ends with the answers")
