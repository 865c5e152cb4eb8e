"""`pull` from a Hub on loopback, with kills and damaged files; docker is a fake that records its calls."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import Ran, run_firesteel, unclosed_generators
from tests.edge import hub_server
from tests.edge.hub_server import COMMIT, Trouble

from firesteel.catalog.catalog import shipped
from firesteel.edge.home import Home
from firesteel.edge.hub.cache import find_store
from firesteel.errors import FiresteelError, HostNotReady
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask
from firesteel.planner.propose import Proposal, propose
from firesteel.run.events import Event, PhaseDone, PhaseProgress
from firesteel.run.pull import pull_launch, pull_weights
from firesteel.run.weights import WeightsNeed

NAME = "org/model"
TOKEN = "hf_never_show_this_one"
WEIGHTS = random.Random(2).randbytes(9_000_000)
FILES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"the same once more",
    "original/model.pth": b"and once more",
}
NEEDED_BYTES = len(WEIGHTS) + 2


@dataclass(frozen=True, slots=True)
class Place:
    """A home, a store and a Hub of a test's own."""

    hub: hub_server.Hub
    home: Home
    env: dict[str, str]

    def pull(self, *words: str, **env: str) -> Ran:
        return run_firesteel(self.home.root, "pull", *words, env={**self.env, **env})

    def blob(self, path: str = "model.safetensors") -> Path:
        return self.snapshot(path).resolve()

    def snapshot(self, path: str = "") -> Path:
        return self.home.root / f"huggingface/hub/models--org--model/snapshots/{COMMIT}" / path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with hub_server.serving() as hub:
        hub.add(NAME, dict(FILES))
        home = Home(tmp_path / "home")
        env = hub.environ(FIRESTEEL_HOME=str(home.root))
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        yield Place(hub, home, env)


async def _events(place: Place, *wanted: WeightsNeed) -> list[Event]:
    return [event async for event in pull_weights(wanted or [WeightsNeed(NAME, "vllm")], place.home)]


def _done(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, PhaseDone)]


async def test_a_pull_that_is_left_ends_all_that_it_began(place: Place) -> None:
    """The lock of the repository is held until the fetch below it has ended."""
    place.hub.repositories[NAME].trouble["model.safetensors"] = Trouble(bytes_per_s=1_000_000)
    with unclosed_generators() as unclosed:
        pulling = pull_weights([WeightsNeed(NAME, "vllm")], place.home)
        assert isinstance(await anext(pulling), PhaseProgress)
        await pulling.aclose()
    assert unclosed == []


async def test_only_needed_files_are_fetched_and_a_second_pull_sends_no_request(place: Place) -> None:
    first = await _events(place)
    assert place.hub.sent == {"config.json": 2, "model.safetensors": len(WEIGHTS)}
    assert _done(first) == [f"{NAME}: 8.6 MiB in 2 files, checked"]
    assert any(isinstance(event, PhaseProgress) and "/s, " in event.text for event in first)
    place.hub.forget()
    assert await _events(place) == []
    assert place.hub.log == []


def test_a_pull_after_kill_9_fetches_only_the_rest(place: Place) -> None:
    place.hub.repositories[NAME].trouble["model.safetensors"] = Trouble(bytes_per_s=6_000_000)
    words = [sys.executable, "-m", "firesteel", "pull", NAME]
    with subprocess.Popen(words, env={**os.environ, **place.env}, stderr=subprocess.DEVNULL) as child:
        _until(lambda: place.hub.sent.get("model.safetensors", 0) > 5_000_000)
        child.send_signal(signal.SIGKILL)
    _until(lambda: place.hub.sending == 0)
    parts = list(place.home.root.glob("huggingface/hub/*/blobs/*.firesteel.incomplete"))
    had = sum(part.stat().st_size for part in parts)
    assert len(parts) == 1 and 3_000_000 < had < len(WEIGHTS)
    assert not place.snapshot("model.safetensors").exists()
    place.hub.repositories[NAME].trouble.clear()
    place.hub.forget()
    ran = place.pull(NAME)
    assert ran.code == 0, ran.err
    assert place.hub.sent["model.safetensors"] == len(WEIGHTS) - had
    assert place.snapshot("model.safetensors").read_bytes() == WEIGHTS


