"""A command that does something by itself and has subcommands: `bench`, `bench NAME`, `bench list`.

A first word that is no subcommand is an argument of the command. A service that is called like a subcommand
comes after `--`: `bench -- list`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import click

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


class CommandGroup(click.Group):
    """`subcommands`: where each one is, as `firesteel.cli.MODULE:NAME`; imported when it is used."""

    allow_extra_args = False
    allow_interspersed_args = True

    def __init__(self, *args: Any, subcommands: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*args, **{**settings, "invoke_without_command": True})
        self._subcommands = subcommands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._subcommands)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self._subcommands:
            return None
        module, _, attribute = self._subcommands[name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        index = self._subcommand_index(ctx, args)
        if index is None:
            return click.Command.parse_args(self, ctx, args)
        click.Command.parse_args(self, ctx, [])
        # Options before the word are the subcommand's: `bench --json list`.
        ctx.args = [args[index], *args[:index], *args[index + 1 :]]
        return ctx.args

    def _subcommand_index(self, ctx: click.Context, args: list[str]) -> int | None:
        """Of the first word that is neither an option nor the value of one, if it is a subcommand."""
        options: list[click.Parameter] = [each for each in self.params if isinstance(each, click.Option)]
        parser = click.Command(self.name, params=options).make_parser(ctx)
        parser.allow_interspersed_args = False
        try:
            _, words, _ = parser.parse_args(list(args))
        except click.UsageError:
            return None
        index = len(args) - len(words)
        if not words or words[0] not in self._subcommands or (index and args[index - 1] == "--"):
            return None
        return index

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.args:
            return click.Command.invoke(self, ctx)
        name, command, args = self.resolve_command(ctx, ctx.args)
        assert command is not None
        with command.make_context(name, args, parent=ctx) as inner:
            return command.invoke(inner)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The usage of a subcommand does not show the command's own argument."""
        params = super().get_params(ctx)
        return params if ctx.command is self else [each for each in params if isinstance(each, click.Option)]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, " ".join(click.Command.collect_usage_pieces(self, ctx)))
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...", prefix="       ")


def or_subcommand(complete: Complete) -> Complete:
    """What `complete` offers after TAB, and the subcommands, which may only come first."""

    def offer(ctx: click.Context, param: click.Parameter, start: str) -> list[str]:
        names = ctx.command.list_commands(ctx) if isinstance(ctx.command, CommandGroup) else []
        first = not param.name or not ctx.params.get(param.name)
        return [name for name in names if first and name.startswith(start)] + complete(ctx, param, start)

    return offer
