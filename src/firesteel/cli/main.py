"""`firesteel`: finds the command, and turns every failure into a message and an exit code."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import Any, NoReturn

import click

from firesteel import __version__
from firesteel.cli.output.invocation import (
    OutputLost,
    discard_output,
    open_standard_streams,
    require_stdout,
    typed,
)
from firesteel.edge.host.signals import interrupted_by_signals
from firesteel.errors import FiresteelError, UsageError, escape_unprintable, printable
from firesteel.library import documents

SECTIONS = {
    "Choose and plan": {
        "models": "List the models: whether each fits, and how fast it would be.",
        "choose": "Choose engine, model and quantization for a use: three questions, one answer, why.",
        "plan": "Predict whether a model fits and how fast it is, before any download.",
        "check": "Find what will crash, do nothing or wedge the host; --facts shows what works on a GB10.",
    },
    "Run": {
        "up": "Plan, check, launch and verify a model.",
        "verify": "Verify again that a running model gives correct answers.",
        "ps": "List what runs.",
        "logs": "Print what an engine wrote to its log; --why finds out why it did not start.",
        "down": "Stop a service, and wait until its memory is free again.",
        "upgrade": "Try another release of the engine next to a running model; switch, keep, or roll back.",
    },
    "Serve": {
        "serve": "Serve all models of a service file at one URL, loaded on demand; web page, keys, usage.",
        "top": "Watch the gateway in the terminal: models, memory, curves, requests, logs.",
        "client": "Configure a coding agent or another client: Claude Code, OpenCode, Codex ...",
    },
    "Measure": {
        "bench": "Measure how fast a model is, with confidence intervals; list, compare and export runs.",
        "tune": "Search for better settings; each is started, verified and measured.",
    },
    "Weights": {
        "pull": "Download everything a model needs, so that it starts offline; --prune removes unused files.",
        "quantize": "Quantize a checkpoint to FP8, NVFP4 or MXFP4, without data and in bounded memory.",
        "audit": "Find what is wrong with a checkpoint, from its headers and scales; --fix repairs it.",
    },
    "Hosts": {
        "doctor": "Say what is wrong with this host, fix it with an undo, measure and watch it.",
        "cluster": "Join two to eight Sparks over ssh, check their links.",
    },
    "Recipes, engines, images": {
        "recipe": "Write, test and share recipes; list those by others, which are trusted with flags alone.",
        "render": "Write the launch for docker, compose, Kubernetes, systemd, quadlet or sparkrun.",
        "engine": "Install and build engines that run without a container; learn the flags of a release.",
        "image": "Say what is inside an image and whether it runs on a GB10; build one that does.",
    },
}
"""Here, so that `--help` need not import the modules; each is `command` in `firesteel.cli.NAME`."""
COMMANDS = {name: about for section in SECTIONS.values() for name, about in section.items()}
RENAMED = {
    "learn": "engine learn",
    "history": "bench list",
    "compare": "bench compare",
    "key": "serve key",
    "usage": "serve usage",
    "page": "serve --running",
    "repair": "audit MODEL --fix",
    "facts": "check --facts",
    "diagnose": "logs NAME --why",
}
"""Commands that had names of their own, and what to type now: older posts have them."""

_MAX_ARGUMENT_CHARS = 200


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"firesteel.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), about) for name, about in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in RENAMED:
            now = RENAMED[args[0]]
            raise UsageError(f"`{args[0]}` is now `{now}`", next=f"firesteel {now}")
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches  # slow to load, and only a mistake needs it

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"; did you mean `firesteel {near[0]}`?" if near else ""
            raise click.UsageError(f"there is no command `{args[0]}`{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("--version", "is_version", is_flag=True, help="Show the version and exit.")
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
@click.option(
    "--sim", metavar="[NAME]", help="Run on a simulated Spark, in a scenario; `--sim list` lists them."
)
@click.option("--on", metavar="NODE", help="Run the command on this node, over ssh.")
@click.pass_context
def firesteel(
    ctx: click.Context, is_version: bool, debug: bool, as_json: bool, sim: str | None, on: str | None
) -> None:
    """Take an NVIDIA DGX Spark from bare to a fast, correct, safe LLM service.

    \b
    firesteel                 show this host, what fits it and what to type next
    firesteel up              serve a model (without a GPU: a small one, on the CPU)
    firesteel plan MODEL      predict whether it fits and how fast it will be
    """
    if is_version:
        _show_version(as_json)
        ctx.exit()
    if sim == "list":
        _list_scenarios(as_json)
        ctx.exit()
    if sim is not None:
        _enter_simulation(sim)
    if ctx.invoked_subcommand is None:
        importlib.import_module("firesteel.cli.overview").show(as_json)


def _show_version(as_json: bool) -> None:
    if not as_json:
        click.echo(f"firesteel, version {__version__}")
        return
    from firesteel.cli.options import print_json
    from firesteel.library import documents

    print_json(documents.hosts.VersionJson(version=__version__))


def _list_scenarios(as_json: bool) -> None:
    from firesteel.library.hosts import scenarios

    bad = {"bad-CHECK": "an idle Spark on which that check of `doctor` finds something"}
    found = {**scenarios(), **bad}
    if as_json:
        from firesteel.cli.options import print_json
        from firesteel.library import documents

        print_json(documents.hosts.ScenariosJson.of(scenarios=tuple(found.items())))
        return
    for name, about in found.items():
        click.echo(f"{name:<14} {about}")


def _enter_simulation(name: str) -> None:
    """From here on this process, and what it starts, runs on a simulated Spark."""
    import os

    from firesteel.library.hosts import enter_simulation

    found = enter_simulation(name)
    os.environ["FIRESTEEL_COMMAND"] = f"{os.environ.get('FIRESTEEL_COMMAND') or 'firesteel'} --sim"
    scenario = (
        f"scenario `{found.scenario}` (--sim idle for a fresh one)" if found.scenario else "no scenario"
    )
    speed = f"starts take 1/{found.faster:g} of their time, prompts 1/{found.reads_faster:g}"
    click.echo(f"simulated Spark: nothing it shows was measured; {scenario}; {speed}", err=True)


def _with_sim_value(argv: list[str]) -> list[str]:
    """`--sim up` and `--sim collapse up`: the argument after `--sim` is its value unless it is a command."""
    for index, argument in enumerate(argv):
        if not argument.startswith("-"):
            break
        if argument == "--sim":
            rest = argv[index + 1 :]
            has_value = bool(rest) and rest[0] not in (*COMMANDS, *RENAMED) and not rest[0].startswith("-")
            return [*argv[:index], f"--sim={rest[0] if has_value else ''}", *rest[has_value:]]
    return argv


def main(argv: list[str] | None = None) -> NoReturn:
    gc.set_threshold(50_000)  # most commands end soon: a tenth of their time would go on finding no garbage
    argv = _with_sim_value(sys.argv[1:] if argv is None else argv)
    options = argv[: argv.index("--")] if "--" in argv else argv
    if "check" not in options:  # to which a command line may be given that has such an option
        argv = [argument for argument in argv if argument != "--debug"]
    open_standard_streams()
    try:
        with interrupted_by_signals():
            require_stdout()
            _require_no_empty_argument(options)
            node, rest = _node_of(argv)
            code = _run_on(node, rest) if node else _run(argv)
            sys.stdout.flush()  # here, so that a full disk or a closed pipe is an error like any other
        sys.exit(code)
    except (KeyboardInterrupt, click.Abort) as stop:
        if isinstance(stop.__context__, EOFError) and not sys.stdin.isatty():
            unanswered = UsageError("it asks before it does that, and there is no terminal", next="add --yes")
            click.echo(err=True)  # it stands behind the question
            _report(unanswered, argv, as_json="--json" in options)
            sys.exit(unanswered.exit_code)
        click.echo(f"interrupted; {stop}" if str(stop) else "interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        discard_output()  # nothing reads our output any more
        sys.exit(0)
    except Exception as error:
        if "--debug" in options:
            raise
        shown = error if isinstance(error, FiresteelError) else _as_shown(error)
        _report(shown, argv, as_json="--json" in options and not isinstance(shown, OutputLost))
        sys.exit(shown.exit_code)


def _require_no_empty_argument(arguments: list[str]) -> None:
    """`up "$MODEL"` without a MODEL must not start something else. `check` may be given any command line."""
    command = next((argument for argument in arguments if argument in COMMANDS), None)
    if "" in arguments and command != "check":
        raise UsageError("an argument is empty", next=f"firesteel {command or ''} --help".replace("  ", " "))


def _node_of(argv: list[str]) -> tuple[str | None, list[str]]:
    """`--on NODE`, wherever it stands: the command without it runs there. `check` may be given any text."""
    before = argv[: argv.index("--")] if "--" in argv else argv
    if "--on" not in before or "check" in before:
        return None, argv
    index = before.index("--on")
    if index + 1 >= len(before) or before[index + 1] in COMMANDS:
        raise UsageError("--on needs the name of a node", next="firesteel cluster list")
    return before[index + 1], [*argv[:index], *argv[index + 2 :]]


def _run_on(node: str, argv: list[str]) -> int:
    from firesteel.library.hosts import run_on_node

    return run_on_node(node, argv)


def _as_shown(error: Exception) -> FiresteelError:
    if isinstance(error, OSError):
        from firesteel.cli.output.file_errors import file_error

        return file_error(error)
    return FiresteelError(
        f"internal error: {type(error).__name__}: {error}", next="firesteel --debug ..., for the traceback"
    )


def _run(argv: list[str]) -> int:
    try:
        code: Any = firesteel.main(argv, prog_name="firesteel", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "firesteel"
        raise UsageError(error.format_message(), next=f"{command} --help") from error
    except click.ClickException as error:
        raise FiresteelError(error.format_message()) from error
    return code if isinstance(code, int) else 0


def _report(error: FiresteelError, argv: list[str], as_json: bool) -> None:
    if as_json:
        from firesteel.cli.options import print_json

        print_json(documents.document.ErrorJson.of(error, message=error.what))
        return
    click.echo(f"{error.kind}: {_safe(error.what, argv)}", err=True)
    if error.next:
        click.echo(f"next: {_safe(typed(error.next), argv)}", err=True)


def _safe(text: str, argv: list[str]) -> str:
    """Arguments that the text repeats are cut and made printable; so is what else it quotes."""
    for argument in argv:
        text = text.replace(argument, printable(argument, _MAX_ARGUMENT_CHARS)) if argument else text
    return escape_unprintable(text)
