"""`firesteel serve` as its users have it: two models, room for one, the real `openai` and `anthropic`
clients, streams included.

Their engine is the real one in `scripts/test-slow`, else `tests/quick_engine.py`. Both clients have the real
one behind a gateway in tests/gateway/http/test_body_edits.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

import firesteel
from firesteel.edge.home import Home
from tests.conftest import know_bandwidth, quick_engines, run_firesteel

pytestmark = pytest.mark.real

_ASK = "Say hello in one short sentence."
_SAID: list[anthropic.types.MessageParam] = [{"role": "user", "content": _ASK}]


@dataclass(frozen=True, slots=True)
class Serving:
    url: str
    process: list[subprocess.Popen[bytes]]
    home: Home
    file: Path

    def state(self) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/state", timeout=120) as answer:
            return json.load(answer)

    closing: list[openai.OpenAI | anthropic.Anthropic] = field(default_factory=list)

    def openai(self) -> openai.OpenAI:
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=120, max_retries=0)
        self.closing.append(client)
        return client

    def anthropic(self) -> anthropic.Anthropic:
        client = anthropic.Anthropic(base_url=self.url, api_key="none", timeout=120, max_retries=0)
        self.closing.append(client)
        return client


def _file(free_port: int, ports: tuple[int, int]) -> str:
    return f"""\
listen: 127.0.0.1:{free_port}
memory: {{ceiling: 500MiB}}
queue: {{min_dwell: 1s, max_wait: 20s}}
models:
  first:
    recipe: smollm2
    context: 2048
    port: {ports[0]}
    aliases: {{brief: {{limits: {{max_tokens: 3}}}}}}
  second: {{recipe: smollm2-logprobs, context: 4096, port: {ports[1]}}}
"""


@pytest.fixture(scope="module")
def serving(pulled: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One gateway for all of these: every load is warmed and verified, and takes its time."""
    folder = tmp_path_factory.mktemp("two")
    home = Home(folder / "home")
    home.root.mkdir()
    (home.root / pulled.engines.name).symlink_to(quick_engines(pulled, folder, holds_mib=300))
    # A copy: pages that engines of other tests map as well would be measured as a fraction of their size.
    shutil.copytree(pulled.weights, home.weights)
    _add_recipe(home)
    know_bandwidth(home)
    ports = _free_ports(3)
    path = folder / "service.yaml"
    path.write_text(_file(ports[0], (ports[1], ports[2])))
    url = f"http://127.0.0.1:{ports[0]}"
    serving = Serving(url, [_started(path, home, url)], home, path)
    try:
        yield serving
    finally:
        for client in serving.closing:
            client.close()
        serving.process[-1].send_signal(signal.SIGTERM)
        serving.process[-1].wait(timeout=60)
        run_firesteel(home.root, "down", "--all")


def _add_recipe(home: Home) -> None:
    """The user's own: as the shipped one, and it knows something about requests."""
    shipped = next(Path(firesteel.__file__).parent.glob("data/recipes/**/smollm2.yaml"))
    path = home.catalog / "recipes" / "smollm2-logprobs.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(shipped.read_text() + "\nrequests: {temperature: 0.0, per_request: {logprobs: true}}\n")


def _started(path: Path, home: Home, url: str) -> subprocess.Popen[bytes]:
    log = path.with_name("serve.log")
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "firesteel", "serve", "-f", str(path)],
            stderr=out,
            stdout=out,
            env={**os.environ, "FIRESTEEL_HOME": str(home.root)},
        )
    _until_listening(url, process, log)
    return process


def _free_ports(count: int) -> list[int]:
    import socket

    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _until_listening(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


def _say(client: openai.OpenAI, model: str) -> str:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": _ASK}], max_tokens=12, temperature=0
    )
    assert answer.usage and answer.usage.completion_tokens
    return answer.choices[0].message.content or ""


def _stream(client: openai.OpenAI, model: str) -> str:
    pieces = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": _ASK}], max_tokens=12, temperature=0, stream=True
    )
    return "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)


def _message(client: anthropic.Anthropic, model: str) -> str:
    answer = client.messages.create(
        model=model,
        max_tokens=12,
        messages=[{"role": "user", "content": _ASK}],
        extra_body={"temperature": 0},
    )
    return "".join(block.text for block in answer.content if block.type == "text")


def _message_stream(client: anthropic.Anthropic, model: str) -> str:
    with client.messages.stream(
        model=model,
        max_tokens=12,
        messages=[{"role": "user", "content": _ASK}],
        extra_body={"temperature": 0},
    ) as stream:
        return "".join(stream.text_stream)


