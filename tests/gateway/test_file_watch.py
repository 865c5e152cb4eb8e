"""A service file that changes under a gateway that serves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from firesteel.gateway.file_watch import ServiceFileWatch, file_version
from firesteel.gateway.loader.memory_release import ExpectedRelease
from firesteel.gateway.loader.process import LoaderFailed, LoadProgress, ProcessLoader
from firesteel.gateway.service_config import ModelConfig, Reason, RunningModel, ServiceConfig

GOOD = "models:\n  one: {recipe: smollm2, context: 2048}\n"


@dataclass
class Recorded:
    """Hands that write down what they are asked to read, and read nothing."""

    texts: list[str] = field(default_factory=list)

    async def read(self, path: str) -> ServiceConfig:
        self.texts.append(Path(path).read_text())
        if "wrong" in self.texts[-1]:
            raise LoaderFailed(Reason("f:1: wrong", "correct it"))
        return ServiceConfig(path, "127.0.0.1:1", 1, 1, ())

    def load(self, model: ModelConfig) -> AsyncGenerator[LoadProgress | RunningModel, None]:
        raise NotImplementedError

    def unload(self, name: str) -> AsyncGenerator[LoadProgress | ExpectedRelease, None]:
        raise NotImplementedError


@dataclass
class Seen:
    changes: list[ServiceConfig] = field(default_factory=list)
    troubles: list[Reason] = field(default_factory=list)


def watch(path: Path, loader: Recorded | ProcessLoader) -> tuple[ServiceFileWatch, Seen]:
    seen = Seen()
    return ServiceFileWatch(str(path), loader, seen.changes.append, seen.troubles.append), seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "service.yaml"
    found.write_text(GOOD)
    return found


async def test_a_file_that_stays_is_not_read(path: Path) -> None:
    loader = Recorded()
    it, _ = watch(path, loader)
    for _ in range(3):
        await it.check()
    assert not loader.texts


async def test_a_change_is_read_once_when_two_looks_agree(path: Path) -> None:
    loader = Recorded()
    it, seen = watch(path, loader)
    path.write_text("half")
    assert not await it.check()
    path.write_text("whole thing")
    assert not await it.check(), "it is still being written"
    assert await it.check()
    assert not await it.check()
    assert loader.texts == ["whole thing"] and len(seen.changes) == 1 and it.problem is None


async def test_another_release_of_an_engine_is_a_change(path: Path) -> None:
    loader, seen = Recorded(), Seen()
    releases = path.with_name("releases.json")
    it = ServiceFileWatch(
        str(path), loader, seen.changes.append, seen.troubles.append, releases=str(releases)
    )
    assert not await it.check()
    releases.write_text("[]")
    assert not await it.check()
    assert await it.check() and not await it.check()
    assert len(seen.changes) == 1 and not seen.troubles


async def test_mistakes_change_nothing_until_they_are_mended(path: Path) -> None:
    it, seen = watch(path, Recorded())
    path.write_text("wrong")
    for _ in range(4):
        await it.check()
    assert not seen.changes and len(seen.troubles) == 1
    assert it.problem == Reason("f:1: wrong", "correct it")
    path.write_text(GOOD + "\n")
    for _ in range(2):
        await it.check()
    assert len(seen.changes) == 1 and it.problem is None


async def test_another_file_in_its_place_is_a_change(path: Path) -> None:
    """As editors and Kubernetes do it; with the size and the time of the old one."""
    loader = Recorded()
    it, _ = watch(path, loader)
    about = path.stat()
    other = path.with_name("other")
    other.write_text(GOOD.replace("2048", "4096"))
    os.utime(other, ns=(about.st_atime_ns, about.st_mtime_ns))
    other.replace(path)
    assert path.stat().st_size == about.st_size and path.stat().st_mtime_ns == about.st_mtime_ns
    for _ in range(2):
        await it.check()
    assert loader.texts == [path.read_text()]


async def test_a_file_that_disappears_is_reported_and_one_that_comes_back_is_read(path: Path) -> None:
    loader = Recorded()
    it, seen = watch(path, loader)
    path.unlink()
    for _ in range(4):
        await it.check()
    assert len(seen.troubles) == 1 and "is missing" in seen.troubles[0].what and not loader.texts
    path.write_text(GOOD)
    for _ in range(2):
        await it.check()
    assert len(seen.changes) == 1 and it.problem is None


async def test_a_change_between_the_first_reading_and_the_first_look(path: Path) -> None:
    loader = Recorded()
    before = file_version(str(path))
    path.write_text("something longer than before " + GOOD)
    it = ServiceFileWatch(str(path), loader, lambda config: None, lambda why: None, before)
    for _ in range(2):
        await it.check()
    assert len(loader.texts) == 1


async def test_the_real_reader_has_the_lines_of_mistakes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path / "home"))
    it, seen = watch(path, ProcessLoader())
    it.start()
    path.write_text("models:\n  one: {recipe: smollm2, colour: red}\n")
    async with asyncio.timeout(30):
        while not seen.troubles:
            await asyncio.sleep(0.05)
    await it.close()
    assert "service.yaml:2: " in seen.troubles[0].what and not seen.changes
