"""Commands that read a service file: `up -f`, `ps -f`, `render -f`, `down -f`."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

import firesteel.service_file as module
from firesteel.run.service import ServiceSpec, write_spec
from tests.cli.inside import inside
from tests.conftest import Firesteel, run_firesteel
from tests.http_thread import QuietHandler, serving_http

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def firesteel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Firesteel:
    return inside(tmp_path / "home", monkeypatch, capsys)


@contextmanager
def server(*paths: str, status: int = 200) -> Iterator[str]:
    """A real HTTP server that has these paths and no others."""

    class Answers(QuietHandler):
        def do_GET(self) -> None:
            self.send(status=status if self.path in paths else 404)

    with serving_http(Answers) as url:
        yield url


# --- ps -f ---


def test_a_model_at_a_url_is_probed(firesteel: Firesteel, tmp_path: Path, free_port: int) -> None:
    """By /health or /v1/models; a server that asks for a key answers, one that is something else does not."""
    with (
        server("/health") as healthy,
        server("/v1/models") as listing,
        server("/v1/models", status=401) as locked,
        server("/") as stranger,
    ):
        urls = {
            "healthy": healthy,
            "listing": f"{listing}/v1",
            "locked": f"{locked}/v1/",
            "stranger": stranger,
            "nobody": f"http://127.0.0.1:{free_port}",
        }
        file = tmp_path / "service.yaml"
        rows = "".join(f"  {name}: {{url: '{url}'}}\n" for name, url in urls.items())
        file.write_text(f"models:\n{rows}  ours: {{recipe: gpt-oss-20b}}\n")
        result = {row["name"]: row for row in firesteel("ps", "-f", str(file), "--json").json["services"]}
        shown = firesteel("ps", "-f", str(file)).out
    assert {name: row["phase"] for name, row in result.items()} == {
        "healthy": "answers",
        "listing": "answers",
        "locked": "answers",
        "stranger": "does not answer",
        "nobody": "does not answer",
        "ours": "not running",
    }
    assert result["nobody"]["next"] is None and result["healthy"]["next"] is None
    assert result["ours"]["next"] == f"firesteel up -f {file} ours"
    assert "does not answer" in shown


def test_a_url_that_hangs_does_not_block_the_others(firesteel: Firesteel, tmp_path: Path) -> None:
    """A port is bound and nobody accepts: the wait times out, for several URLs at once."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as mute:
        port = mute.getsockname()[1]
        file = tmp_path / "service.yaml"
        rows = "".join(f"  m{at}: {{url: 'http://127.0.0.1:{port}'}}\n" for at in range(3))
        file.write_text(f"models:\n{rows}")
        result = firesteel("ps", "-f", str(file), "--json").json["services"]
    assert {row["phase"] for row in result} == {"does not answer"} and len(result) == 3


# --- a file that is not there ---


@pytest.mark.parametrize("command", ["up", "ps", "render", "down"])
def test_no_such_file(firesteel: Firesteel, tmp_path: Path, command: str) -> None:
    ran = firesteel(command, "-f", str(tmp_path / "nofile.yaml"))
    assert ran.code == 2 and "nofile.yaml` is not a file" in ran.err
    assert "check" not in ran.err and re.search(r"next: (ls|firesteel) ", ran.err)


# --- the manual ---


def example() -> str:
    """The service file of docs/up.md."""
    (result,) = re.findall(r"```yaml\n(# firesteel\.yaml\n.*?)```", (DOCS / "up.md").read_text(), re.DOTALL)
    return str(result)


@pytest.mark.parametrize("names", [(), ("small",)])
def test_the_documented_file_starts(tmp_path: Path, names: tuple[str, ...]) -> None:
    """In a process of its own, because --sim changes the environment."""
    file = tmp_path / "firesteel.yaml"
    file.write_text(example())
    ran = run_firesteel(tmp_path / "home", "--sim", "idle", "up", "-f", str(file), *names, "--dry-run")
    assert ran.code == 0, ran.err
    wanted = names or [
        name for name, entry in yaml.safe_load(example())["models"].items() if "recipe" in entry
    ]
    assert [f"firesteel={name}" in ran.out for name in wanted] == [True] * len(wanted)


