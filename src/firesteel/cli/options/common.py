"""Options that most commands have, and how they print a document."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from firesteel.launch import AdapterReference
from firesteel.units import parse_count

if TYPE_CHECKING:  # loads msgspec, which only `--json` needs
    from firesteel.library.documents.document import Document

_ADAPTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
F = TypeVar("F", bound=Callable[..., Any])


def _json_anywhere(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    """`firesteel --json ps` does the same as `firesteel ps --json`."""
    return value or bool(ctx.find_root().params.get("as_json"))


class _Tokens(click.ParamType[int]):
    """`16384`, `16k`."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            count = value if isinstance(value, int) else parse_count(value)
        except ValueError as error:
            self.fail(f"{error}; write it like 16384 or 16k", param, ctx)
        if count < 1:
            self.fail(f"{count} is not in the range x>=1.", param, ctx)
        return count


TOKENS = _Tokens()
PATH, FILE = click.Path(path_type=Path), click.Path(path_type=Path, dir_okay=False)

json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_json_anywhere, help="Print one JSON document on stdout."
)
host_option = click.option(
    "--host", "host_name", metavar="NAME", help="Plan for this machine (gb10) instead of this host."
)


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help text."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def file_option(help: str) -> Callable[[F], F]:
    """Sets `path`, of a service file."""
    return click.option("-f", "--file", "path", type=PATH, help=help)


size_options = together(
    click.option("--context", type=TOKENS, help="Allow each request this many tokens, as 16k or 16384."),
    click.option("--users", type=click.IntRange(1), help="Serve this many requests at once."),
    click.option("--port", type=click.IntRange(1, 65535), help="Serve on this port (default 8000)."),
)


def _adapter(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[AdapterReference, ...]:
    pairs = [value.partition("=") for value in values]
    for name, equals, reference in pairs:
        if not (_ADAPTER.match(name) and equals and reference):
            raise click.BadParameter("write it like --adapter polite=/data/polite-lora", ctx, param)
    return tuple(AdapterReference(name, reference) for name, _, reference in pairs)


adapter_option = click.option(
    "--adapter",
    "adapters",
    multiple=True,
    callback=_adapter,
    metavar="NAME=PATH",
    help="Serve this LoRA adapter as model NAME, too: a PEFT folder, a GGUF, or a pulled Hub id; repeatable.",
)


def _native_by_path(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return "native" if ctx.params.get("engine_path") else value


runtime_options = together(
    click.option(
        "--native",
        "runtime",
        flag_value="native",
        callback=_native_by_path,
        help="Start an engine that is installed on this machine, in no container.",
    ),
    click.option(
        "--engine-path",
        is_eager=True,
        metavar="PATH",
        help="Use this program, environment or build folder; implies --native.",
    ),
)
"""Sets `runtime` and `engine_path`."""
cluster_options = together(
    click.option("--cluster", "is_cluster", is_flag=True, help="Serve it with all nodes together."),
    click.option("--nodes", type=click.IntRange(1, 8), help="Serve it with this many hosts together."),
)
"""Sets `is_cluster` and `nodes`."""


def print_json(document: Document) -> None:
    from firesteel.values import encode_json  # loads msgspec, which only `--json` needs here

    click.echo(encode_json(document))
