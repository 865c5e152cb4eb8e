"""`firesteel serve key add|list|revoke` and `firesteel serve usage`: who may use the gateway, and who has."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import click

from firesteel.cli import options
from firesteel.cli.output.invocation import typed
from firesteel.library import documents, serve
from firesteel.library.serve import Key, RateLimit, TokenBudget, parse_budget, parse_rate_limit

if TYPE_CHECKING:
    from firesteel.gateway.admin.usage import UsageReport, UsageRow

T = TypeVar("T")


@click.group("key")
def key() -> None:
    """Create, list and revoke the gateway's keys.

    A key says who may use which models, and how much. Without keys the gateway serves only this machine. A
    running gateway knows a new key at once, and refuses a revoked one within seconds.
    """


def _parsed(parse: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    return lambda ctx, param, value: None if value is None else parse(value)


@key.command("add")
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
    "--at-once",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Limit requests at once, waiting or served.",
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
    at_once: int | None,
    expires: datetime | None,
    priority: int,
    as_json: bool,
) -> None:
    """Create a key and print its token, once; only a hash of it is stored."""
    if admin and metrics:
        raise click.UsageError("--admin and --metrics exclude each other: an admin key may read metrics, too")
    created, token = serve.add_key(
        name,
        scope="admin" if admin else "metrics" if metrics else "inference",
        models=models or None,
        limits=serve.KeyLimits(requests, tokens, budget, at_once),
        priority=priority,
        expires=expires,
    )
    if as_json:
        shown = documents.serve.key_json(created)
        options.print_json(documents.serve.KeyAddJson.of(token=token, key=shown, path=serve.keys_file()))
        return
    click.echo(token)
    click.echo(f"created key `{name}` ({created.id}); this is the only time its token is shown", err=True)


@key.command("list")
@options.json_option
def list_(as_json: bool) -> None:
    """List the keys."""
    found = serve.keys()
    if as_json:
        options.print_json(documents.serve.KeyListJson.of(keys=tuple(map(documents.serve.key_json, found))))
        return
    if not found:
        click.echo(typed("there are no keys; next: firesteel serve key add NAME"))
        return
    from firesteel.cli.output.show import out, table  # slow to load, and `add` prints no table

    columns = (
        "name",
        "id",
        "scope",
        "models",
        "rate",
        "tokens",
        "budget",
        "at once",
        "priority",
        "created",
        "expires",
    )
    out.print(table(columns, map(_key_cells, found)))


@key.command("revoke")
@click.argument("name")
@options.json_option
def revoke(name: str, as_json: bool) -> None:
    """Revoke a key: a running gateway refuses it within seconds, and stops its open requests."""
    revoked = serve.revoke_key(name)
    if as_json:
        options.print_json(documents.serve.KeyRevokeJson.of(key=documents.serve.key_json(revoked)))
        return
    click.echo(f"revoked key `{name}` ({revoked.id})", err=True)


def _key_cells(key: Key) -> list[str]:
    limits = key.limits
    models = "all" if key.models is None else ", ".join(key.models)
    rates = [
        str(limits.requests or "-"),
        str(limits.tokens or "-"),
        str(limits.budget or "-"),
        str(limits.at_once or "-"),
    ]
    expires = f"{key.expires}, expired" if key.expires_s <= time.time() else key.expires or "never"
    return [key.name, key.id, key.scope, models, *rates, str(key.priority), key.created, expires]


# --- usage ---


@click.command("usage")
@click.option("--since", metavar="DAY", help="Begin with this day, 2026-11-01 (default: 30 days).")
@click.option("--until", metavar="DAY", help="End with this day.")
@click.option("--key", metavar="NAME", help="Show only this key.")
@click.option("--model", metavar="NAME", help="Show only this model.")
@click.option("--by", metavar="day,key,model", help="Add up by these: `--by key`, `--by day,model`.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for a spreadsheet.")
@options.json_option
def usage(
    since: str | None,
    until: str | None,
    key: str | None,
    model: str | None,
    by: str | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Show requests and tokens by key, model and day, and what is left of budgets.

    From the gateway's own counts, also of streams that were cut. Days are those of this host's time zone.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")
    grouped = {"by": by.split(",")} if by is not None else {}
    report = serve.usage(since, until, key=key, model=model, **grouped)
    if as_json:
        options.print_json(report)
    elif as_csv:
        click.echo(serve.usage_as_csv(report), nl=False)
    else:
        _show_usage(report)


def _show_usage(report: UsageReport) -> None:
    from firesteel.cli.output.show import out, table  # slow to load, and CSV needs no table

    click.echo(f"{report.since} to {report.until}, days in {report.timezone}")
    if report.rows:
        columns = (*report.by, "requests", "prompt tokens", "answer tokens", "cached", "read again")
        rows = [
            _usage_cells(row, [getattr(row, name) or "(no key)" for name in report.by]) for row in report.rows
        ]
        out.print(
            table(columns, [*rows, _usage_cells(report.total, ["total", *("" for _ in report.by[1:])])])
        )
    else:
        click.echo(typed("nothing was used; next: firesteel serve"))
    for budget in report.budgets:
        share = f"{budget.spent:,} of {budget.tokens:,} tokens this {budget.period}"
        rest = f"{budget.over:,} over it" if budget.over else f"{budget.left:,} left"
        rest = f"{rest}; the next {budget.period} begins {budget.ends}"
        click.echo(f"{budget.key}: {share}, {rest}")


def _usage_cells(row: UsageRow, names: list[str]) -> list[str]:
    counts = (row.requests, row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.reread_tokens)
    return [*names, *(f"{count:,}" for count in counts)]
