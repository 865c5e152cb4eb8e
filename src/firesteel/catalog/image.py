"""Images: what a container tag (or an engine package) contains, before anything is pulled.

Four things go wrong most. Some images start the engine themselves and some do not (`entrypoint`), so `vllm
serve` is either missing or repeated. Some are configured by environment variables instead of flags
(`configured_by`). Some have no code for this GPU (`sm`). And some tags move (`floating`), so that their
version is not known: None, never a guess. What firesteel itself read from an image on this machine takes
precedence: the flags of its engine (`ImageFlags`, from `engine learn --image`), and the GPUs, packages
and known traps (`ImageInspection`, from `image inspect`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from packaging.version import InvalidVersion, Version

from firesteel.engines.schema.history import EngineHistory, schema_at
from firesteel.engines.schema.symbols import Schema
from firesteel.facts.evidence import Evidence, Sources
from firesteel.launch import EngineName, plain_reference
from firesteel.units import check_range, is_in_range
from firesteel.values import ExpandText, FileValue, Regex, Value, YamlFile, replace

Strings = tuple[str, ...]
_UPSTREAM = ("vllm/vllm-openai:", "lmsysorg/sglang:", "ghcr.io/ggml-org/llama.cpp:")
"""How references of images from the engines' own projects begin."""
_RELEASE_TAG = re.compile(
    r"\d+\.\d|\bb\d{4}"
    r"|(?<![a-z])(?:latest|nightly|dev|main|stable|server|full|light|spark|blackwell)(?![a-z])"
)
"""`qwen38-27b` is none: such a tag is built from a branch, for one model and before a release has it."""
_DIGEST_NOTE = "the digest decides what runs; this describes the tag"


class ImageProblem(FileValue):
    """Something that `firesteel image inspect` found in an image, and what it does on a GB10."""

    check: str
    level: Literal["stop", "warn", "note"]
    says: str
    evidence: str
    """What was read, and where."""
    instead: str
    source: str


class Image(Value):
    """What is known about an image; None: not known."""

    engine: EngineName
    version: str | None
    """Engine version; for llama.cpp the build number. None: not known."""
    name: str | None = None
    """Its name in recipes; None when only its tag was recognized."""
    reference: str | None = None
    """As `docker run` takes it, with the digest where one is pinned."""
    package: str | None = None
    """A PyPI requirement instead of a container: an engine that runs as a child process."""
    entrypoint: Strings | None = ()
    """The command that the image itself starts; empty: it runs the command it is given; None: not known."""
    configured_by: Literal["argv", "env"] = "argv"
    """How it is configured: by the flags of the engine, or by its own environment variables."""
    arch: Strings | None = None
    """CPU architectures that it is known to be built for."""
    cuda: str | None = None
    sm: Strings | None = None
    """Compute capabilities of the 12.x family that it has code for. None: not known."""
    ipc: str | None = None
    health_port: int | None = None
    """The port that its own health check asks, whatever port the engine is given; None: it has no check."""
    gpu: bool = True
    """Built for a GPU."""
    floating: bool = False
    """The tag moves: its content depends on the day it was pulled."""
    sources: tuple[Evidence, ...] = ()
    note: str | None = None
    schema: Schema | None = None
    """The flags and variables in its own sources, when it was inspected on this machine."""
    problems: tuple[ImageProblem, ...] = ()
    """What `firesteel image inspect` found; see `ImageInspection`."""


class OtherImage(Value):
    """An image without an engine that firesteel knows, and what it is instead."""

    repository: str
    """With `*` at the end: everything below it."""
    what: str
    sources: Sources


class TagRow(Value):
    """What is known about every image of a repository whose tag matches."""

    repository: str
    tag: str
    """A regular expression."""
    versions: str
    versions_by_key: Mapping[str, str]
    image: Image


class Images(Value):
    """Every image that the catalog knows, by what identifies it."""

    named: Mapping[str, Image] = {}
    tags: tuple[TagRow, ...] = ()
    digests: Mapping[str, Image] = {}
    """By `sha256:...` only: the same digest is the same image in every registry."""
    others: tuple[OtherImage, ...] = ()
    inspected: Mapping[str, Image] = {}
    """By reference, the images that were inspected on this machine."""
    releases: Mapping[tuple[EngineName, str], Schema] = {}
    """By engine and version, releases learned on this machine (`firesteel engine learn`)."""


