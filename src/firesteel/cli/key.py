"""`firesteel key add|list|revoke`"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.library import documents, serve
from firesteel.library.serve import Key, RateLimit, TokenBudget, parse_budget, parse_rate_limit

T = TypeVar("T")


@click.group("key")
def command() -> None:
    """Create, list and revoke the gateway's keys.

    A key says who may use which models, and how much. Without keys the gateway serves only this machine. A
    running gateway knows a new key at once, and refuses a revoked one within seconds.
    """


def _parsed(parse: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    return lambda ctx, param, value: None if value is None else parse(value)


@command.command("add")
@click.argument("name")
@click.option("--admin", is_flag=True, help="Allow loading and unloading models, logs and metrics, too.")
@click.option("--metrics", is_flag=True, help="Allow only /metrics, for a Prometheus.")
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help="Allow only this model, or 'qwen*'; repeatable."
)
@click.option(
    "--rate",
    "requests",
    metavar="60/m",
    callback=_parsed(parse_rate_limit),
    help="Limit requests; 60/m is 60 a minute (or s, h, d).",
)
@click.option(
    "--tokens-rate",
    "tokens",
    metavar="100000/m",
    callback=_parsed(parse_rate_limit),
    help="Limit tokens of prompts and answers.",
)
@click.option(
    "--budget",
    metavar="5M/month",
    callback=_parsed(parse_budget),
    help="Limit tokens a day or a month, in this host's time zone.",
)
@click.option(
    "--expires",
    metavar="30d",
    callback=_parsed(serve.parse_expiry),
    help="Refuse it from then on: after 12h or 30d, or after a day, 2026-12-31.",
)
@click.option(
    "--priority",
    type=click.IntRange(-serve.MAX_PRIORITY, serve.MAX_PRIORITY),
    default=0,
    show_default=True,
    help="Serve waiting requests with a higher priority first.",
)
@options.json_option
def add(
    name: str,
    admin: bool,
    metrics: bool,
    models: tuple[str, ...],
    requests: RateLimit | None,
    tokens: RateLimit | None,
    budget: TokenBudget | None,
    expires: datetime | None,
    priority: int,
    as_json: bool,
) -> None:
    """Create a key and print its token, once; only a hash of it is stored."""
    if admin and metrics:
        raise click.UsageError("--admin and --metrics exclude each other: an admin key may read metrics, too")
    key, token = serve.add_key(
        name,
        scope="admin" if admin else "metrics" if metrics else "inference",
        models=models or None,
        limits=serve.KeyLimits(requests, tokens, budget),
        priority=priority,
        expires=expires,
    )
    if as_json:
        shown = documents.serve.key_json(key)
        options.print_json(documents.serve.KeyAddJson.of(token=token, key=shown, path=str(serve.keys_file())))
        return
    click.echo(token)
    click.echo(f"created key `{name}` ({key.id}); this is the only time its token is shown", err=True)


@command.command("list")
@options.json_option
def list_(as_json: bool) -> None:
    """List the keys."""
    found = serve.keys()
    if as_json:
        options.print_json(documents.serve.KeyListJson.of(keys=tuple(map(documents.serve.key_json, found))))
        return
    if not found:
        click.echo(typed("there are no keys; next: firesteel key add NAME"))
        return
    from firesteel.cli.output.show import out, table  # slow to load, and `add` prints no table

    columns = ("name", "id", "scope", "models", "rate", "tokens", "budget", "priority", "created", "expires")
    out.print(table(columns, map(_row, found)))


@command.command("revoke")
@click.argument("name")
@options.json_option
def revoke(name: str, as_json: bool) -> None:
    """Revoke a key: a running gateway refuses it within seconds, and stops its open requests."""
    key = serve.revoke_key(name)
    if as_json:
        options.print_json(documents.serve.KeyRevokeJson.of(key=documents.serve.key_json(key)))
        return
    click.echo(f"revoked key `{name}` ({key.id})", err=True)


def _row(key: Key) -> list[str]:
    limits = key.limits
    models = "all" if key.models is None else ", ".join(key.models)
    rates = [str(limits.requests or "-"), str(limits.tokens or "-"), str(limits.budget or "-")]
    expires = f"{key.expires}, expired" if key.expires_s <= time.time() else key.expires or "never"
    return [key.name, key.id, key.scope, models, *rates, str(key.priority), key.created, expires]
