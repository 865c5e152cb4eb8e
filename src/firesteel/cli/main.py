"""`firesteel`: finds the command, and turns every failure into a sentence and an exit code."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NoReturn

import click

from firesteel import __version__
from firesteel.cli.output.invocation import typed
from firesteel.errors import FiresteelError

COMMANDS = {
    "models": "What there is, does it fit, how fast it would be.",
    "plan": "Does it fit, and how fast, before any download.",
    "check": "What will crash, do nothing or wedge the host in a command or a file.",
    "facts": "What works on a GB10, release by release.",
    "up": "Plan, check, launch, verify: a model that answers.",
    "verify": "Prove again that a running model answers rightly.",
    "ps": "What runs.",
    "logs": "What an engine printed.",
    "diagnose": "Why an engine did not start, from its log.",
    "down": "Stop, and wait until the memory is back.",
    "bench": "How fast it is, measured, with intervals.",
    "compare": "Two runs, a run and its plan, or what others published: is the difference real?",
    "tune": "Better settings, found by trying them: each started, verified, measured.",
    "history": "Every run that was measured; export, import, delete.",
    "serve": "One URL over all models of a service file, loaded when asked for.",
    "pull": "Fetch all that a model needs now; then it starts offline. --prune removes what nothing uses.",
    "render": "The launch as docker, compose, Kubernetes, systemd, quadlet or sparkrun takes it.",
    "key": "Keys of the gateway: make, list and revoke them.",
    "client": "The configuration of OpenCode, Claude Code, Codex, Continue, Zed, Open WebUI.",
    "learn": "Read the flags of an engine release, so that `check` can know them.",
}
"""Kept here so that `--help` imports nothing; each is `command` in `firesteel.cli.NAME`."""


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"firesteel.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches  # only on a mistake: it costs a tenth of the start

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean `firesteel {near[0]}`?" if near else ""
            raise click.UsageError(f"there is no command `{args[0]}`{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="firesteel")
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--sim", metavar="[NAME]", help="On a pretend Spark: idle, busy, collapse, hang, crash, ...")
@click.pass_context
def firesteel(ctx: click.Context, debug: bool, as_json: bool, sim: str | None) -> None:
    """Takes an NVIDIA DGX Spark from bare to a fast, correct, safe LLM service.

    \b
    firesteel                 this machine, what fits it, what to type
    firesteel up              serve a model (with no GPU: a small one, for real)
    firesteel plan MODEL      does it fit, how fast will it be
    """
    if sim is not None:
        _pretend(sim)
    if ctx.invoked_subcommand is None:
        importlib.import_module("firesteel.cli.welcome").show(as_json)


def _pretend(name: str) -> None:
    """From here on this process lives on a pretend Spark, and so does what it starts."""
    import os

    from firesteel.sim import enter
    from firesteel.sim.spark import read_spark

    folder = enter(name or None, os.environ)
    os.environ["FIRESTEEL_COMMAND"] = f"{os.environ.get('FIRESTEEL_COMMAND') or 'firesteel'} --sim"
    world = read_spark(folder)
    faster = f"starts take 1/{world.faster:g} of their time, prompts 1/{world.reads_faster:g}"
    which = f"scenario `{world.name}`, --sim idle for a fresh one" if world.name else "of no named scenario"
    click.echo(f"this is a pretend Spark: nothing that it shows was measured; {which}; {faster}", err=True)


def _with_sim_named(words: list[str]) -> list[str]:
    """`--sim up` and `--sim collapse up`: the word after `--sim` is its value unless it is a command."""
    for at, word in enumerate(words):
        if not word.startswith("-"):
            break
        if word == "--sim":
            is_named = at + 1 < len(words) and words[at + 1] not in COMMANDS and words[at + 1][:1] != "-"
            value = words[at + 1] if is_named else ""
            return [*words[:at], f"--sim={value}", *words[at + 1 + is_named :]]
    return words


def main(argv: list[str] | None = None) -> NoReturn:
    words = _with_sim_named(sys.argv[1:] if argv is None else argv)
    options = words[: words.index("--")] if "--" in words else words
    try:
        sys.exit(_run(words))
    except FiresteelError as error:
        if "--debug" in options:
            raise
        _complain(error, as_json="--json" in options)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as stop:
        click.echo(f"interrupted; {stop}" if str(stop) else "interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; there is nobody to tell
        sys.exit(0)
    except Exception as error:
        if "--debug" in options:
            raise
        what = f"firesteel met a fault of its own: {type(error).__name__}: {error}"
        _complain(
            FiresteelError(what, next="run it again with --debug in front: firesteel --debug ..."),
            "--json" in options,
        )
        sys.exit(1)


def _run(words: list[str]) -> int:
    try:
        code: Any = firesteel.main(words, prog_name="firesteel", standalone_mode=False)
    except click.UsageError as error:
        from firesteel.errors import UsageError

        command = error.ctx.command_path if error.ctx else "firesteel"
        raise UsageError(error.format_message(), next=f"{command} --help") from error
    except click.ClickException as error:
        raise FiresteelError(error.format_message()) from error
    return code if isinstance(code, int) else 0


def _complain(error: FiresteelError, as_json: bool) -> None:
    if as_json:
        from firesteel.cli.output.fill import error_document

        click.echo(error_document(error).model_dump_json(indent=1))
        return
    click.echo(f"{error.kind}: {error.what}", err=True)
    if error.next:
        click.echo(f"next: {typed(error.next)}", err=True)
