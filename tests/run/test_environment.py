"""The environment of supervisors and engines, read from `/proc` of real processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import firesteel
from firesteel.catalog.launches import supervised
from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.launch import Ask
from firesteel.planner.propose import Proposal
from firesteel.run.service import ServiceSpec, load, write_spec
from firesteel.run.spec import RunOptions, make_spec, make_steps, named_by, write_secrets_of
from firesteel.run.start import passed_variables, start_supervisor
from firesteel.values import replace

SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")
SECRETS = {
    name: f"secret-{number}"
    for number, name in enumerate(
        (
            "AWS_SECRET_ACCESS_KEY", "AZURE_CLIENT_SECRET", "HF_TOKEN", "OPENAI_API_KEY", "NVIDIA_API_KEY",
            "FIRESTEEL_API_KEY", "DOCKER_AUTH_CONFIG", "PGPASSWORD", "SSH_AUTH_SOCK", "HTTPS_PROXY",
        )
    )
}  # fmt: skip
NEEDED = {"CUDA_VISIBLE_DEVICES": "0", "LC_ALL": "C.UTF-8", "LD_LIBRARY_PATH": "/opt/cuda", "TMPDIR": "/tmp"}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    if (service := load(home, "one")) and service.state:
        process.send(service.state.supervisor, signal.SIGKILL)


def environments(home: Home, spec: ServiceSpec) -> tuple[dict[str, str], dict[str, str]]:
    """Of the supervisor and of the engine that it starts."""
    folder = home.services / spec.name
    write_spec(folder, spec)
    start_supervisor(folder)
    deadline = time.monotonic() + 120
    while not ((service := load(home, spec.name)) and service.state and service.state.engine):
        assert time.monotonic() < deadline, (folder / "supervisor.log").read_text()
        time.sleep(0.02)
    return environ_of(service.state.supervisor.number), environ_of(service.state.engine.number)


def environ_of(number: int) -> dict[str, str]:
    words = Path(f"/proc/{number}/environ").read_text().split("\0")
    return {name: value for name, _, value in (word.partition("=") for word in words if word)}


def test_the_callers_secrets_reach_neither_supervisor_nor_engine(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**SECRETS, **NEEDED}.items():
        monkeypatch.setenv(name, value)
    spec = ServiceSpec("one", "http://127.0.0.1:9", "one", SLEEPS, env={"RECIPE": "says"})
    supervisor, engine = environments(home, spec)
    for environ in (supervisor, engine):
        assert not set(SECRETS.values()) & set(environ.values())
        assert environ["PATH"] == os.environ["PATH"] and environ.items() >= NEEDED.items()
    assert engine["RECIPE"] == "says" and "RECIPE" not in supervisor


def container_proposal() -> Proposal:
    return firesteel.propose(Ask("gpt-oss-120b-vllm"), firesteel.host("gb10"))[0]


def test_a_launch_whose_files_are_here_gets_no_token() -> None:
    argv = make_steps(container_proposal(), Home(Path("/home/me/fs")))[-1].command.argv
    assert "HF_HUB_OFFLINE=1" in argv and named_by(argv) == ()


def test_a_launch_that_downloads_gets_the_token_by_name() -> None:
    launch = container_proposal().plan.launch
    assert launch.container is not None
    env = supervised(launch, launch.container).env
    assert env["HF_TOKEN"] == "$HF_TOKEN" and env["https_proxy"] == "$https_proxy"


def test_what_a_launch_names_reaches_the_engine_through_the_secrets_file(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("RECIPE_SECRET", "recipe-secret")
    spec = make_spec(container_proposal(), home, RunOptions())
    named = (*spec.start, "-e", "HF_TOKEN", "-e", "RECIPE_SECRET", "-e", "UNSET", "-e", "A=1")
    spec = replace(spec, start=named, secrets=str(home.secrets_path("one")))
    write_secrets_of(container_proposal(), spec)
    runs = ServiceSpec("one", spec.url, "one", SLEEPS, secrets=spec.secrets)
    supervisor, engine = environments(home, runs)
    assert "HF_TOKEN" not in supervisor and "RECIPE_SECRET" not in supervisor
    assert engine["HF_TOKEN"] == "hf_secret" and engine["RECIPE_SECRET"] == "recipe-secret"
    assert "UNSET" not in engine


def test_names_with_an_allowed_prefix_may_still_be_secrets() -> None:
    given = {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_API_KEY": "x",
        "FIRESTEEL_HOME": "/x",
        "FIRESTEEL_API_KEY": "y",
    }
    assert passed_variables(given) == {"NVIDIA_VISIBLE_DEVICES": "all", "FIRESTEEL_HOME": "/x"}
