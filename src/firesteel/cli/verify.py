"""`firesteel verify [NAME]`, `firesteel verify --url http://host:8000/v1`"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import click

from firesteel import library
from firesteel.cli.options import common
from firesteel.cli.output.documents import VerifyJson
from firesteel.cli.output.fill import proofs_json
from firesteel.cli.output.proofs import proofs_view
from firesteel.cli.output.show import err, out
from firesteel.edge.http.engine_client import is_healthy, offered_models, status
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.run import Expected, Service, Verification, death, last_lines, pick, stored_expected
from firesteel.run.verify.prove import key_of
from firesteel.run.verify.verify import verify

_KEYS = ("FIRESTEEL_API_KEY", "OPENAI_API_KEY")
_LOG_LINES = 100_000


@dataclass(frozen=True, slots=True)
class _Asked:
    """A server to prove, and what is known of it."""

    name: str
    url: str
    model: str
    expect: Expected
    key: str | None = None
    read_log: Callable[[], str] | None = None


@click.command("verify")
@click.argument("name", required=False)
@click.option("--url", help="Any OpenAI endpoint, http://host:8000/v1, in place of a service of ours.")
@click.option("--model", help="With --url: which of its models, where it has several.")
@common.json_option
def command(name: str | None, url: str | None, model: str | None, as_json: bool) -> int:
    """Prove again that NAME answers rightly.

    \b
    Exits 0  every gate passed; notes only tell
          1  a gate failed: what it answers is wrong
          5  it could not be asked: it does not run, it does not answer, or it stopped answering

    A key for --url is read from FIRESTEEL_API_KEY or OPENAI_API_KEY, never from the command line.
    """
    if url and name:
        raise UsageError("NAME is a service of ours, --url any other; give one of them", next="firesteel ps")
    if model and not url:
        raise UsageError(
            "--model goes with --url", next="firesteel verify --url http://host:8000/v1 --model M"
        )
    proof, asked = asyncio.run(_prove(name, url, model))
    if as_json and proof.is_unanswered:
        raise _unanswered(proof, asked)  # the error is the one document
    if as_json:
        document = VerifyJson(name=asked.name, verified=proof.is_good, checks=proofs_json(proof.checks))
        common.print_json(document)
    else:
        out.print(proofs_view(proof.checks))
    if proof.is_unanswered:
        raise _unanswered(proof, asked)
    return 0 if proof.is_good else 1


def _unanswered(proof: Verification, asked: _Asked) -> HostNotReady:
    last = proof.failed[-1]
    what = f"{asked.name} could not be proved right or wrong ({last.name}: {last.observed})"
    return HostNotReady(what, next="firesteel ps" if asked.read_log else f"curl -i {asked.url}/v1/models")


async def _prove(name: str | None, url: str | None, model: str | None) -> tuple[Verification, _Asked]:
    asked = await _foreign(url, model, os.environ) if url else await _ours(_picked(name))
    async for each in verify(asked.url, asked.model, asked.expect, key=asked.key, read_log=asked.read_log):
        if isinstance(each, Verification):
            return each, asked
        if isinstance(each, str):
            err.print(f"verify  {each} ...", markup=False)
    raise AssertionError("verify ends with the proof")


def _picked(name: str | None) -> Service:
    """A service that is not there can no more be asked than one that is silent."""
    try:
        return pick(library.home(), name)
    except UsageError:
        raise
    except FiresteelError as error:
        raise HostNotReady(error.what, next=error.next) from error


async def _ours(service: Service) -> _Asked:
    spec = service.spec
    if service.phase == "dead":
        raise HostNotReady(f"{service.name} is dead: {death(service.state)}", next=spec.again)
    if not await is_healthy(spec.url, timeout_s=10):
        raise HostNotReady(
            f"{service.name} runs but does not answer at {spec.url}/health within 10 s",
            next=f"firesteel logs {service.name}, then firesteel down {service.name}",
        )
    return _Asked(
        service.name,
        spec.url,
        spec.model,
        stored_expected(service.folder),
        key_of(spec),
        _log_reader(service.log),
    )


def _log_reader(path: Path) -> Callable[[], str]:
    return lambda: "\n".join(last_lines(path, _LOG_LINES)) if path.exists() else ""


async def _foreign(url: str, model: str | None, environ: Mapping[str, str]) -> _Asked:
    base = base_of(url)
    key = next((environ[name] for name in _KEYS if environ.get(name)), None)
    models = await offered_models(base, key=key)
    names = [str(row["id"]) for row in models if isinstance(row.get("id"), str)]
    chosen = model or (names[0] if len(names) == 1 else None)
    if chosen is None:
        raise await _no_model(base, names, key)
    # A key that the server never asked for proves nothing about the server.
    is_open = key is not None and await status(f"{base}/v1/models", timeout_s=10) == 200
    row = next((each for each in models if each.get("id") == chosen), {})
    expect = Expected(parameters=_count(row, "n_params"), context=_count(row, "max_model_len", "n_ctx"))
    return _Asked(chosen, base, chosen, expect, None if is_open else key)


def base_of(url: str) -> str:
    """`http://host:8000/v1/` -> `http://host:8000`, or a UsageError."""
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_http = False
    if not is_http or parts.query or parts.fragment:
        raise UsageError(
            f"`{url}` is no address of a server", next="firesteel verify --url http://host:8000/v1"
        )
    if parts.username or parts.password:
        raise UsageError("a password does not belong in an address", next=f"export {_KEYS[0]}=...")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


async def _no_model(base: str, names: list[str], key: str | None) -> FiresteelError:
    if names:
        shown = ", ".join(names[:8])
        return UsageError(f"{base} serves several models: {shown}", next=f"add --model {names[0]}")
    seen = await status(f"{base}/v1/models", timeout_s=10, key=key)
    if seen in (401, 403):
        what = "does not take the key it was given" if key else "asks for a key"
        return HostNotReady(
            f"{base} {what} (HTTP {seen})", next=f"export {_KEYS[0]}=..., then the same again"
        )
    said = f"answers HTTP {seen}" if seen else "does not answer"
    return HostNotReady(f"{base}/v1/models {said}", next=f"curl -i {base}/v1/models")


def _count(row: Mapping[str, object], *names: str) -> int | None:
    """What the server says of its model: vLLM `max_model_len`, llama.cpp `n_ctx` and `n_params` in `meta`."""
    meta = row.get("meta")
    said = {**(meta if isinstance(meta, dict) else {}), **row}
    found = (said.get(name) for name in names)
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)
