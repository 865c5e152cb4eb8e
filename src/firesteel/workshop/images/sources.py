"""Opens an image, wherever it is: what its config says and its layers, of which nothing has been read yet.

    open_image("./image.tar")                   an archive: `docker save`, or an OCI layout as a tar
    open_image("./layout")                      an OCI layout folder
    open_image("vllm/vllm-openai:v0.28.0")      on this machine, else a container, else in its registry

An image or container that docker has is streamed out whole, as its files are seen inside. In a registry only
small layers are read unless all are asked for. Nothing outside a folder or archive is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import IO, Any, Literal, cast

from firesteel.edge.docker.image_sources import (
    ContainerRuntime,
    InspectedContainerImage,
    created_container,
    find_container_runtime,
    inspect,
)
from firesteel.edge.docker.registry import Registry, parse_reference
from firesteel.edge.home import is_path
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.units import MIB
from firesteel.values import Value
from firesteel.workshop.images.layers import DamagedImage, Layer

MAX_DOCUMENT_BYTES = 8 * MIB
_MAX_BLOBS = 10_000


class Blobs(Value):
    """Named files of a folder or an archive."""

    open: Callable[[str], AbstractContextManager[IO[bytes]]]
    size: Callable[[str], int | None]
    """None: there is no such file."""


def folder_blobs(root: Path) -> Blobs:
    def place(name: str) -> Path:
        path = root / name
        if not path.resolve().is_relative_to(root.resolve()):
            raise DamagedImage(f"{path} leads out of the folder", next="copy the layout again")
        return path

    return Blobs(
        lambda name: place(name).open("rb"),
        lambda name: place(name).stat().st_size if place(name).is_file() else None,
    )


def archive_blobs(path: Path) -> Blobs:
    """The files of an image that `docker save` wrote as a tar archive."""
    members: dict[str, tarfile.TarInfo] = {}
    try:
        with _Limited(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                members[member.name.removeprefix("./")] = member
                if len(members) > _MAX_BLOBS:
                    raise DamagedImage(
                        f"{path} has more files than an image", next=f"tar --list --file {path}"
                    )
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise DamagedImage(f"{path} cannot be read: {error}", next="docker save it again") from error

    def find(name: str) -> tarfile.TarInfo | None:
        member = members.get(name)
        if member is not None and member.issym():  # how older dockers save a layer that two images share
            member = members.get(normpath(join("/", dirname(name), member.linkname)).lstrip("/"))
        return member if member is not None and member.isreg() else None

    @contextmanager
    def opened(name: str) -> Iterator[IO[bytes]]:
        member = find(name)
        if member is None:
            raise DamagedImage(f"{path} lacks {name[:100]}", next="docker save it again")
        with path.open("rb") as file:
            file.seek(member.offset_data)
            yield cast("IO[bytes]", _Part(file, member.size))

    def size(name: str) -> int | None:
        member = find(name)
        return None if member is None else member.size

    return Blobs(opened, size)


class _Limited(io.FileIO):
    """`tarfile` reads extended headers whole, and a damaged one may claim any size."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= MAX_DOCUMENT_BYTES:
            raise ValueError(f"a header claims {size:,} bytes")
        return super().read(size) or b""


class _Part:
    """The next bytes of a file, and not more."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


SourceKind = Literal["layout", "archive", "local image", "container", "registry"]
DEFAULT_PLATFORM = "linux/arm64"
"""A Spark's: of an image for several kinds of processor, this one is inspected."""
SMALL_LAYER_BYTES = 32 * MIB


class OpenedImage(Value):
    reference: str
    source: SourceKind
    digests: tuple[str, ...]
    """Every `sha256:...` that identifies it: of its manifest, of its config."""
    config: Mapping[str, Any]
    """The image's config, as OCI defines it: architecture, os, config, rootfs, history."""
    layers: tuple[Layer, ...]
    """The bottom first; those that are to be read."""
    unread: tuple[Layer, ...] = ()
    platforms: tuple[str, ...] = ()
    """Of an image for several kinds of processor: all of them."""


def open_image(
    reference: str, *, platform: str | None = None, deep: bool = False, remote: bool = False
) -> OpenedImage:
    """`remote`: in its registry, even when docker has it here. `deep`: with its large layers."""
    if not remote and (is_path(reference) or Path(reference[:4000]).is_file()):
        try:
            return _open_path(Path(reference).expanduser(), platform)
        except OSError as error:
            raise UsageError(
                f"{reference} cannot be read: {error.strerror}", next=f"ls -l {reference}"
            ) from error
    local = None if remote else _open_in_docker(reference)
    return local or _open_in_registry(reference, platform, deep)


# --- folders and archives ---