def test_ctrl_c_ends_it_at_once_and_keeps_the_partial_file(place: Place) -> None:
    place.hub.repositories[NAME].trouble["model.safetensors"] = Trouble(bytes_per_s=2_000_000)
    words = [sys.executable, "-m", "firesteel", "pull", NAME]
    with subprocess.Popen(words, env={**os.environ, **place.env}, stderr=subprocess.PIPE) as child:
        _until(lambda: place.hub.sent.get("model.safetensors", 0) > 1_200_000)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
    assert child.returncode == 130 and b"interrupted" in errors and b"Traceback" not in errors
    parts = list(place.home.root.glob("huggingface/hub/*/blobs/*.firesteel.incomplete"))
    assert [0 < part.stat().st_size < len(WEIGHTS) for part in parts] == [True]


def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(1500):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about in 15 s")


@pytest.mark.parametrize("harm", ["shorter", "other bytes", "gone", "link gone"])
async def test_only_a_damaged_file_is_fetched_again(place: Place, harm: str) -> None:
    await _events(place)
    place.hub.forget()
    blob = place.blob()
    match harm:
        case "shorter":
            os.truncate(blob, 4_000_000)
        case "other bytes":
            blob.write_bytes(b"\0" * len(WEIGHTS))
        case "gone":
            blob.unlink()
        case "link gone":
            place.snapshot("model.safetensors").unlink()
    events = await _events(place)
    fetched = {} if harm == "link gone" else {"model.safetensors": len(WEIGHTS)}
    assert place.hub.sent == fetched and _done(events)
    assert place.blob().read_bytes() == WEIGHTS
    place.hub.forget()
    assert await _events(place) == [] and place.hub.log == []