class ImageFlags(Value):
    """What `firesteel engine learn --image` read from an image: the flags of its engine."""

    reference: str
    digests: Strings
    """Every `sha256:...` that identifies it."""
    engine: EngineName
    version: str
    entrypoint: Strings | None
    arch: Strings
    on: str
    """The date, as 2026-11-15: a tag may have moved since."""
    schema: Schema


class ImageInspection(Value):
    """What `firesteel image inspect` read from an image: what is installed in it, and what goes wrong."""

    reference: str
    digests: tuple[str, ...]
    """Every `sha256:...` that identifies it."""
    on: str
    """The date, as 2026-11-15: a tag may have moved since."""
    engine: EngineName | None
    """None: no engine that firesteel knows is inside."""
    version: str | None
    entrypoint: tuple[str, ...] | None
    arch: str | None
    cuda: str | None
    sm: tuple[str, ...] | None
    """As `Image.sm`; None: the engine's libraries were not read."""
    problems: tuple[ImageProblem, ...] = ()


# --- `images.yaml` ---

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def _is_digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise ValueError("should be sha256: and 64 hexadecimal digits")
    return text


VersionRange = Annotated[str, ExpandText(check_range)]
"""The versions of an engine that an entry applies to."""
_UNSET: Any = object()
"""The file says nothing: what is known from elsewhere stays, which an explicit `null` would replace."""


class ContentsSchema(FileValue, kw_only=True):
    """What is inside an image."""

    version: str | None = _UNSET
    entrypoint: Strings | None = _UNSET
    configured_by: Literal["argv", "env"] = _UNSET
    arch: Strings | None = _UNSET
    cuda: str | None = _UNSET
    sm: Strings | None = _UNSET
    ipc: str | None = _UNSET
    health_port: int | None = _UNSET
    gpu: bool = _UNSET
    floating: bool = _UNSET
    note: str | None = _UNSET

    def contents(self) -> dict[str, Any]:
        """Only the fields that the file gives."""
        values = {name: getattr(self, name) for name in ContentsSchema.__struct_fields__}
        return {name: value for name, value in values.items() if value is not _UNSET}


class NamedSchema(ContentsSchema, kw_only=True):
    reference: str | None = None
    digest: str | None = None
    package: str | None = None
    engine: EngineName | None = None
    sources: tuple[Evidence, ...] = ()

    def __post_init__(self) -> None:
        if (self.reference is None) == (self.package is None):
            raise ValueError("needs a container `reference` or a PyPI `package`, and not both")


class TagSchema(ContentsSchema, kw_only=True):
    repository: str
    tag: Regex
    versions: VersionRange = ""
    """The row applies only to these versions."""
    versions_by_key: dict[str, str] = {}
    engine: EngineName
    sources: Sources


class DigestSchema(ContentsSchema, kw_only=True):
    reference: str
    """The tag that it had; what a tag row knows about it needs no repetition."""
    digest: Annotated[str, ExpandText(_is_digest)]
    engine: EngineName | None = None
    sources: Sources


class ImagesSchema(FileValue, kw_only=True):
    """`images.yaml`, in four lists.

    `images` are the ones that recipes name. `tags` identify a docker reference: a repository, a pattern for
    the tag, and what is known about every image with such a tag. The group `version` of the pattern is the
    engine version; a group `key` looks it up in `versions_by_key`. `digests` do the same for single images,
    whatever their tags do later. `others` are images that people use where an engine is expected and that
    contain no engine that firesteel knows.
    """

    images: dict[str, NamedSchema] = {}
    tags: tuple[TagSchema, ...] = ()
    digests: tuple[DigestSchema, ...] = ()
    others: tuple[OtherImage, ...] = ()


