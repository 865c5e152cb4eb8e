"""Images of the pretend docker: names that are there, and names that a pull makes to be there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from firesteel.sim.docker.options import DockerError, out, read_options, show
from firesteel.sim.spark import SimSpark


def _there(folder: Path) -> list[str]:
    try:
        found: list[str] = json.loads((folder / "images.json").read_text())
    except (FileNotFoundError, ValueError):
        return []
    return found


def has_image(folder: Path, world: SimSpark, reference: str) -> bool:
    return "*" in world.images or reference in world.images or reference in _there(folder)


def inspect(words: list[str], folder: Path, world: SimSpark) -> int:
    options, names = read_options(words, values={"format", "f"})
    for name in names:
        if not has_image(folder, world, name):
            raise DockerError(f"Error response from daemon: No such image: {name}")
        show(options, about(name), json.dumps([about(name)], indent=4))
    return 0


def about(reference: str) -> dict[str, Any]:
    digest = "sha256:" + f"{_hash(reference):064x}"
    repository = reference.rpartition(":")[0] or reference
    return {
        "Id": digest, "RepoTags": [reference], "RepoDigests": [f"{repository}@{digest}"], "Os": "linux",
        "Architecture": "arm64", "Size": 20_000_000_000, "Config": {"Labels": {"pretend": "true"}},
    }  # fmt: skip


def _hash(text: str) -> int:
    """The same in every process, unlike `hash`."""
    return int(sha256(text.encode()).hexdigest(), 16)


def list_all(words: list[str], folder: Path, world: SimSpark) -> int:
    options, _ = read_options(
        words, values={"format", "f", "filter"}, switches={"quiet", "q", "all", "a", "no-trunc"}
    )
    for name in _there(folder):
        row = {
            "Repository": name.rpartition(":")[0],
            "Tag": name.rpartition(":")[2],
            "ID": about(name)["Id"],
        }
        show(options, row, row["ID"] if options.keys() & {"q", "quiet"} else name)
    return 0


def pull(words: list[str], folder: Path, world: SimSpark) -> int:
    options, names = read_options(words, values={"platform"}, switches={"quiet", "q"})
    for name in names:
        pull_one(name, folder, world, quiet=bool(options.keys() & {"quiet", "q"}))
    return 0


def pull_one(name: str, folder: Path, world: SimSpark, *, quiet: bool) -> None:
    show: Callable[[str], None] = (lambda line: None) if quiet else out
    show(f"{name.rpartition(':')[2]}: Pulling from {name.rpartition(':')[0]}")
    layers = [f"{_hash(f'{name}{index}'):064x}"[:12] for index in range(4)]
    for index, layer in enumerate(layers):
        show(f"{layer}: Pulling fs layer")
        time.sleep(world.pull_s / len(layers))
        if index == 1 and (failed := world.fault("pull-fails")):
            raise DockerError(
                failed.lines[0] if failed.lines else f"Error response from daemon: {name}: not found"
            )
        if index == 2 and world.fault("disk-full"):
            raise DockerError(f"failed to register layer: write /layers/{layer}: no space left on device")
        show(f"{layer}: Pull complete")
    there = _there(folder)
    (folder / "images.json").write_text(json.dumps(sorted({*there, name})))
    show(f"Digest: {about(name)['Id']}")
    out(name if quiet else f"Status: Downloaded newer image for {name}")
