"""`firesteel client` prints, writes with a backup, and takes its limits from what runs."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import openai
import pytest

from firesteel.edge.home import Home
from firesteel.gateway.address import Address
from firesteel.gateway.client_target import find_target, of_service
from firesteel.gateway.keys import add_key, keys_path
from firesteel.launch import EngineName
from firesteel.render.clients import client_names
from firesteel.run.report import Report
from firesteel.run.service import Service, ServiceSpec, folder_of, write_spec
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.expected import Expected, write_expected
from firesteel.values import plain, replace
from firesteel.workspace import Workspace
from tests.cli.inside import inside
from tests.conftest import Firesteel, run_firesteel

MODEL = "qwen3.6-35b-a3b-nvfp4"
DOCKER = "docker run img org/m --max-model-len 4096"


@pytest.fixture
def firesteel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Firesteel:
    return inside(tmp_path / "home", monkeypatch, capsys)


def test_printed(firesteel: Firesteel) -> None:
    ran = firesteel("client", "opencode", MODEL)
    assert ran.code == 0
    result = json.loads(ran.out)
    assert result["provider"]["firesteel"]["options"] == {"baseURL": "http://127.0.0.1:8000/v1"}
    assert result["provider"]["firesteel"]["models"][MODEL]["limit"] == {"context": 131072, "output": 16384}


@pytest.mark.parametrize("name", client_names())
def test_as_json(firesteel: Firesteel, name: str, tmp_path: Path) -> None:
    result = firesteel("client", name, "smollm2", "--json", env={"HOME": str(tmp_path)}).json
    assert result["document"] == "firesteel.client/1" and result["client"] == name
    assert result["context"] and result["sources"] and result["written"] is False
    assert (result["path"] is None) == (result["format"] == "env")


def test_written_where_the_client_reads_it(firesteel: Firesteel, tmp_path: Path) -> None:
    file = tmp_path / ".config/opencode/opencode.json"
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}
    assert firesteel("client", "opencode", MODEL, "--write", env=env).code == 0
    assert json.loads(file.read_text())["model"] == f"firesteel/{MODEL}"
    again = firesteel("client", "opencode", MODEL, "--write", "--json", env=env).json
    assert again["written"] is False and again["backup"] is None


def test_the_old_file_is_copied_and_other_settings_stay(firesteel: Firesteel, tmp_path: Path) -> None:
    """`config.json` is the older name, which OpenCode still reads."""
    file = tmp_path / "opencode/config.json"
    file.parent.mkdir()
    before = '{\r\n  "theme": "x" // mine\r\n}\r\n'
    file.write_bytes(before.encode())
    file.chmod(0o640)
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    ran = firesteel("client", "opencode", MODEL, "--write", "--json", env=env).json
    assert ran["written"] and Path(ran["path"]) == file
    assert Path(ran["backup"]).read_bytes() == before.encode()
    after = file.read_bytes()
    assert b"// mine" in after and after.count(b"\r\n") == after.count(b"\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    other = firesteel("client", "opencode", "smollm2", "--write", "--json", env=env).json
    assert other["backup"] != ran["backup"], "no copy takes the place of an older one"


def test_a_file_that_cannot_be_read_is_left_alone(firesteel: Firesteel, tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"a": ')
    ran = firesteel("client", "zed", MODEL, "--write", "--file", str(file))
    assert ran.code == 2 and "settings.json:1" in ran.err and file.read_text() == '{"a": '
    assert list(tmp_path.glob("*.before-firesteel*")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("openai", MODEL, "--write"), "by environment variables, not by a file"),
        (("opencode",), "nothing is running"),
        (("opencode", MODEL, "--url", "ftp://x"), "is not the URL of"),
        (("opencode", MODEL, "--url", "http://me:secret@x/v1"), "password"),
        (("opencode", MODEL, "--url", "http://x:99999"), "is not the URL of"),
        (("opencode", MODEL, "--url", 'http://x/"\n'), "is not the URL of"),
        (("opencode", MODEL, "--key", "sk-not a variable"), "--key"),
        (("opencode", MODEL, "--provider", "a.b/c"), "--provider"),
        (("opencode", "no-such-model-at-all"), "nothing called"),
        (("emacs", MODEL), "'emacs' is not one of"),
    ],
)
def test_refused(firesteel: Firesteel, arguments: tuple[str, ...], message: str) -> None:
    ran = firesteel("client", *arguments)
    assert ran.code == 2 and message in ran.err and ran.out == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://spark", "http://spark/v1"),
        ("http://spark:80/", "http://spark:80/v1"),
        ("https://[::1]:8443/v1/", "https://[::1]:8443/v1"),
        ("http://gate/team/v1", "http://gate/team/v1"),
    ],
)
def test_addresses(firesteel: Firesteel, given: str, expected: str) -> None:
    assert firesteel("client", "openai", "smollm2", "--url", given, "--json").json["url"] == expected


def spec_of(name: str, engine: EngineName, start: str) -> ServiceSpec:
    arguments = tuple(start.split())
    return ServiceSpec(name, "http://127.0.0.1:9123", name, arguments, engine=engine, is_guarded_by_key=True)


def test_a_dead_service_does_not_count(firesteel: Firesteel, tmp_path: Path) -> None:
    folder = folder_of(Home(tmp_path / "home"), "gone")
    folder.mkdir(parents=True)
    write_spec(folder, spec_of("gone", "vllm", DOCKER))
    assert "nothing is running" in firesteel("client", "opencode").err


def test_a_key_counts_before_the_gateway_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`key add` and at once `client`: the client was configured without one."""
    monkeypatch.delenv("FIRESTEEL_API_KEY", raising=False)
    home = Home(tmp_path / "home")
    workspace, address = Workspace(home), Address("http://127.0.0.1:9", ("m",), False, 1)
    assert find_target(workspace, (), address).endpoint.key is None
    add_key(keys_path(home), "anna")
    target = find_target(workspace, (), address)
    assert target.endpoint.key == "FIRESTEEL_API_KEY"
    assert "says its context only to a key" in target.note
    monkeypatch.setenv("FIRESTEEL_API_KEY", "fs-x")
    assert "does not say" not in find_target(workspace, (), address).note