def read_images(file: YamlFile, under: Images) -> Images:
    """Parse an `images.yaml` and lay it over `under`. Raise InvalidFile with the lines of its mistakes.

    An entry inherits what a tag row knows about its reference, and overrides it.
    """
    schema = file.convert(ImagesSchema)
    tags = (*(_make_tag_row(row) for row in schema.tags), *under.tags)
    named, digests = dict(under.named), dict(under.digests)
    for name, entry in schema.images.items():
        base = _find_base(entry.reference, entry.engine, tags)
        if base is None:
            reference = entry.reference or entry.package
            what = f"`images.{name}`: needs its `engine`: no tag row knows `{reference}`"
            raise file.mistake(("images", name), what)
        if name in named and named[name].engine != base.engine:
            what = f"`images.{name}` is {named[name].engine} in the recipes that use it, not {base.engine}"
            raise file.mistake(("images", name), what)
        named[name] = _make_named(name, entry, base)
    for index, row in enumerate(schema.digests):
        base = _find_base(row.reference, row.engine, tags)
        if base is None:
            what = f"`digests.{index}`: needs its `engine`: no tag row knows `{row.reference}`"
            raise file.mistake(("digests", index), what)
        digests[row.digest] = _make_pinned(row, base)
    others = (*schema.others, *under.others)
    return replace(under, named=named, tags=tags, digests=digests, others=others)


def _make_tag_row(entry: TagSchema) -> TagRow:
    """A row of the file as a value."""
    image = replace(Image(entry.engine, None, sources=entry.sources), **entry.contents())
    return TagRow(entry.repository, entry.tag, entry.versions, entry.versions_by_key, image)


def _find_base(reference: str | None, engine: EngineName | None, tags: tuple[TagRow, ...]) -> Image | None:
    """What is known about the image before the entry adds to it; None: not even its engine."""
    known = _find_by_tag(reference, tags) if reference else None
    if engine is None:
        return known
    return replace(known, engine=engine) if known else Image(engine, None)


def _make_named(name: str, entry: NamedSchema, base: Image) -> Image:
    """An image that recipes name: what the entry says over what is known about its reference."""
    reference = f"{entry.reference}@{entry.digest}" if entry.digest else entry.reference
    sources = (*entry.sources, *base.sources)
    image = replace(base, name=name, reference=reference, package=entry.package, sources=sources)
    return replace(image, **entry.contents())


def _make_pinned(entry: DigestSchema, base: Image) -> Image:
    """An image of one digest, whose content never changes, even when its tag moves."""
    sources = (*entry.sources, *base.sources)
    image = replace(base, reference=f"{entry.reference}@{entry.digest}", floating=False, sources=sources)
    return replace(image, **entry.contents())


# --- which image a reference means ---


def identify(reference: str, images: Images) -> Image | None:
    """What is known about the image with this docker reference; None when nothing is.

    A known digest decides; then an inspection on this machine, then a named image, then the first matching
    tag row. For an unknown digest only the tag can be used.
    """
    bare = plain_reference(reference)
    digest = bare.partition("@")[2]
    if digest in images.digests:
        return replace(images.digests[digest], reference=reference)
    if not digest and tagged(bare) in images.inspected:
        return replace(images.inspected[tagged(bare)], reference=reference)
    for named in images.named.values():
        if named.reference is not None and bare in (named.reference, named.reference.partition("@")[0]):
            return named
    image = _find_by_tag(reference, images.tags)
    if image is None or not digest:
        return image
    return replace(image, note=f"{_DIGEST_NOTE}; {image.note}" if image.note else _DIGEST_NOTE)


def _find_by_tag(reference: str, tags: Iterable[TagRow]) -> Image | None:
    """What the first row says that matches the tag and applies to its version."""
    repository, tag = split_reference(plain_reference(reference))
    for row in tags:
        match = re.fullmatch(row.tag, tag) if row.repository == repository else None
        if match is None:
            continue
        version = _read_version(row, match)
        if not row.versions or _is_in_range(version, row.versions):
            floating = row.image.floating and "@" not in reference
            return replace(row.image, reference=reference, version=version, floating=floating)
    return None


def _read_version(row: TagRow, match: re.Match[str]) -> str | None:
    """The version in a tag, or the one that its key stands for."""
    groups = match.groupdict()
    if groups.get("version"):
        return groups["version"]
    if groups.get("key"):
        return row.versions_by_key.get(groups["key"], row.image.version)
    return row.image.version


def _is_in_range(version: str | None, text: str) -> bool:
    try:
        return version is not None and is_in_range(Version(version), text)
    except InvalidVersion:
        return False