async def test_reread_checks_all_files(place: Place) -> None:
    await _events(place)
    blob, stamp = place.blob(), place.blob().stat()
    blob.write_bytes(WEIGHTS[:2_000_000] + bytes(7_000_000))
    os.utime(blob, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert await _events(place) == []
    again = [event async for event in pull_weights([WeightsNeed(NAME, "vllm")], place.home, reread=True)]
    assert "GB/s; fetched again because it was damaged: model.safetensors" in _done(again)[0]
    assert place.blob().read_bytes() == WEIGHTS
    intact = [event async for event in pull_weights([WeightsNeed(NAME, "vllm")], place.home, reread=True)]
    assert _done(intact)[0].endswith("GB/s, nothing to fetch")


async def test_a_header_that_no_longer_parses_is_fetched_again_by_a_plain_pull(place: Place) -> None:
    await _events(place)
    blob, stamp = place.blob(), place.blob().stat()
    with blob.open("r+b") as file:
        file.write(b"XXXX")
    os.utime(blob, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert _done(await _events(place))[0].endswith("because it was damaged: model.safetensors")
    assert place.blob().read_bytes() == WEIGHTS


@pytest.mark.parametrize("harm", ["other bytes", "a pointer of git-lfs"])
def test_without_a_network_the_damaged_file_is_named_and_stays(place: Place, harm: str) -> None:
    assert place.pull(NAME).code == 0
    if harm == "other bytes":
        with place.blob().open("r+b") as file:
            file.write(b"XXXX")
    else:
        place.blob().write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9000000\n")
    ran = place.pull(NAME, HF_ENDPOINT="http://127.0.0.1:9")
    assert ran.code == 1 and "next: " in ran.err
    assert "model.safetensors is damaged and cannot be fetched again: http://127.0.0.1:9" in ran.err
    assert place.blob().exists()
    healed = place.pull(NAME)
    assert healed.code == 0 and "because it was damaged: model.safetensors" in healed.out
    assert place.blob().read_bytes() == WEIGHTS


async def test_what_other_tools_fetched_is_compared_without_a_network(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of their blobs are the digests."""
    await _events(place)
    shutil.rmtree(place.home.root / "hub")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    need = [WeightsNeed(NAME, "vllm")]
    assert await _events(place) == []
    intact = [event async for event in pull_weights(need, place.home, reread=True)]
    assert "nothing to fetch" in _done(intact)[0]
    with place.blob().open("r+b") as file:
        file.write(b"XXXX")
    with pytest.raises(FiresteelError, match=r"^model.safetensors is damaged and cannot be fetched again"):
        _ = [event async for event in pull_weights(need, place.home, reread=True)]


async def test_a_mirror_that_sends_pointers_is_refused(place: Place) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\n"
    place.hub.repositories[NAME].trouble["model.safetensors"] = Trouble(instead=pointer, every_time=True)
    with pytest.raises(FiresteelError, match=r"model\.safetensors"):
        await _events(place)
    assert not place.snapshot("model.safetensors").exists()
    place.hub.repositories[NAME].trouble.clear()
    await _events(place)
    assert place.blob().read_bytes() == WEIGHTS


async def test_update_finds_a_new_revision(place: Place) -> None:
    await _events(place)
    repository = place.hub.repositories[NAME]
    repository.commit, repository.files["config.json"] = "e" * 40, b'{"new": 1}'
    assert await _events(place) == []
    place.hub.forget()
    _ = [event async for event in pull_weights([WeightsNeed(NAME, "vllm")], place.home, update=True)]
    assert place.hub.sent == {"config.json": 10}
    reference = place.home.root / "huggingface/hub/models--org--model/refs/main"
    assert reference.read_text() == "e" * 40


async def test_a_pinned_revision(place: Place) -> None:
    await _events(place, WeightsNeed(NAME, "vllm", revision=COMMIT))
    assert place.hub.log[0].path.endswith(f"/revision/{COMMIT}")
    place.hub.forget()
    assert await _events(place, WeightsNeed(NAME, "vllm", revision=COMMIT)) == [] and place.hub.log == []
    with pytest.raises(FiresteelError, match="no revision"):
        await _events(place, WeightsNeed(NAME, "vllm", revision="d" * 40))


async def test_files_of_other_tools_are_used_offline(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """No listing was kept then; the index says whether anything is missing."""
    folder = place.home.root / "huggingface/hub/models--org--model"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(COMMIT)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "a.safetensors").write_bytes(b"a")
    (snapshot / "model.safetensors.index.json").write_text(
        '{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}'
    )
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FiresteelError, match="cannot be reached"):
        await _events(place)
    (snapshot / "b.safetensors").write_bytes(b"b")
    assert await _events(place) == []


def test_two_pulls_at_once_fetch_once(place: Place) -> None:
    place.hub.repositories[NAME].trouble["model.safetensors"] = Trouble(bytes_per_s=12_000_000)
    words = [sys.executable, "-m", "firesteel", "pull", NAME]
    both = [subprocess.Popen(words, env={**os.environ, **place.env}, stderr=subprocess.PIPE) for _ in "12"]
    errors = [child.communicate(timeout=60)[1].decode() for child in both]
    assert [child.returncode for child in both] == [0, 0], errors
    assert place.hub.sent["model.safetensors"] == len(WEIGHTS)


async def test_a_full_disk_is_found_before_the_fetch(place: Place) -> None:
    served = place.hub.repositories[NAME]
    served.files["model.safetensors"] = _Huge()
    with pytest.raises(HostNotReady, match=r"needs 8192\.0 TiB more"):
        await _events(place)
    assert place.hub.sent == {}


class _Huge(bytes):
    """A file that says it is 8 PiB long."""

    def __len__(self) -> int:
        return 2**53


@pytest.mark.parametrize(("token", "says"), [("", "accept its licence at"), (TOKEN, "accept its licence at")])
async def test_a_gated_model_names_the_remedy_and_never_the_token(
    place: Place, monkeypatch: pytest.MonkeyPatch, token: str, says: str
) -> None:
    place.hub.repositories[NAME].gated = True
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(HostNotReady, match="gated") as caught:
        await _events(place)
    assert f"{says} {place.hub.url}/{NAME}" in caught.value.next
    assert TOKEN not in caught.value.next + caught.value.what
    assert not any(asked.at_store for asked in place.hub.log)


def test_a_token_is_in_no_file_and_no_output(place: Place) -> None:
    place.hub.repositories[NAME].gated = True
    place.hub.repositories[NAME].readers = (TOKEN,)
    ran = place.pull(NAME, "--json", HF_TOKEN=TOKEN)
    assert ran.code == 0 and TOKEN not in ran.err + ran.out
    written = [path for path in place.home.root.rglob("*") if path.is_file()]
    assert len(written) > 4 and not any(TOKEN.encode() in path.read_bytes() for path in written)


# --- a whole launch, with a fake docker ---

_DOCKER = """#!/bin/sh
echo "$@" >> "$DOCKER_WORDS"
case "$1 $2" in
"image inspect") grep -q "^pull" "$DOCKER_WORDS" ;;
*) exit 0 ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which the fake docker writes its arguments."""
    words = tmp_path / "words"
    words.touch()
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(_DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_WORDS", str(words))
    return words


def _recipe(name: str) -> Proposal:
    return propose(shipped(), idle_host(hardware("gb10")), Ask(model=name))[0]


async def _staged(place: Place, name: str) -> list[str]:
    return _done([event async for event in pull_launch(_recipe(name), place.home)])


async def test_image_weights_and_drafter_are_fetched_once(place: Place, docker: Path) -> None:
    proposal = _recipe("qwen3.5-27b-dflash")
    assert proposal.model is not None
    for repository in (proposal.model.repository, "z-lab/Qwen3.5-27B-DFlash"):
        place.hub.add(repository, {"config.json": b"{}", "model.safetensors": repository.encode() * 9})
    done = await _staged(place, "qwen3.5-27b-dflash")
    assert len(done) == 3 and done[0].startswith("vllm/vllm-openai")
    assert done[1].startswith(proposal.model.repository) and done[2].startswith("z-lab/")
    compiled = list((place.home.root / "compiled").iterdir())
    assert len(compiled) == 1 and compiled[0].name.startswith("vllm-")
    place.hub.forget()
    assert await _staged(place, "qwen3.5-27b-dflash") == [] and place.hub.log == []


async def test_a_gated_model_is_known_before_its_image_is_fetched(place: Place, docker: Path) -> None:
    proposal = _recipe("llama-3.3-70b-nvfp4")
    assert proposal.model is not None
    place.hub.add(proposal.model.repository, dict(FILES), gated=True)
    with pytest.raises(HostNotReady, match="gated"):
        await _staged(place, "llama-3.3-70b-nvfp4")
    assert "pull" not in docker.read_text()


async def test_a_plugin_file_beside_the_weights(place: Place, docker: Path) -> None:
    proposal = _recipe("nemotron-3-nano-nvfp4")
    assert proposal.model is not None
    plugin = "nano_v3_reasoning_parser.py"
    repository = proposal.model.repository
    place.hub.add(repository, {"config.json": b"{}", "model.safetensors": b"w", plugin: b"pass"})
    await _staged(place, "nemotron-3-nano-nvfp4")
    store = find_store(place.home)
    assert (store.snapshot(repository, COMMIT) / plugin).read_bytes() == b"pass"


async def test_packages_are_fetched_by_the_image_once(place: Place, docker: Path) -> None:
    proposal = _recipe("phi-4-multimodal-nvfp4")
    assert proposal.model is not None
    place.hub.add(proposal.model.repository, {"config.json": b"{}", "model.safetensors": b"w"})
    assert "packages scipy" in await _staged(place, "phi-4-multimodal-nvfp4")
    run = [line for line in docker.read_text().splitlines() if line.startswith("run")]
    assert len(run) == 1 and "pip download" in run[0] and run[0].endswith("scipy")
    assert f"--user {os.getuid()}:{os.getgid()}" in run[0]
    assert await _staged(place, "phi-4-multimodal-nvfp4") == []


async def test_a_gguf_of_a_recipe(place: Place, docker: Path) -> None:
    name = "ggml-org/gpt-oss-120b-GGUF"
    parts = [f"gpt-oss-120b-mxfp4-0000{part}-of-00003.gguf" for part in (1, 2, 3)]
    place.hub.add(name, {part: part.encode() for part in parts} | {"other-Q8_0.gguf": b"no"})
    await _staged(place, "gpt-oss-120b-llamacpp")
    assert set(place.hub.sent) == set(parts)
    reference = find_store(place.home).folder(name) / "refs/main"
    assert reference.read_text() == COMMIT
