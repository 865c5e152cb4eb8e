"""`firesteel`: finds the command, and turns every failure into a message and an exit code."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any, NoReturn

import click

from firesteel import __version__
from firesteel.cli.output.invocation import typed
from firesteel.edge.host.signals import interrupted_by_signals
from firesteel.errors import FiresteelError

COMMANDS = {
    "models": "List the models: whether each fits, and how fast it would be.",
    "plan": "Predict whether a model fits and how fast it is, before any download.",
    "check": "Find what will crash, have no effect or wedge the host in a command or a file.",
    "facts": "Show what works on a GB10, release by release.",
    "up": "Plan, check, launch and verify a model.",
    "verify": "Verify again that a running model gives correct answers.",
    "ps": "List what runs.",
    "logs": "Print what an engine wrote to its log.",
    "diagnose": "Find out from its log why an engine did not start.",
    "down": "Stop a service, and wait until its memory is free again.",
    "bench": "Measure how fast a model is, with confidence intervals.",
    "compare": "Compare two runs, a run and its plan, or a run and published ones.",
    "tune": "Search for better settings; each is started, verified and measured.",
    "history": "List the measured runs; export, import or delete them.",
    "serve": "Serve all models of a service file at one URL, loaded on demand.",
    "pull": "Download everything a model needs, so that it starts offline; --prune removes unused files.",
    "render": "Write the launch for docker, compose, Kubernetes, systemd, quadlet or sparkrun.",
    "key": "Create, list and revoke the gateway's keys.",
    "client": "Configure OpenCode, Claude Code, Codex, Continue, Zed or Open WebUI.",
    "learn": "Read the flags of an engine release, so that `check` knows them.",
}
"""Here, so that `--help` need not import the modules; each is `command` in `firesteel.cli.NAME`."""


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
            from difflib import get_close_matches  # slow to load, and only a mistake needs it

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean `firesteel {near[0]}`?" if near else ""
            raise click.UsageError(f"there is no command `{args[0]}`{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="firesteel")
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
@click.option(
    "--sim", metavar="[NAME]", help="Run on a simulated Spark: idle, busy, collapse, hang, crash, ..."
)
@click.pass_context
def firesteel(ctx: click.Context, debug: bool, as_json: bool, sim: str | None) -> None:
    """Take an NVIDIA DGX Spark from bare to a fast, correct, safe LLM service.

    \b
    firesteel                 show this host, what fits it and what to type next
    firesteel up              serve a model (without a GPU: a small one, on the CPU)
    firesteel plan MODEL      predict whether it fits and how fast it will be
    """
    if sim is not None:
        _enter_simulation(sim)
    if ctx.invoked_subcommand is None:
        importlib.import_module("firesteel.cli.overview").show(as_json)


def _enter_simulation(name: str) -> None:
    """From here on this process, and what it starts, runs on a simulated Spark."""
    import os

    from firesteel.sim import enter
    from firesteel.sim.spark import read_spark

    folder = enter(name or None, os.environ)
    os.environ["FIRESTEEL_COMMAND"] = f"{os.environ.get('FIRESTEEL_COMMAND') or 'firesteel'} --sim"
    spark = read_spark(folder)
    scenario = f"scenario `{spark.name}` (--sim idle for a fresh one)" if spark.name else "no scenario"
    speed = f"starts take 1/{spark.faster:g} of their time, prompts 1/{spark.reads_faster:g}"
    click.echo(f"simulated Spark: nothing it shows was measured; {scenario}; {speed}", err=True)


def _with_sim_value(argv: list[str]) -> list[str]:
    """`--sim up` and `--sim collapse up`: the argument after `--sim` is its value unless it is a command."""
    for index, argument in enumerate(argv):
        if not argument.startswith("-"):
            break
        if argument == "--sim":
            rest = argv[index + 1 :]
            has_value = bool(rest) and rest[0] not in COMMANDS and not rest[0].startswith("-")
            return [*argv[:index], f"--sim={rest[0] if has_value else ''}", *rest[has_value:]]
    return argv


def main(argv: list[str] | None = None) -> NoReturn:
    gc.set_threshold(50_000)  # most commands end soon: a tenth of their time would go on finding no garbage
    argv = _with_sim_value(sys.argv[1:] if argv is None else argv)
    options = argv[: argv.index("--")] if "--" in argv else argv
    try:
        with interrupted_by_signals():
            code = _run(argv)
        sys.exit(code)
    except FiresteelError as error:
        if "--debug" in options:
            raise
        _report(error, as_json="--json" in options)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as stop:
        click.echo(f"interrupted; {stop}" if str(stop) else "interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone, so there is nobody to tell
        sys.exit(0)
    except Exception as error:
        if "--debug" in options:
            raise
        what = f"internal error: {type(error).__name__}: {error}"
        _report(
            FiresteelError(what, next="firesteel --debug ..., for the traceback"), as_json="--json" in options
        )
        sys.exit(1)


def _run(argv: list[str]) -> int:
    try:
        code: Any = firesteel.main(argv, prog_name="firesteel", standalone_mode=False)
    except click.UsageError as error:
        from firesteel.errors import UsageError

        command = error.ctx.command_path if error.ctx else "firesteel"
        raise UsageError(error.format_message(), next=f"{command} --help") from error
    except click.ClickException as error:
        raise FiresteelError(error.format_message()) from error
    return code if isinstance(code, int) else 0


def _report(error: FiresteelError, as_json: bool) -> None:
    if as_json:
        from firesteel.cli.options.common import print_json
        from firesteel.cli.output.documents.error import ErrorJson

        print_json(ErrorJson(kind=error.kind, message=error.what, next=error.next, exit_code=error.exit_code))
        return
    click.echo(f"{error.kind}: {error.what}", err=True)
    if error.next:
        click.echo(f"next: {typed(error.next)}", err=True)