def other_image(reference: str, images: Images) -> OtherImage | None:
    """What an image without a known engine is; None when it is not known to be one."""
    repository, _ = split_reference(plain_reference(reference))
    for row in images.others:
        start = row.repository.removesuffix("*")
        if repository == start or (start != row.repository and repository.startswith(start)):
            return row
    return None


def is_upstream(reference: str) -> bool:
    """Whether it is published by the engine's own project: a fork may have other flags."""
    return plain_reference(reference).startswith(_UPSTREAM)


def is_preview(reference: str) -> bool:
    """Whether the project published it from a branch: neither a release nor its newest state."""
    tag = split_reference(plain_reference(reference))[1]
    return is_upstream(reference) and tag != "" and _RELEASE_TAG.search(tag) is None


def tagged(reference: str) -> str:
    """The reference with the default tag if it has none."""
    return ":".join(split_reference(plain_reference(reference)))


def split_reference(reference: str) -> tuple[str, str]:
    """`host:5000/name:tag@sha256:...` -> (`host:5000/name`, `tag`).

    Without a tag docker uses `latest`; a bare digest has no tag, and its content is not known.
    """
    named, digest, _ = reference.partition("@")
    head, slash, last = named.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{head}{slash}{name}", tag or ("" if digest else "latest")


# --- what was read on this machine ---


def with_learned(
    images: Images, learned: Iterable[ImageFlags], histories: Iterable[EngineHistory] = ()
) -> Images:
    """Add what was learned on this machine: inspected images, which take precedence, and releases."""
    by_reference, digests = dict(images.inspected), dict(images.digests)
    for found in learned:
        image = _apply_learned(found, images)
        by_reference[tagged(found.reference)] = image
        digests |= {digest: replace(image, floating=False) for digest in found.digests}
    releases = {
        (history.engine, version): schema_at(history, version)
        for history in histories
        for version in history.versions
    }
    return replace(images, inspected=by_reference, digests=digests, releases={**images.releases, **releases})


def _apply_learned(learned: ImageFlags, images: Images) -> Image:
    """What the catalog knows about the image, with what was learned in place of it."""
    base = identify(learned.reference, images) or Image(learned.engine, None)
    advice = "; its tag moves, so learn it again after a pull" if base.floating else ""
    note = f"inspected here on {learned.on}{advice}" + (f"; {base.note}" if base.note else "")
    return replace(
        base,
        engine=learned.engine,
        version=learned.version,
        reference=learned.reference,
        entrypoint=base.entrypoint if learned.entrypoint is None else learned.entrypoint,
        arch=learned.arch,
        note=note,
        schema=learned.schema,
    )


def with_inspections(images: Images, inspections: Iterable[ImageInspection]) -> Images:
    """Add inspections of this machine, the oldest first. An image is found by digest; by its name until that
    is inspected again."""
    for inspection in inspections:
        image = _apply_inspection(inspection, images)
        if image is None:
            continue
        reference = tagged(inspection.reference)
        pinned = {digest: replace(image, floating=False) for digest in inspection.digests}
        named = {
            name: replace(image, name=name, reference=known.reference)
            for name, known in images.named.items()
            if known.reference
            and (known.reference == reference or known.reference.partition("@")[2] in pinned)
        }
        images = replace(
            images,
            named={**images.named, **named} if named else images.named,
            inspected={**images.inspected, reference: image},
            digests={**images.digests, **pinned},
        )
    return images


def _apply_inspection(inspection: ImageInspection, images: Images) -> Image | None:
    """What the catalog knows about the image, with what was inspected in place of it."""
    digest = next((digest for digest in inspection.digests if digest in images.digests), None)
    base = images.digests[digest] if digest else identify(inspection.reference, images)
    engine = inspection.engine or (base.engine if base else None)
    if engine is None:
        return None
    base = base or Image(engine, None)
    return replace(
        base,
        engine=engine,
        version=inspection.version or base.version,
        reference=inspection.reference,
        entrypoint=base.entrypoint if inspection.entrypoint is None else inspection.entrypoint,
        arch=(inspection.arch,) if inspection.arch else base.arch,
        cuda=inspection.cuda or base.cuda,
        sm=base.sm if inspection.sm is None else inspection.sm,
        note=f"its files were inspected here on {inspection.on}" + (f"; {base.note}" if base.note else ""),
        problems=inspection.problems,
    )
