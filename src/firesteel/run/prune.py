"""`pull --prune`: find and remove files that nothing uses any more.

Files that a recipe of the catalog or a running service uses are never removed; the weights of a model only if
the user names it and it does not run. The list of files is a value: it is shown, confirmed, then removed.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from firesteel.catalog.catalog import Catalog
from firesteel.edge.home import Home
from firesteel.edge.host.process import now
from firesteel.edge.hub import client
from firesteel.edge.hub.cache import Store, find_store
from firesteel.edge.programs.wheels import engine_folder
from firesteel.errors import FiresteelError
from firesteel.facts.host.hardware import Host
from firesteel.run.service import Service, all_services
from firesteel.run.spec import gpu_driver, unused_folders
from firesteel.values import Value

Kind = Literal["part of a download", "compiled kernels", "engine", "revision", "packages", "model"]
_DAY_S = 24 * 3600


class UnusedFile(Value):
    kind: Kind
    path: Path
    bytes: int
    why: str
    blobs: tuple[Path, ...] = ()
    """Removed with a revision, because no other revision uses them."""


def find_unused(
    home: Home, catalog: Catalog, host: Host, named: Sequence[str] = ()
) -> tuple[UnusedFile, ...]:
    """`named`: repositories whose weights may be removed too."""
    store, running = find_store(home), all_services(home)
    images = list(catalog.images.named.values())
    compiled, wheels = home.root / "compiled", home.root / "wheels"
    kernels = unused_folders(_names(compiled), images, gpu_driver(host))
    pinned = {engine_folder(home, image.package).name for image in images if image.package}
    engines = [name for name in _names(home.engines) if name not in pinned and not name.startswith(".")]
    folders: tuple[tuple[Kind, Path, Sequence[str], str], ...] = (
        ("compiled kernels", compiled, kernels, "no recipe uses it with this driver"),
        ("packages", wheels, unused_folders(_names(wheels), images, None), "no recipe installs them"),
        ("engine", home.engines, engines, "the catalog does not use it"),
    )
    return (
        *_partial_downloads(store),
        *(
            UnusedFile(kind, folder / name, _bytes(folder / name), why)
            for kind, folder, names, why in folders
            for name in names
            if not _is_used(str(folder / name), running)
        ),
        *_revisions(store, catalog, running, named),
        *_models(store, running, named),
    )


def _partial_downloads(store: Store) -> Iterator[UnusedFile]:
    """Our own can be resumed for a day; those of huggingface_hub never are."""
    for path in sorted(store.root.glob("models--*/blobs/*.incomplete")):
        if (age_s := _age_s(path)) > _DAY_S:
            why = f"untouched for {age_s / _DAY_S:.0f} days"
            yield UnusedFile("part of a download", path, _bytes(path), why)


def _revisions(
    store: Store, catalog: Catalog, running: Sequence[Service], named: Sequence[str]
) -> Iterator[UnusedFile]:
    """Commits that no branch points to any more. Without any branch nothing is known, and all are kept."""
    for folder in sorted(store.root.glob("models--*")):
        repository = folder.name.removeprefix("models--").replace("--", "/", 1)
        pinned = {
            model.revision for name, model in catalog.models.items() if name.partition(":")[0] == repository
        }
        in_use = pinned | {_text(path) for path in folder.glob("refs/**/*")}
        if repository in named or not any(folder.glob("refs/*")) or _is_used(repository, running):
            continue
        for snapshot in sorted(folder.glob("snapshots/*")):
            if snapshot.name not in in_use:
                blobs = _own_blobs(folder, snapshot)
                size, why = sum(map(_bytes, blobs)), f"of {repository}; no branch points to it"
                yield UnusedFile("revision", snapshot, size, why, blobs)


def _models(store: Store, running: Sequence[Service], named: Sequence[str]) -> Iterator[UnusedFile]:
    for repository in named:
        folder = store.folder(repository)
        if not folder.exists():
            continue
        if _is_used(repository, running) or client.is_being_fetched(store, repository):
            raise FiresteelError(
                f"{repository} is in use",
                next="firesteel ps, then firesteel down NAME, then repeat the command",
            )
        yield UnusedFile("model", folder, _bytes(folder), "you named it")


def remove_unused(files: Iterable[UnusedFile]) -> tuple[UnusedFile, ...]:
    """Returns what could not be removed: files of root, left by a container."""
    return tuple(unused for unused in files if not _remove(unused))


def _remove(unused: UnusedFile) -> bool:
    try:
        if unused.path.is_dir() and not unused.path.is_symlink():
            shutil.rmtree(unused.path)
        else:
            unused.path.unlink(missing_ok=True)
        for blob in unused.blobs:
            blob.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _own_blobs(folder: Path, snapshot: Path) -> tuple[Path, ...]:
    """The blobs that no other snapshot links to."""
    others = (other for other in folder.glob("snapshots/*") if other != snapshot)
    own = _linked(snapshot).difference(*map(_linked, others))
    blobs = (folder / "blobs").resolve()
    return tuple(sorted(path for path in own if path.parent == blobs))


def _linked(snapshot: Path) -> set[Path]:
    return {path.resolve() for path in snapshot.rglob("*") if path.is_symlink()}


def _is_used(name: str, running: Sequence[Service]) -> bool:
    """Whether the command line of a service that is not dead contains this folder or repository."""
    alive = (service for service in running if service.phase != "dead")
    return any(name in argument for service in alive for argument in service.spec.start)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() if path.is_file() else None
    except (OSError, UnicodeDecodeError):
        return None


def _age_s(path: Path) -> float:
    with suppress(OSError):
        return now() - path.stat().st_mtime
    return 0.0


def _bytes(path: Path) -> int:
    """Space on the disk: links take none, and sparse files only what is allocated."""
    total = 0
    with suppress(OSError):
        status = path.lstat()
        total = status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 0
    if path.is_dir() and not path.is_symlink():
        for base, _, names in os.walk(path):
            total += sum(_bytes(Path(base, name)) for name in names)
    return total