def test_two_models_take_turns_where_one_fits(serving: Serving) -> None:
    client, other = serving.openai(), serving.anthropic()
    answer = _say(client, "first")
    assert answer
    assert _stream(client, "second") == answer  # cold: it waited for the swap, with a stream open
    if os.environ.get("FIRESTEEL_TEST_REAL_ENGINE"):  # the other one does not speak Messages
        assert _message_stream(other, "first") and _message(other, "first")
    assert _say(client, "first") == _stream(client, "first") == answer  # and back
    running = run_firesteel(serving.home.root, "ps", "--json").json
    assert [each["name"] for each in running["services"]] == ["first"]


def test_both_at_once_are_both_answered_and_never_both_loaded(serving: Serving) -> None:
    seen: list[list[str]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            models = serving.state()["models"]
            seen.append([each["name"] for each in models if each["phase"] != "off"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            names = ["first", "second"] * 4
            answers = list(pool.map(lambda name: _say(serving.openai(), name), names))
    finally:
        done.set()
        watcher.join()
    assert all(answers) and len(answers) == 8
    assert seen
    assert max(len(names) for names in seen) == 1
    assert {name for names in seen for name in names} == {"first", "second"}


def test_what_the_recipe_knows_of_requests_reaches_the_engine(serving: Serving) -> None:
    """The client asks for no logprobs; the recipe does, and what the client says goes first."""
    client = serving.openai()
    messages: list[Any] = [{"role": "user", "content": _ASK}]
    answer = client.chat.completions.create(model="second", messages=messages, max_tokens=4)
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content
    own = client.chat.completions.create(model="second", messages=messages, max_tokens=4, logprobs=False)
    assert own.choices[0].logprobs is None


def test_an_alias_has_parameters_of_its_own(serving: Serving) -> None:
    client = serving.openai()
    messages: list[Any] = [{"role": "user", "content": "Count from one to one hundred."}]
    for limit in (None, 50):
        answer = client.chat.completions.create(
            model="brief", messages=messages, temperature=0, max_tokens=limit
        )
        assert answer.usage and answer.usage.completion_tokens <= 3
    assert "brief" in {model.id for model in client.models.list()}


def test_the_list_of_models_says_what_is_loaded(serving: Serving) -> None:
    client = serving.openai()
    _say(client, "first")
    listed = {each.id: each.model_dump() for each in client.models.list()}
    assert set(listed) == {"first", "second", "brief"} and listed["brief"]["alias_of"] == "first"
    assert (listed["first"]["state"], listed["second"]["state"]) == ("ready", "off")
    assert (listed["first"]["context"], listed["second"]["context"]) == (2048, 4096)


def test_an_unknown_model_is_an_error_of_the_clients_own_kind(serving: Serving) -> None:
    with pytest.raises(openai.NotFoundError, match="first"):
        _say(serving.openai(), "third")
    with pytest.raises(anthropic.NotFoundError, match="first"):
        _message(serving.anthropic(), "third")


def test_a_changed_file_leaves_what_it_does_not_touch(serving: Serving) -> None:
    client = serving.openai()
    _say(client, "first")
    began = client.chat.completions.create(
        model="first",
        messages=[{"role": "user", "content": "Count to a hundred."}],
        max_tokens=200,
        stream=True,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    pieces = iter(began)
    next(pieces)
    text = serving.file.read_text()
    serving.file.write_text(text.replace("context: 4096", "context: 1024"))
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        contexts = {each["name"]: each["context"] for each in serving.state()["models"]}
        if contexts["second"] == 1024:
            break
        time.sleep(0.1)
    assert contexts == {"first": 2048, "second": 1024}
    assert sum(1 for _ in pieces) > 10
    assert serving.state()["models"][0]["phase"] == "ready"


def test_a_killed_gateway_finds_its_model_again_and_what_it_started_goes_with_it(serving: Serving) -> None:
    """The last of these: it ends the gateway."""
    _say(serving.openai(), "first")
    serving.process[-1].kill()
    serving.process[-1].wait()
    serving.process.append(_started(serving.file, serving.home, serving.url))
    phases = {each["name"]: each["phase"] for each in serving.state()["models"]}
    assert phases == {"first": "ready", "second": "off"}
    assert _say(serving.openai(), "first")
    assert _say(serving.openai(), "second")  # this one it started itself
    serving.process[-1].send_signal(signal.SIGTERM)
    assert serving.process[-1].wait(timeout=60) == 0
    assert run_firesteel(serving.home.root, "ps", "--json").json["services"] == []