def _open_path(path: Path, platform: str | None) -> OpenedImage:
    if path.is_dir():
        return _open_layout(str(path), "layout", folder_blobs(path), platform)
    if not path.is_file():
        raise UsageError(f"{path} does not exist", next="firesteel image inspect FOLDER, ARCHIVE or NAME:TAG")
    with path.open("rb") as start:
        if start.read(2) == b"\x1f\x8b":
            raise UsageError(
                f"{path} is compressed as a whole, and an archive is read in the order of its layers",
                next=f"gunzip --keep {path}",
            )
    blobs = archive_blobs(path)
    if blobs.size("index.json") is not None:
        return _open_layout(str(path), "archive", blobs, platform)
    if blobs.size("manifest.json") is None:
        raise UsageError(
            f"{path} is not an image: it has neither index.json nor manifest.json",
            next="docker save NAME:TAG --output image.tar",
        )
    return _open_docker_archive(str(path), blobs)


def _open_layout(reference: str, source: SourceKind, blobs: Blobs, platform: str | None) -> OpenedImage:
    if blobs.size("index.json") is None:
        raise UsageError(
            f"{reference} is not an OCI layout: it has no index.json", next="skopeo copy ... oci:FOLDER"
        )
    index = _json(reference, _read(reference, blobs, "index.json"))
    digests: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    while "manifests" in index and len(digests) < 4:  # an index may hold another
        chosen, found = _choose(reference, index, platform)
        platforms = platforms or found
        digests = (_digest(reference, chosen), *digests)
        index = _json(reference, _checked(reference, blobs, digests[0]))
    return _from_manifest(
        OpenedImage(reference, source, digests, {}, (), platforms=platforms),
        index,
        lambda digest: _checked(reference, blobs, digest),
        lambda digest: blobs.open(_blob(digest)),
        is_wanted=lambda size: True,
    )


def _open_docker_archive(reference: str, blobs: Blobs) -> OpenedImage:
    """What `docker save` wrote before it wrote OCI layouts: one manifest for each image."""
    manifests = _json_value(reference, _read(reference, blobs, "manifest.json"))
    if (
        not isinstance(manifests, list)
        or not all(isinstance(entry, dict) for entry in manifests)
        or not manifests
    ):
        raise DamagedImage(f"{reference}: manifest.json lists no image", next="docker save it again")
    if len(manifests) > 1:
        tags = ", ".join(str(tag) for entry in manifests for tag in entry.get("RepoTags") or ())
        raise UsageError(f"{reference} holds several images: {tags[:200]}", next="docker save one of them")
    data = _read(reference, blobs, str(manifests[0].get("Config")))
    config = _json(reference, data)
    names = [str(name) for name in manifests[0].get("Layers") or ()]
    layers = tuple(
        Layer(name, blobs.size(name), diff_id, _opener(blobs.open, name))
        for name, diff_id in zip(names, _diff_ids(reference, config, len(names)), strict=True)
    )
    return OpenedImage(reference, "archive", (f"sha256:{hashlib.sha256(data).hexdigest()}",), config, layers)


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _read(reference: str, blobs: Blobs, name: str) -> bytes:
    size = blobs.size(name)
    if size is None or size > MAX_DOCUMENT_BYTES:
        what = "is not there" if size is None else f"has {size:,} bytes"
        raise DamagedImage(f"{reference}: {name[:100]} {what}", next="save or copy the image again")
    with blobs.open(name) as file:
        return file.read(MAX_DOCUMENT_BYTES)


def _checked(reference: str, blobs: Blobs, digest: str) -> bytes:
    data = _read(reference, blobs, _blob(digest))
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise DamagedImage(f"{reference}: {digest[:19]}... is damaged", next="save or copy the image again")
    return data


