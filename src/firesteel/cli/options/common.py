"""The words that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:  # words are read before it is known whether a document is wanted
    from firesteel.cli.output.documents import Document

F = TypeVar("F", bound=Callable[..., Any])


def _json_anywhere(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    """`firesteel --json ps` says the same as `firesteel ps --json`."""
    return value or bool(ctx.find_root().params.get("as_json"))


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_json_anywhere, help="One JSON document on stdout."
)
host_option = click.option(
    "--host", "host_name", metavar="NAME", help="Plan for this machine (gb10) instead of yours."
)


def size_options(function: F) -> F:
    for option in (
        click.option("--port", type=click.IntRange(1, 65535), help="Port to serve on (default 8000)."),
        click.option("--users", type=click.IntRange(1), help="Requests to serve at once."),
        click.option("--context", type=click.IntRange(1), help="Tokens each request may use."),
    ):
        function = option(function)
    return function


def print_json(document: Document) -> None:
    click.echo(document.model_dump_json(indent=1))
