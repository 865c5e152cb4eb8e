"""`firesteel pull` as a user types it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from firesteel.cli.main import main
from firesteel.library.documents.all import schemas
from tests.conftest import Ran, run_firesteel
from tests.edge import hub_server
from tests.edge.hub_server import COMMIT

SCHEMAS = schemas()
CLEAN = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "FIRESTEEL_COMMAND")
GGUF = "org/some-GGUF"
FILES = {f"some-{label}.gguf": label.encode() * 1000 for label in ("Q4_K_M", "Q8_0")}
Pull = Callable[..., Ran]


@pytest.fixture
def hub() -> Iterator[hub_server.Hub]:
    with hub_server.serving() as result:
        result.add(GGUF, dict(FILES))
        yield result


@pytest.fixture
def pull(
    hub: hub_server.Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Pull:
    """The command in this process: starting a process for each would take most of the time."""
    for name in CLEAN:
        monkeypatch.delenv(name, raising=False)
    for name, value in hub.environ(FIRESTEEL_HOME=str(tmp_path)).items():
        monkeypatch.setenv(name, value)

    def typed(*arguments: str, **env: str) -> Ran:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as caught:
            main(["pull", *arguments])
        assert isinstance(caught.value.code, int)
        output = capsys.readouterr()
        return Ran(caught.value.code, output.out, output.err)

    return typed


def document(ran: Ran) -> Any:
    result = json.loads(ran.out)
    jsonschema.validate(result, SCHEMAS[result["document"]])
    return result


def test_a_gguf_by_its_label(hub: hub_server.Hub, pull: Pull, tmp_path: Path) -> None:
    which = pull(GGUF)
    assert which.code == 2 and "2 GGUF models: Q4_K_M, Q8_0" in which.err
    assert f"next: firesteel pull {GGUF}:Q4_K_M" in which.err
    ran = pull(f"{GGUF}:Q8_0")
    assert ran.code == 0, ran.err
    assert ran.out == f"{GGUF}:Q8_0: 3.9 KiB in 1 files, checked\n"
    place = tmp_path / f"huggingface/hub/models--org--some-GGUF/snapshots/{COMMIT}/some-Q8_0.gguf"
    assert f"next: firesteel up {place}" in ran.err and place.read_bytes() == FILES["some-Q8_0.gguf"]
    assert hub.sent == {"some-Q8_0.gguf": 4000}
    hub.forget()
    again = pull(f"{GGUF}:Q8_0", "--json", HF_ENDPOINT="http://127.0.0.1:9")
    assert document(again)["done"] == [f"{GGUF}:Q8_0 was there already"] and hub.log == []


def test_files_by_pattern(hub: hub_server.Hub, pull: Pull) -> None:
    ran = pull(GGUF, "--include", "*Q4*")
    assert ran.code == 0 and set(hub.sent) == {"some-Q4_K_M.gguf"}
    none = pull(GGUF, "--include", "*.safetensors")
    assert none.code == 1 and "no file like *.safetensors; it has some-" in none.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "which model?"),
        (("smollm2", "--yes"), 2, "--yes needs --prune"),
        (("org/nothing",), 2, "the Hub has no public org/nothing"),
        ((f"{GGUF}:Q8_0@v7",), 2, "no revision `v7`"),
        ((f"{GGUF}@../../x",), 2, "is not a revision"),
        (("org/" + "x" * 5000,), 2, "is not a Hub repository"),
        (("nosuchthing",), 2, "nothing called"),
    ],
)
def test_errors_are_sentences(pull: Pull, arguments: tuple[str, ...], code: int, says: str) -> None:
    ran = pull(*arguments)
    assert ran.code == code and says in ran.err and "next: " in ran.err and "Traceback" not in ran.err


def test_offline_by_environment_variable(hub: hub_server.Hub, tmp_path: Path) -> None:
    env = {**hub.environ(HF_HUB_OFFLINE="1"), "HF_HOME": ""}
    ran = run_firesteel(tmp_path, "pull", f"{GGUF}:Q8_0", env=env)
    assert ran.code == 5 and "HF_HUB_OFFLINE forbids" in ran.err


def test_prune_shows_then_removes(pull: Pull, tmp_path: Path) -> None:
    assert pull("--prune").out == "nothing to remove\n"
    blobs = tmp_path / "huggingface/hub/models--org--some-GGUF/blobs"
    blobs.mkdir(parents=True)
    part = blobs / "0123.firesteel.incomplete"
    part.write_bytes(b"x" * 100_000)
    os.utime(part, (time.time() - 200_000,) * 2)
    shown = pull("--prune")
    assert shown.code == 0 and str(part) in shown.out and "next: firesteel pull --prune --yes" in shown.err
    looked = document(pull("--prune", "--json"))
    assert [row["path"] for row in looked["waste"]] == [str(part)] and looked["removed"] is False
    assert part.exists()
    done = pull("--prune", "--yes")
    assert done.code == 0 and "freed" in done.out and not part.exists()


def test_prune_removes_the_weights_of_a_named_model(pull: Pull, tmp_path: Path) -> None:
    assert pull(f"{GGUF}:Q8_0").code == 0
    snapshot = tmp_path / f"huggingface/hub/models--org--some-GGUF/snapshots/{COMMIT}/some-Q8_0.gguf"
    assert snapshot.exists() and document(pull("--prune", "--yes", "--json"))["waste"] == []
    assert snapshot.exists()
    result = document(pull("--prune", GGUF, "--yes", "--json"))
    assert result["removed"] and [row["kind"] for row in result["waste"]] == ["model"]
    assert not snapshot.exists()
