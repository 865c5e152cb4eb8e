"""What may go, and what never: a disk as months of use leave it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.edge.home import Home, lock
from firesteel.edge.programs import wheels
from firesteel.errors import FiresteelError
from firesteel.facts.host.hardware import Gpu, Host, hardware, idle_host
from firesteel.launch import Ask
from firesteel.planner.propose import propose
from firesteel.run.prune import UnusedFile, find_unused, remove_unused
from firesteel.run.service import ServiceSpec, folder_of, write_spec
from firesteel.run.spec import cache_name
from firesteel.values import replace

DRIVER = "580.95.05"
OLD, NEW = "a" * 40, "b" * 40
REPOSITORY = "nvidia/Qwen3.6-35B-A3B-NVFP4"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path))
    return Home(tmp_path)


@pytest.fixture
def folder(home: Home) -> Path:
    """A model at two commits, main on the newer one; one blob is in both."""
    folder = home.root / "huggingface/hub" / f"models--{REPOSITORY.replace('/', '--')}"
    for commit, blobs in ((OLD, ("shared", "old")), (NEW, ("shared", "new"))):
        for blob in blobs:
            _write(folder / "blobs" / blob)
            place = folder / "snapshots" / commit / blob
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(f"../../blobs/{blob}")
    _write(folder / "refs/main", NEW)
    return folder


def _write(path: Path, text: str = "x" * 10_000) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _spark() -> Host:
    return replace(idle_host(hardware("gb10")), gpus=(Gpu("NVIDIA GB10", DRIVER, "12.1"),))


def _find(home: Home, *named: str) -> dict[str, UnusedFile]:
    return {str(waste.path.name): waste for waste in find_unused(home, shipped(), _spark(), named)}


def _runs(home: Home, *argv: str) -> None:
    """As far as its files say: a service that is about to start."""
    folder = folder_of(home, "it")
    folder.mkdir(parents=True)
    write_spec(folder, ServiceSpec("it", "http://127.0.0.1:1", "it", argv))


def test_an_empty_home(home: Home) -> None:
    assert _find(home) == {}


def test_an_old_revision_is_removed_with_its_own_blobs(home: Home, folder: Path) -> None:
    found = _find(home)
    assert set(found) == {OLD} and found[OLD].kind == "revision" and found[OLD].bytes >= 10_000
    assert remove_unused(found.values()) == ()
    assert sorted(path.name for path in (folder / "blobs").iterdir()) == ["new", "shared"]
    assert (folder / "snapshots" / NEW / "shared").read_text()
    assert not (folder / "snapshots" / OLD).exists() and _find(home) == {}


def test_without_a_branch_all_revisions_are_kept(home: Home, folder: Path) -> None:
    (folder / "refs/main").unlink()
    assert _find(home) == {}


def test_files_of_running_services_are_kept(home: Home, folder: Path) -> None:
    _runs(home, "docker", "run", "image", REPOSITORY)
    with lock(folder_of(home, "it") / "work.lock"):
        assert _find(home) == {}
        with pytest.raises(FiresteelError, match="in use"):
            _find(home, REPOSITORY)
    assert set(_find(home)) == {OLD}


def test_weights_are_removed_only_if_named(home: Home, folder: Path) -> None:
    found = _find(home, REPOSITORY)
    assert [waste.kind for waste in found.values()] == ["model"] and remove_unused(found.values()) == ()
    assert not folder.exists()


def test_partial_downloads_older_than_a_day(home: Home, folder: Path) -> None:
    fresh = _write(folder / "blobs/one.firesteel.incomplete")
    for name in ("two.firesteel.incomplete", "three.1234abcd.incomplete"):
        old = _write(folder / "blobs" / name)
        os.utime(old, (time.time() - 90_000,) * 2)
    (folder / "refs/main").unlink()
    assert set(_find(home)) == {"two.firesteel.incomplete", "three.1234abcd.incomplete"}
    remove_unused(_find(home).values())
    assert fresh.exists() and _find(home) == {}


def test_kernels_of_another_version_or_driver(home: Home) -> None:
    proposal = propose(shipped(), _spark(), Ask(model="qwen3.6-35b-a3b-nvfp4"))[0]
    container, launch = proposal.plan.launch.container, proposal.plan.launch
    assert container is not None
    current = cache_name(launch.engine, launch.version, container.image, DRIVER)
    before = cache_name(launch.engine, launch.version, container.image, "570.1")
    older = cache_name("vllm", "0.9.0", "vllm/vllm-openai:v0.9.0", DRIVER)
    for name in (current, before, older):
        _write(home.root / "compiled" / name / "vllm/kernel.so")
    assert set(_find(home)) == {before, older}
    _runs(home, "docker", "run", "-v", f"{home.root}/compiled/{older}:/compiled")
    with lock(folder_of(home, "it") / "work.lock"):
        assert set(_find(home)) == {before}


def test_engines_that_the_catalog_does_not_use(home: Home) -> None:
    pinned = next(image.package for image in shipped().images.named.values() if image.package)
    _write(wheels.engine_folder(home, pinned) / "complete")
    _write(home.engines / "xllamacpp-2024.1/complete")
    _write(home.engines / ".lock")
    assert set(_find(home)) == {"xllamacpp-2024.1"}


def test_files_that_cannot_be_removed_are_returned(tmp_path: Path) -> None:
    gone = UnusedFile("engine", tmp_path / "file/below", 1, "")
    _write(tmp_path / "file")
    assert remove_unused([gone]) == (gone,)
