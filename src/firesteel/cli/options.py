"""Options that several commands share, the parsers of their values, and what the shell offers after TAB.

A parser raises a UsageError with an example of what to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from firesteel.errors import UsageError
from firesteel.launch import AdapterReference, Text
from firesteel.units import parse_count

if TYPE_CHECKING:
    from firesteel.values import Value

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


despite_option = click.option(
    "--despite",
    multiple=True,
    metavar="CHECK",
    help="Serve a checkpoint although its audit stops at this check; repeatable.",
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


def print_json(document: Value) -> None:
    from firesteel.values import encode_json  # loads msgspec, which only `--json` needs here

    click.echo(encode_json(document))


# --- names after TAB ---


def complete_recipe(context: click.Context, parameter: click.Parameter, start: str) -> list[str]:
    from firesteel.library import plans  # only when the shell asks

    return [name for name in sorted(plans.catalog().recipes) if name.startswith(start)]


def complete_service(context: click.Context, parameter: click.Parameter, start: str) -> list[str]:
    from firesteel.library import run  # only when the shell asks

    return [service.name for service in run.services() if service.name.startswith(start)]


# --- values of `bench`, `bench compare`, `tune` and `upgrade`: sizes, durations, shares ---

T = TypeVar("T")
_MAX_VALUES = 64
_UNITS_S = {"s": 1, "": 1, "m": 60, "min": 60, "h": 3600}


def several(convert: Callable[[str], T]) -> Callable[..., tuple[T, ...]]:
    """A click callback for a list with commas: `1,4,16`."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[T, ...]:
        parts = value.split(",") if value else []
        if len(parts) > _MAX_VALUES:
            raise UsageError(f"{param.opts[0]}: at most {_MAX_VALUES} values", next="firesteel bench --help")
        return tuple(convert(part.strip()) for part in parts)

    return read


def one(convert: Callable[[str], T]) -> Callable[..., T]:
    """A click callback for one value."""
    return lambda ctx, param, value: convert(value)


def _scaled(text: str, units: Mapping[str, int], what: str, example: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?([a-zA-Z]{0,3})", text)
    if match is None or match[2].lower() not in units:
        raise UsageError(f"`{text[:40]}` is not a {what}", next=f"write it like {example}")
    return float(match[1]) * units[match[2].lower()]


def seconds(text: str) -> float:
    """`90s`, `5m`, `1h`."""
    duration = _scaled(text, _UNITS_S, "duration", "90s, 5m, 1h")
    if not 1 <= duration <= 7 * 86400:
        raise UsageError(f"--budget {text} is not between 1 second and 7 days", next="--budget 5m")
    return duration


def tokens(text: str) -> int:
    """`8k` is 8192."""
    try:
        return parse_count(text)
    except ValueError as error:
        raise UsageError(str(error), next="write it like 512, 8k, 1m") from None


def share(text: str) -> float:
    """`2%`, `0.02`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise UsageError(f"`{text[:40]}` is not a share between 0 and 1", next="write it like 2% or 0.02")
    return value


def count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", text):
        raise UsageError(f"`{text[:40]}` is not a number of users", next="write it like 1,4,16")
    return int(text)


def rate(text: str) -> float:
    return _scaled(text, {"": 1}, "rate", "0.5,2")


def text_kind(text: str) -> Text:
    if text not in get_args(Text):
        raise UsageError(
            f"there is no kind of text `{text[:40]}`", next=f"one of {', '.join(get_args(Text))}"
        )
    kind: Text = text  # type: ignore[assignment]  # it is one of them
    return kind


def target(text: str) -> tuple[str, float]:
    """`ttft=500ms` or `token=50ms`."""
    name, _, value = text.partition("=")
    names = {"ttft": "ttft_ms", "token": "inter_token_ms"}
    if name not in names:
        raise UsageError(f"`{text[:40]}` is not a target", next="--target ttft=500ms,token=50ms")
    return names[name], _scaled(value, {"ms": 1, "s": 1000}, "time", "500ms, 2s")


# --- options that `bench`, `bench compare --ab` and `tune` share ---


def _option(prefix: str, *names: str, help: str, **settings: Any) -> Callable[[F], F]:
    """`prefix` says when the option applies: `With --ab: `."""
    text = f"{prefix}{help[0].lower()}{help[1:]}" if prefix else help
    return click.option(*names, help=text, **settings)


def text_option(prefix: str = "") -> Callable[[F], F]:
    kinds = ", ".join(get_args(Text))
    return _option(
        prefix,
        "--text",
        callback=several(text_kind),
        metavar="KIND",
        help=f"Send this kind of text: {kinds}.",
    )


def seed_option(prefix: str = "") -> Callable[[F], F]:
    seeds = click.IntRange(0, 2**31 - 1)
    about = "Choose prompts and their order by this seed."
    return _option(prefix, "--seed", type=seeds, default=0, show_default=True, help=about)


thinking_option = click.option(
    "--thinking", type=click.Choice(["on", "off"]), help="Switch thinking on or off (default: the server's)."
)


def load_options(budget: str, prefix: str = "") -> Callable[[F], F]:
    """The load to measure with, and for how long."""

    def option(*names: str, help: str, **settings: Any) -> Callable[[F], F]:
        return _option(prefix, *names, help=help, **settings)

    shapes_help = "Use this load shape; repeatable. `bench --shape list` lists them."
    lengths = several(tokens)
    return together(
        option("--shape", "shapes", multiple=True, metavar="NAME", help=shapes_help),
        option("--users", callback=several(count), metavar="1,4,16", help="Keep this many streams open."),
        option("--depth", callback=lengths, metavar="1k,8k", help="Send prompts of this many tokens."),
        option("--answer", callback=lengths, metavar="N", help="Ask for answers of this many tokens."),
        text_option(prefix),
        option(
            "--budget",
            default=budget,
            callback=one(seconds),
            metavar="TIME",
            show_default=True,
            help="Measure for this long in total at most.",
        ),
        option(
            "--precision",
            default="2%",
            callback=one(share),
            show_default=True,
            help="Stop when the intervals are this narrow.",
        ),
        seed_option(prefix),
    )


# --- what `verify` and `bench` are pointed at ---


def require_one_target(command: str, name: str | None, url: str | None, model: str | None) -> None:
    if url and name:
        raise UsageError("give NAME (a service of firesteel) or --url, not both", next="firesteel ps")
    if model and not url:
        raise UsageError(
            "--model needs --url", next=f"firesteel {command} --url http://host:8000/v1 --model M"
        )
