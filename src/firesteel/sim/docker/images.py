"""Images of the simulated docker: the names that are present, and those that a pull adds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from firesteel.sim.docker.options import DockerError, out, read_options, show
from firesteel.sim.spark import SimSpark


def _pulled(folder: Path) -> list[str]:
    try:
        names: list[str] = json.loads((folder / "images.json").read_text())
    except (FileNotFoundError, ValueError):
        return []
    return names


def has_image(folder: Path, spark: SimSpark, reference: str) -> bool:
    return "*" in spark.images or reference in spark.images or reference in _pulled(folder)


def inspect(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, names = read_options(arguments, values={"format", "f"})
    for name in names:
        if not has_image(folder, spark, name):
            raise DockerError(f"Error response from daemon: No such image: {name}")
        show(options, document(name), json.dumps([document(name)], indent=4))
    return 0


def document(reference: str) -> dict[str, Any]:
    """What `docker image inspect` prints of it."""
    digest = f"sha256:{_hash(reference)}"
    repository = reference.rpartition(":")[0] or reference
    return {
        "Id": digest, "RepoTags": [reference], "RepoDigests": [f"{repository}@{digest}"], "Os": "linux",
        "Architecture": "arm64", "Size": 20_000_000_000, "Config": {"Labels": {"simulated": "true"}},
        "RootFS": {"Type": "layers", "Layers": [digest]},
    }  # fmt: skip


def _hash(text: str) -> str:
    """The same in every process, unlike `hash`."""
    return sha256(text.encode()).hexdigest()


def list_all(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, _ = read_options(
        arguments, values={"format", "f", "filter"}, switches={"quiet", "q", "all", "a", "no-trunc"}
    )
    for name in _pulled(folder):
        repository, _, tag = name.rpartition(":")
        row = {"Repository": repository, "Tag": tag, "ID": document(name)["Id"]}
        show(options, row, row["ID"] if options.keys() & {"q", "quiet"} else name)
    return 0


def pull(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    options, names = read_options(arguments, values={"platform"}, switches={"quiet", "q"})
    for name in names:
        pull_one(name, folder, spark, quiet=bool(options.keys() & {"quiet", "q"}))
    return 0


def pull_one(name: str, folder: Path, spark: SimSpark, *, quiet: bool) -> None:
    progress: Callable[[str], None] = (lambda line: None) if quiet else out
    repository, _, tag = name.rpartition(":")
    progress(f"{tag}: Pulling from {repository}")
    layers = [_hash(f"{name}{index}")[:12] for index in range(4)]
    for index, layer in enumerate(layers):
        progress(f"{layer}: Pulling fs layer")
        time.sleep(spark.pull_s / len(layers))
        if index == 1 and (failed := spark.fault("pull-fails")):
            raise DockerError(
                failed.lines[0] if failed.lines else f"Error response from daemon: {name}: not found"
            )
        if index == 2 and spark.fault("disk-full"):
            raise DockerError(f"failed to register layer: write /layers/{layer}: no space left on device")
        progress(f"{layer}: Pull complete")
    (folder / "images.json").write_text(json.dumps(sorted({*_pulled(folder), name})))
    progress(f"Digest: {document(name)['Id']}")
    out(name if quiet else f"Status: Downloaded newer image for {name}")


def save(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    """A simulated archive has the names of its images and nothing else."""
    for name in arguments:
        if not has_image(folder, spark, name):
            raise DockerError(f"Error response from daemon: No such image: {name}")
        out(name)
    return 0


def load(arguments: list[str], folder: Path, spark: SimSpark) -> int:
    names = [line.strip() for line in sys.stdin if line.strip()]
    (folder / "images.json").write_text(json.dumps(sorted({*_pulled(folder), *names})))
    for name in names:
        out(f"Loaded image: {name}")
    return 0