def test_the_module_shows_the_documented_file() -> None:
    assert module.__doc__ is not None
    first_block = next(part for part in module.__doc__.split("\n\n") if part.startswith("    "))
    assert yaml.safe_load(dedent(first_block))["models"] == yaml.safe_load(example())["models"]


# --- render -f ---

TWO = "models:\n  coder: {recipe: qwen3.6-35b-a3b-nvfp4, context: 32768}\n  small: {recipe: gpt-oss-20b}\n"


def test_compose_of_a_whole_file(firesteel: Firesteel, tmp_path: Path) -> None:
    file, made = tmp_path / "service.yaml", tmp_path / "compose.yaml"
    file.write_text(TWO)
    ran = firesteel("render", "-f", str(file), "--as", "compose", "-o", str(made))
    assert ran.code == 0, ran.err
    services = yaml.safe_load(made.read_text())["services"]
    assert list(services) == ["coder", "small"]
    assert [service["ports"] for service in services.values()] == [
        ["127.0.0.1:8000:8000"],
        ["127.0.0.1:8001:8001"],
    ]
    assert firesteel("check", str(made)).code == 0


@pytest.mark.parametrize("form", ["docker", "systemd", "quadlet", "sparkrun"])
def test_a_format_for_one_model_prints_what_to_type(firesteel: Firesteel, tmp_path: Path, form: str) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(TWO)
    ran = firesteel("render", "-f", str(file), "--as", form)
    assert ran.code == 2 and "takes one MODEL" in ran.err
    (hint,) = re.findall(r"next: firesteel (.+)", ran.err)
    assert hint == f"render coder -f {file} --as {form}"
    assert firesteel(*hint.split()).code == 0


def test_a_name_that_is_not_in_the_file(firesteel: Firesteel, tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(TWO)
    ran = firesteel("render", "codr", "-f", str(file))
    assert ran.code == 2 and "`codr`" in ran.err and f"next: firesteel render coder -f {file}" in ran.err


def test_hints_of_render_are_complete_commands(firesteel: Firesteel) -> None:
    ran = firesteel("render", "gpt-oss-20b", "qwen3.6-35b-a3b-nvfp4", "--as", "compose")
    assert "next: firesteel render gpt-oss-20b --as compose" in ran.err
    ran = firesteel("render", "gpt-oss-20b", "--tailnet")
    assert "next: firesteel render gpt-oss-20b --as kubernetes" in ran.err


# --- down -f ---


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 0, "nothing of "),
        (("small",), 0, "nothing of "),
        (("nobody",), 2, "does not start `nobody`; it starts coder, small"),
        (("--all",), 2, "give --all or --file"),
    ],
)
def test_down_of_a_file_when_nothing_runs(
    firesteel: Firesteel, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(TWO)
    ran = firesteel("down", "-f", str(file), *arguments)
    assert ran.code == code and says in ran.out + ran.err


def test_down_of_a_file_leaves_the_others(firesteel: Firesteel, tmp_path: Path) -> None:
    """Three are dead: `down` removes the files of those that it was asked to stop."""
    services = tmp_path / "home" / "services"
    for name in ("coder", "small", "stranger"):
        write_spec(services / name, ServiceSpec(name, "http://127.0.0.1:9", name, ("true",)))
    file = tmp_path / "service.yaml"
    file.write_text(TWO)
    assert firesteel("down", "small", "-f", str(file)).code == 0
    assert {path.parent.name for path in services.glob("*/spec.json")} == {"coder", "stranger"}
    ran = firesteel("down", "-f", str(file), "--json")
    assert len(ran.json["done"]) == 1 and "coder" in ran.json["done"][0]
    assert [path.parent.name for path in services.glob("*/spec.json")] == ["stranger"]
