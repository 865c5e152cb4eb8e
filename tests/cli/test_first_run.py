"""What confuses on the first day: options after arguments, narrow terminals, scenarios, whose fault it is."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
import pytest
from rich.console import Console

import firesteel
from firesteel.cli.main import COMMANDS
from firesteel.cli.output import show
from firesteel.cli.output.progress import proofs_view
from firesteel.run.service import ServiceSpec
from firesteel.run.up import differences
from firesteel.run.verify.checks import CheckResult
from tests.cli.inside import inside


def leaves(command: click.Command, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    return [leaf for name, sub in command.commands.items() for leaf in leaves(sub, (*path, name))]


def all_commands() -> list[tuple[tuple[str, ...], click.Command]]:
    modules = {name: importlib.import_module(f"firesteel.cli.{name}").command for name in COMMANDS}
    return [leaf for name, command in modules.items() for leaf in leaves(command, (name,))]


@pytest.mark.parametrize(("path", "command"), all_commands(), ids=lambda value: str(value))
def test_options_may_stand_after_arguments(path: tuple[str, ...], command: click.Command) -> None:
    """Except in a command line that `check` is given."""
    with click.Context(command) as ctx:
        parser = command.make_parser(ctx)
    has_arguments = any(isinstance(parameter, click.Argument) for parameter in command.params)
    assert parser.allow_interspersed_args or path == ("check",) or not has_arguments


@pytest.mark.parametrize("arguments", [["x", "--json"], ["--json", "x"]])
def test_bench_takes_its_name_before_or_after(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = inside(tmp_path, monkeypatch, capfd)("bench", *arguments)
    assert ran.code == 5 and ran.json["message"] == "nothing is running"


def test_debug_may_stand_after_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert inside(tmp_path, monkeypatch, capfd)("ps", "--debug").code == 0


def test_scenarios_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = inside(tmp_path, monkeypatch, capfd)("--sim", "list")
    assert ran.code == 0 and ran.out.startswith("busy  ") and "\nidle  " in ran.out


@pytest.mark.parametrize("width", [24, 40, 60, 80, 160])
def test_the_bar_is_one_line(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show.out, "width", width)
    memory = firesteel.plan("gpt-oss-120b", host_name="gb10")[0].plan.memory
    assert 20 < show.memory_bar(memory).cell_len <= min(width, 80)


def test_a_failed_note_is_explained() -> None:
    note = CheckResult("long prompt", False, "2232", "note")
    console = Console(width=100)
    with console.capture() as capture:
        console.print(proofs_view([note]))
    assert "a small model often gets that wrong" in capture.get() and "planned" not in capture.get()
    with console.capture() as capture:
        console.print(proofs_view([note, CheckResult("speed", False, "9 tok/s, planned 30", "note")]))
    assert "speed: it answers, but not as planned" in capture.get()
    with console.capture() as capture:
        console.print(proofs_view([CheckResult("speaks", True, "yes")]))
    assert "note:" not in capture.get()


def test_a_server_elsewhere_is_not_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in ("verify", "bench"):
        ran = inside(tmp_path, monkeypatch, capfd)(command, "--url", "http://127.0.0.1:1")
        assert ran.code == 5 and ran.err.splitlines()[-2].startswith("server not ready: http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("running", "wanted", "says"),
    [
        (["--ctx-size", "4096", "--port=1"], ["--ctx-size", "1024", "--port=1"], "--ctx-size 4096, not 1024"),
        (["--flash", "--x", "1"], ["--x", "1"], "it has --flash"),
        ([], ["--x", "1"], "it lacks --x 1"),
        (["-v", "a", "-v", "b"], ["-v", "a", "-v", "c"], "-v a b, not a c"),
        (["-1"], ["-2"], "it was planned by another version of firesteel"),
    ],
)
def test_differences(running: list[str], wanted: list[str], says: str) -> None:
    def spec(words: list[str]) -> ServiceSpec:
        return ServiceSpec("one", "", "one", ("engine", *words))

    assert differences(spec(running), spec(wanted)) == says