SCRIPT = "docker run img bash -c x"
"""A launch with a plugin: its flags are inside the script, where nobody looks for them."""
CALLS, SILENT = CheckResult("tool call", True, ""), CheckResult("tool call", False, "", "note")
THINKS, BLANK = CheckResult("reasoning split", True, ""), CheckResult("reasoning split", False, "", "note")


@pytest.mark.parametrize(
    ("known", "checks", "tools", "reasoning"),
    [
        (Expected("vllm", tool_parser="q", reasoning_parser="r"), (CALLS, THINKS), True, True),
        (Expected("vllm", tool_parser="q", reasoning_parser="r"), (SILENT, BLANK), False, None),
        (Expected("vllm", tool_parser="q", reasoning_parser="r"), (), True, True),
        (Expected("vllm"), (), False, None),
        (Expected("llamacpp"), (), None, None),
        (Expected("llamacpp", tool_parser="asked for"), (CALLS,), True, None),
        (Expected(), (), None, None),
    ],
)
def test_a_client_is_told_what_the_verification_showed(
    known: Expected, checks: tuple[CheckResult, ...], tools: bool | None, reasoning: bool | None,
    tmp_path: Path,
) -> None:  # fmt: skip
    write_expected(tmp_path, replace(known, context=4096))
    report = Report("mine", "", "mine", "vllm", None, checks, (), 1.0, 1.0, "") if checks else None
    service = Service(
        "mine", tmp_path, spec_of("mine", "vllm", SCRIPT), None, "ready", plain(report) if report else None
    )
    result = of_service(Workspace(Home(tmp_path / "home")), service)
    assert (result.url, result.model, result.key) == ("http://127.0.0.1:9123/v1", "mine", "FIRESTEEL_API_KEY")
    assert (result.context, result.tools, result.reasoning) == (4096, tools, reasoning)


def test_a_client_of_a_simulated_launch_with_a_script(tmp_path: Path, free_port: int) -> None:
    """The recipe installs a reasoning parser first, so the container starts `bash -c`."""
    model, home = "nemotron-3-nano-nvfp4", tmp_path / "home"
    env = {"FIRESTEEL_SIM_SPEED": "200"}
    up = run_firesteel(home, "--sim", "up", model, "--port", str(free_port), env=env)
    try:
        assert up.code == 0, up.err
        text = run_firesteel(home, "--sim", "client", "opencode", "--json", env=env).json["text"]
    finally:
        run_firesteel(home, "--sim", "down", "--all", env=env)
    settings = json.loads(text)["provider"]["firesteel"]["models"][model]
    assert settings["tool_call"] is True and settings["reasoning"] is True


@pytest.mark.real
def test_an_openai_client_works_with_the_printed_settings(quick_home: Home, free_port: int) -> None:
    """The engine, called by OpenAI's own client with only what `firesteel client` prints."""
    assert run_firesteel(quick_home.root, "up", "smollm2", "--port", str(free_port)).code == 0
    printed = run_firesteel(quick_home.root, "client", "openai", "--json").json
    assert printed["url"] == f"http://127.0.0.1:{free_port}/v1" and printed["context"] > 1000
    with openai.OpenAI(base_url=printed["url"], api_key="none") as client:
        answer = client.chat.completions.create(
            model=printed["model"], messages=[{"role": "user", "content": "Say hello."}], max_tokens=8
        )
    assert answer.choices[0].message.content
