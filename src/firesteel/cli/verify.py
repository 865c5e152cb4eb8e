"""`firesteel verify [NAME]`, `firesteel verify --url http://host:8000/v1`"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import click

from firesteel.cli.endpoints import KEY_VARIABLES, base_url, key_from, pick_service, require_one_target
from firesteel.cli.options import common
from firesteel.cli.output.proofs import proofs_view
from firesteel.cli.output.show import err, out
from firesteel.edge.http.engine_client import is_healthy, offered_models, status
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.run import Expected, Service, Verification, death, last_lines, stored_expected
from firesteel.run.verify.prove import key_of
from firesteel.run.verify.verify import verify

_LOG_LINES = 100_000


@dataclass(frozen=True, slots=True)
class _Target:
    """A server to verify, and what is known about it."""

    name: str
    url: str
    model: str
    expected: Expected
    key: str | None = None
    read_log: Callable[[], str] | None = None


@click.command("verify")
@click.argument("name", required=False)
@click.option("--url", help="Verify any OpenAI endpoint (http://host:8000/v1) instead of a service.")
@click.option("--model", help="With --url: verify this model, if the server has several.")
@common.json_option
def command(name: str | None, url: str | None, model: str | None, as_json: bool) -> int:
    """Verify again that NAME gives correct answers.

    \b
    Exits 0  every gate passed; notes do not fail it
          1  a gate failed: the answers are wrong
          5  it could not be tested: it does not run, does not answer, or stopped answering

    The key for --url is read from FIRESTEEL_API_KEY or OPENAI_API_KEY, never from the command line.
    """
    require_one_target("verify", name, url, model)
    proof, target = asyncio.run(_prove(name, url, model))
    if as_json and proof.is_unanswered:
        raise _unanswered(proof, target)  # the error is the one document on stdout
    if as_json:
        from firesteel.run.documents import VerifyJson

        common.print_json(VerifyJson(name=target.name, verified=proof.is_good, checks=tuple(proof.checks)))
    else:
        out.print(proofs_view(proof.checks))
    if proof.is_unanswered:
        raise _unanswered(proof, target)
    return 0 if proof.is_good else 1


def _unanswered(proof: Verification, target: _Target) -> HostNotReady:
    last = proof.failed[-1]
    what = f"{target.name} could not be verified ({last.name}: {last.observed})"
    return HostNotReady(what, next="firesteel ps" if target.read_log else f"curl -i {target.url}/v1/models")


async def _prove(name: str | None, url: str | None, model: str | None) -> tuple[Verification, _Target]:
    target = await _at_url(url, model, os.environ) if url else await _of_service(pick_service(name))
    events = verify(target.url, target.model, target.expected, key=target.key, read_log=target.read_log)
    async for event in events:
        if isinstance(event, Verification):
            return event, target
        if isinstance(event, str):
            err.print(f"verify  {event} ...", markup=False)
    raise AssertionError("verify ends with the proof")


async def _of_service(service: Service) -> _Target:
    spec, log = service.spec, service.log
    if service.phase == "dead":
        raise HostNotReady(f"{service.name} is dead: {death(service.state)}", next=spec.again)
    if not await is_healthy(spec.url, timeout_s=10):
        raise HostNotReady(
            f"{service.name} runs but does not answer at {spec.url}/health within 10 s",
            next=f"firesteel logs {service.name}, then firesteel down {service.name}",
        )

    def read_log() -> str:
        return "\n".join(last_lines(log, _LOG_LINES)) if log.exists() else ""

    return _Target(
        service.name, spec.url, spec.model, stored_expected(service.folder), key_of(spec), read_log
    )


async def _at_url(url: str, model: str | None, environ: Mapping[str, str]) -> _Target:
    base, key = base_url(url), key_from(environ)
    models = await offered_models(base, key=key)
    names = [str(row["id"]) for row in models if isinstance(row.get("id"), str)]
    chosen = model or (names[0] if len(names) == 1 else None)
    if chosen is None:
        raise await _no_model(base, names, key)
    # A server that answers without the key never checked it, so the key proves nothing about the server.
    is_open = key is not None and await status(f"{base}/v1/models", timeout_s=10) == 200
    row = next((row for row in models if row.get("id") == chosen), {})
    expected = Expected(parameters=_count(row, "n_params"), context=_count(row, "max_model_len", "n_ctx"))
    return _Target(chosen, base, chosen, expected, None if is_open else key)


async def _no_model(base: str, names: list[str], key: str | None) -> FiresteelError:
    if names:
        shown = ", ".join(names[:8])
        return UsageError(f"{base} serves several models: {shown}", next=f"add --model {names[0]}")
    code = await status(f"{base}/v1/models", timeout_s=10, key=key)
    if code in (401, 403):
        what = "rejects the key" if key else "asks for a key"
        return HostNotReady(
            f"{base} {what} (HTTP {code})", next=f"export {KEY_VARIABLES[0]}=..., then run it again"
        )
    answer = f"answers HTTP {code}" if code else "does not answer"
    return HostNotReady(f"{base}/v1/models {answer}", next=f"curl -i {base}/v1/models")


def _count(row: Mapping[str, object], *names: str) -> int | None:
    """What the server reports: `max_model_len` (vLLM), `n_ctx` and `n_params` in `meta` (llama.cpp)."""
    meta = row.get("meta")
    fields = {**(meta if isinstance(meta, dict) else {}), **row}
    values = (fields.get(name) for name in names)
    return next((n for n in values if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)