def _json_value(reference: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedImage(
            f"{reference}: its manifest is not JSON: {error}", next="save or copy it again"
        ) from error


def _json(reference: str, data: bytes) -> dict[str, Any]:
    value = _json_value(reference, data)
    if not isinstance(value, dict):
        raise DamagedImage(f"{reference}: its manifest is not an object", next="save or copy it again")
    return value


# --- manifests ---


def _choose(reference: str, index: Mapping[str, Any], platform: str | None) -> tuple[Any, tuple[str, ...]]:
    """The manifest for the platform, and all platforms. Attestations have the platform `unknown`."""
    entries = [entry for entry in index["manifests"] or () if isinstance(entry, dict)]
    by_platform = {_platform(entry): entry for entry in reversed(entries)}
    platforms = tuple(sorted(name for name in by_platform if name and "unknown" not in name))
    if platform is not None and platform not in by_platform and platforms:
        raise UsageError(
            f"{reference} is for {', '.join(platforms)}, not for {platform}",
            next=f"--platform {platforms[0]}",
        )
    wanted = platform or DEFAULT_PLATFORM
    named = [entry for entry in entries if "unknown" not in _platform(entry)]
    if not named:
        raise DamagedImage(f"{reference} lists no image", next="save or copy it again")
    return by_platform.get(wanted, named[0]), platforms


def _platform(entry: Mapping[str, Any]) -> str:
    platform = entry.get("platform")
    return f"{platform.get('os')}/{platform.get('architecture')}" if isinstance(platform, dict) else ""


def _digest(reference: str, descriptor: Any) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or not digest.startswith("sha256:") or not digest[7:].isalnum():
        raise DamagedImage(
            f"{reference}: its manifest has no digest where one belongs", next="save or copy it again"
        )
    return digest


def _from_manifest(
    image: OpenedImage,
    manifest: Mapping[str, Any],
    read: Callable[[str], bytes],
    open_blob: Callable[[str], AbstractContextManager[IO[bytes]]],
    is_wanted: Callable[[int], bool],
) -> OpenedImage:
    config_digest = _digest(image.reference, manifest.get("config"))
    config = _json(image.reference, read(config_digest))
    descriptors = manifest.get("layers") or []
    if not isinstance(descriptors, list):
        raise DamagedImage(f"{image.reference}: its manifest lists no layers", next="save or copy it again")
    layers = []
    for descriptor, diff_id in zip(
        descriptors, _diff_ids(image.reference, config, len(descriptors)), strict=True
    ):
        digest, size = _digest(image.reference, descriptor), descriptor.get("size")
        opener = _opener(open_blob, digest)
        layers.append(Layer(digest, size if isinstance(size, int) else None, diff_id, opener))
    wanted = tuple(layer for layer in layers if is_wanted(layer.stored_bytes or 0))
    return OpenedImage(
        image.reference,
        image.source,
        (*image.digests, config_digest),
        config,
        wanted,
        tuple(layer for layer in layers if layer not in wanted),
        image.platforms,
    )


def _opener(
    open_blob: Callable[[str], AbstractContextManager[IO[bytes]]], name: str
) -> Callable[[], AbstractContextManager[IO[bytes]]]:
    return lambda: open_blob(name)


def _diff_ids(reference: str, config: Mapping[str, Any], count: int) -> list[str]:
    rootfs = config.get("rootfs")
    found = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(found, list) or len(found) != count:
        raise DamagedImage(
            f"{reference}: its manifest has {count} layers, and its config other ones",
            next="save or copy the image again",
        )
    return [str(digest) for digest in found]


# --- docker ---


def _open_in_docker(reference: str) -> OpenedImage | None:
    """None without docker, or if it has neither an image nor a container of that name."""
    try:
        runtime = find_container_runtime()
    except HostNotReady:
        return None
    try:
        image = inspect(runtime, reference)
    except HostNotReady:
        return _open_container(runtime, reference)
    code, output = runtime.run("image", "inspect", image.id)
    if code:
        raise FiresteelError(f"{reference} is gone", next=f"{runtime.program} images")
    layer = Layer(reference, None, None, lambda: _exported_image(runtime, image))
    return OpenedImage(reference, "local image", image.digests, _docker_config(reference, output), (layer,))


@contextmanager
def _exported_image(runtime: ContainerRuntime, image: InspectedContainerImage) -> Iterator[IO[bytes]]:
    with created_container(runtime, image) as name, runtime.stream("export", name) as stream:
        yield stream


def _open_container(runtime: ContainerRuntime, name: str) -> OpenedImage | None:
    code, output = runtime.run("container", "inspect", name)
    if code:
        return None
    config = _docker_config(name, output)
    digest = str(config.get("image") or "")
    _, output = runtime.run("image", "inspect", digest)
    config["architecture"] = _docker_config(name, output if output.startswith("[") else "[]")["architecture"]
    layer = Layer(name, None, None, lambda: runtime.stream("export", name))
    return OpenedImage(name, "container", (digest,) if digest.startswith("sha256:") else (), config, (layer,))


def _docker_config(reference: str, output: str) -> dict[str, Any]:
    """What `docker inspect` prints, in the shape of an OCI config."""
    value = _json_value(reference, output.encode())
    document = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}
    return {
        "architecture": document.get("Architecture"),
        "os": document.get("Os") or document.get("Platform"),
        "created": document.get("Created"),
        "config": document.get("Config"),
        "image": document.get("Image"),
    }


# --- a registry ---


def _open_in_registry(reference: str, platform: str | None, deep: bool) -> OpenedImage:
    address = parse_reference(reference)
    registry = Registry(address)
    data, digest = registry.manifest(address.version)
    manifest = _json(reference, data)
    digests: tuple[str, ...] = (digest,)
    platforms: tuple[str, ...] = ()
    if "manifests" in manifest:
        chosen, platforms = _choose(reference, manifest, platform)
        data, inner = registry.manifest(_digest(reference, chosen))
        manifest, digests = _json(reference, data), (inner, digest)

    def config(digest: str) -> bytes:
        data = registry.document(digest)
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            raise DamagedImage(f"{reference}: the registry sent another config", next="try again")
        return data

    opened = OpenedImage(reference, "registry", digests, {}, (), platforms=platforms)
    return _from_manifest(
        opened, manifest, config, registry.blob, is_wanted=lambda size: deep or size <= SMALL_LAYER_BYTES
    )
