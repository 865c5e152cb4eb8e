"""`firesteel key add|list|revoke`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from firesteel.cli.options import common
from firesteel.cli.output.invocation import typed
from firesteel.edge.files.home import find_home
from firesteel.gateway.keys import MAX_PRIORITY, Key, add_key, keys_path, read_keys, revoke_key
from firesteel.gateway.rate_limits import KeyLimits, RateLimit, parse_rate_limit

if TYPE_CHECKING:  # a document is made only when one is asked for
    from firesteel.cli.output.documents import KeyJson


@click.group("key")
def command() -> None:
    """Keys of the gateway: who may ask, for which models, how much.

    With no keys the gateway serves this machine only. A gateway that runs sees a change within seconds.
    """


def _read_rate(ctx: click.Context, param: click.Parameter, value: str | None) -> RateLimit | None:
    return None if value is None else parse_rate_limit(value)


@command.command("add")
@click.argument("name")
@click.option("--admin", is_flag=True, help="It may also load, unload, and read logs and metrics.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="Only for this model; repeatable.")
@click.option(
    "--rate", "requests", metavar="60/m", callback=_read_rate, help="Requests in a second, minute, hour, day."
)
@click.option(
    "--tokens-rate", "tokens", metavar="100000/m", callback=_read_rate, help="Tokens, of prompts and answers."
)
@click.option(
    "--priority",
    type=click.IntRange(-MAX_PRIORITY, MAX_PRIORITY),
    default=0,
    show_default=True,
    help="Higher goes first among those who wait.",
)
@common.json_option
def add(
    name: str,
    admin: bool,
    models: tuple[str, ...],
    requests: RateLimit | None,
    tokens: RateLimit | None,
    priority: int,
    as_json: bool,
) -> None:
    """Make a key; its token is printed once, and kept nowhere but as a hash."""
    path = keys_path(find_home())
    key, token = add_key(
        path,
        name,
        scope="admin" if admin else "inference",
        models=models or None,
        limits=KeyLimits(requests, tokens),
        priority=priority,
    )
    if as_json:
        from firesteel.cli.output.documents import KeyAddedJson

        common.print_json(KeyAddedJson(token=token, key=_json(key), path=str(path)))
        return
    click.echo(token)
    click.echo(f"key `{name}` ({key.id}) is made; this is the only time that its token is shown", err=True)


@command.command("list")
@common.json_option
def list_(as_json: bool) -> None:
    """The keys there are."""
    keys = read_keys(keys_path(find_home())).values()
    if as_json:
        from firesteel.cli.output.documents import KeysJson

        common.print_json(KeysJson(keys=[_json(key) for key in keys]))
        return
    if not keys:
        click.echo(typed("there are no keys; next: firesteel key add NAME"))
        return
    from firesteel.cli.output.show import out, table  # slow to load, and `add` has no table

    out.print(
        table(("name", "id", "scope", "models", "rate", "tokens", "priority", "created"), map(_row, keys))
    )


@command.command("revoke")
@click.argument("name")
@common.json_option
def revoke(name: str, as_json: bool) -> None:
    """Take a key back: a running gateway refuses it within seconds; what it asked for already is finished."""
    key = revoke_key(keys_path(find_home()), name)
    if as_json:
        from firesteel.cli.output.documents import KeyRevokedJson

        common.print_json(KeyRevokedJson(key=_json(key)))
        return
    click.echo(f"key `{name}` ({key.id}) is revoked", err=True)


def _row(key: Key) -> list[str]:
    limits = key.limits
    models = "all" if key.models is None else ", ".join(key.models)
    rates = [str(limits.requests or "-"), str(limits.tokens or "-")]
    return [key.name, key.id, key.scope, models, *rates, str(key.priority), key.created]


def _json(key: Key) -> KeyJson:
    from firesteel.cli.output.documents import KeyJson

    return KeyJson(
        name=key.name,
        id=key.id,
        scope=key.scope,
        models=None if key.models is None else list(key.models),
        requests=str(key.limits.requests) if key.limits.requests else None,
        tokens=str(key.limits.tokens) if key.limits.tokens else None,
        priority=key.priority,
        created=key.created,
    )
