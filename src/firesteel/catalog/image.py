"""Images: what a container tag (or an engine package) holds, before anything is pulled.

Four lists in `images.yaml`. `images` are the ones recipes name. `tags` read a docker reference that
somebody typed: a repository, a pattern for the tag, and what is known of every image so tagged. The
pattern's group `version` is the engine version; a group `key` looks it up in `versions_by_key`.
`digests` say the same of one image for good, whatever its tag does. `others` are images that people put
where an engine is expected and that hold none we read.

Four things go wrong most. Some images start the engine themselves and some do not (`entrypoint`), so
`vllm serve` is either needed or said twice. Some take environment variables instead of flags
(`configured_by`). Some have no code for this GPU (`sm`). And some tags move (`floating`), so that their
version is not known: None, never a guess. What the user's firesteel read out of an image on this very
machine (`Seen`, from `firesteel learn --image`) goes before all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, model_validator

from firesteel import yaml_schema
from firesteel.catalog.docker_options import plain_reference
from firesteel.catalog.errors import mistake
from firesteel.engines.schema.history import EngineHistory, schema_at
from firesteel.engines.schema.symbols import Schema
from firesteel.facts.evidence import Evidence, Sources
from firesteel.launch import EngineName

Words = tuple[str, ...]
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_UPSTREAM = ("vllm/vllm-openai:", "lmsysorg/sglang:", "ghcr.io/ggml-org/llama.cpp:")
_DIGEST_DECIDES = "the digest decides what runs; this is what the tag says"


@dataclass(frozen=True, slots=True)
class Image:
    engine: EngineName
    version: str | None
    """Engine version; for llama.cpp the build number. None: not known."""
    name: str | None = None
    """What recipes call it; None when only its tag was recognised."""
    reference: str | None = None
    """As `docker run` takes it, a digest included where one is pinned."""
    package: str | None = None
    """A PyPI requirement instead of a container: an engine that runs as a child process."""
    entrypoint: Words | None = ()
    """The words that the image itself starts; empty: it runs the words that it is given; None: not known."""
    configured_by: Literal["argv", "env"] = "argv"
    """Where it takes its settings from: the engine's flags, or environment variables of its own."""
    arch: Words | None = None
    """Architectures that it is known to be built for."""
    cuda: str | None = None
    sm: Words | None = None
    """Compute capabilities of the 12.x family that it has code for. None: not known."""
    ipc: str | None = None
    gpu: bool = True
    """Built for a GPU."""
    floating: bool = False
    """The tag moves: what it holds depends on the day it was pulled."""
    sources: tuple[Evidence, ...] = ()
    note: str | None = None
    schema: Schema | None = field(default=None, repr=False, compare=False)
    """What its own sources say it understands, when it was read on this machine."""


@dataclass(frozen=True, slots=True)
class OtherImage:
    """An image that is no engine firesteel reads, and what it is instead."""

    repository: str
    """With `*` at its end: everything under it."""
    what: str
    sources: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class InspectedImage:
    """What was read out of an image that lies on this machine."""

    reference: str
    digests: Words
    """Every `sha256:...` by which it can be asked for."""
    engine: EngineName
    version: str
    entrypoint: Words | None
    arch: Words
    on: str
    """The day, 2026-11-15: a tag may have moved since."""
    schema: Schema


@dataclass(frozen=True, slots=True)
class TagRow:
    """What is known of every image of a repository whose tag matches."""

    repository: str
    tag: re.Pattern[str]
    versions: SpecifierSet
    versions_by_key: Mapping[str, str]
    image: Image


@dataclass(frozen=True, slots=True)
class Images:
    named: Mapping[str, Image] = field(default_factory=dict)
    tags: tuple[TagRow, ...] = ()
    digests: Mapping[str, Image] = field(default_factory=dict)
    """By `sha256:...` alone: the same digest is the same image in every registry."""
    others: tuple[OtherImage, ...] = ()
    seen: Mapping[str, Image] = field(default_factory=dict)
    """By reference, what was read on this machine."""
    releases: Mapping[tuple[EngineName, str], Schema] = field(default_factory=dict)
    """By engine and version, the releases that the user's firesteel learned after it shipped."""


def _compiles(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _specifies(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError("should be a version range like >=0.20,<0.24 (llama.cpp: >=8955)") from None
    return text


def _is_digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise ValueError("should be sha256: and 64 hexadecimal digits")
    return text


VersionRange = Annotated[str, AfterValidator(_specifies)]
"""Text in a sheet that says which versions of an engine are meant."""


class ContentsSchema(yaml_schema.FileSchema):
    """What is inside an image."""

    version: str | None = None
    entrypoint: Words | None = ()
    configured_by: Literal["argv", "env"] = "argv"
    arch: Words | None = None
    cuda: str | None = None
    sm: Words | None = None
    ipc: str | None = None
    gpu: bool = True
    floating: bool = False
    note: str | None = None

    def contents(self) -> dict[str, Any]:
        """What the file says, and nothing that it leaves out."""
        return self.model_dump(include=set(ContentsSchema.model_fields), exclude_unset=True)


class NamedSchema(ContentsSchema):
    reference: str | None = None
    digest: str | None = None
    package: str | None = None
    engine: EngineName | None = None
    sources: tuple[Evidence, ...] = ()

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if (self.reference is None) == (self.package is None):
            raise ValueError("needs a container `reference` or a PyPI `package`, and not both")
        return self


class TagSchema(ContentsSchema):
    repository: str
    tag: Annotated[str, AfterValidator(_compiles)]
    versions: VersionRange = ""
    """The row holds only for these versions."""
    versions_by_key: dict[str, str] = {}
    engine: EngineName
    sources: Sources


class DigestSchema(ContentsSchema):
    reference: str
    """The tag that it had; what a row knows of the tag needs not be said again."""
    digest: Annotated[str, AfterValidator(_is_digest)]
    engine: EngineName | None = None
    sources: Sources


class OtherSchema(yaml_schema.FileSchema):
    repository: str
    what: str
    sources: Sources


class ImagesSchema(yaml_schema.FileSchema):
    images: dict[str, NamedSchema] = {}
    tags: tuple[TagSchema, ...] = ()
    digests: tuple[DigestSchema, ...] = ()
    others: tuple[OtherSchema, ...] = ()


def read_images(path: str, text: str, under: Images) -> Images:
    """The text of an `images.yaml` laid over `under`, or BadSheet with the lines of its mistakes.

    An image whose reference a tag row knows needs nothing else said; what is said wins.
    """
    sheet = yaml_schema.load(path, text, ImagesSchema)
    tags = (*(_tag_row(row) for row in sheet.tags), *under.tags)
    named, digests = dict(under.named), dict(under.digests)
    for name, each in sheet.images.items():
        base = _base(each.reference, each.engine, tags)
        if base is None:
            what = f"`images.{name}`: needs its `engine`: no tag row knows `{each.reference or each.package}`"
            raise mistake(path, text, ("images", name), what)
        if name in named and named[name].engine != base.engine:
            what = f"`images.{name}` is {named[name].engine} in the recipes that use it, not {base.engine}"
            raise mistake(path, text, ("images", name), what)
        named[name] = _named(name, each, base)
    for place, row in enumerate(sheet.digests):
        base = _base(row.reference, row.engine, tags)
        if base is None:
            what = f"`digests.{place}`: needs its `engine`: no tag row knows `{row.reference}`"
            raise mistake(path, text, ("digests", place), what)
        digests[row.digest] = _pinned(row, base)
    others = (*(OtherImage(row.repository, row.what, row.sources) for row in sheet.others), *under.others)
    return replace(under, named=named, tags=tags, digests=digests, others=others)


def _base(reference: str | None, engine: EngineName | None, tags: tuple[TagRow, ...]) -> Image | None:
    """What is known of the image before the file adds its own."""
    known = _by_tag(reference, tags) if reference else None
    if engine is None:
        return known
    return replace(known, engine=engine) if known else Image(engine, None)


def _named(name: str, sheet: NamedSchema, base: Image) -> Image:
    reference = f"{sheet.reference}@{sheet.digest}" if sheet.digest else sheet.reference
    sources = (*sheet.sources, *base.sources)
    told = replace(base, name=name, reference=reference, package=sheet.package, sources=sources)
    return replace(told, **sheet.contents())


def _pinned(sheet: DigestSchema, base: Image) -> Image:
    """An image by its digest holds one thing for ever, also when its tag moves."""
    sources = (*sheet.sources, *base.sources)
    told = replace(base, reference=f"{sheet.reference}@{sheet.digest}", floating=False, sources=sources)
    return replace(told, **sheet.contents())


def _tag_row(sheet: TagSchema) -> TagRow:
    image = replace(Image(sheet.engine, None, sources=sheet.sources), **sheet.contents())
    specifiers = SpecifierSet(sheet.versions)
    return TagRow(sheet.repository, re.compile(sheet.tag), specifiers, sheet.versions_by_key, image)


def with_learned(
    images: Images, seen: Iterable[InspectedImage], books: Iterable[EngineHistory] = ()
) -> Images:
    """`images` with what the user's firesteel learned: images that it opened, which go before all else, and
    releases."""
    by_reference, digests = dict(images.seen), dict(images.digests)
    for each in seen:
        image = _seen_image(each, images)
        by_reference[_tagged(each.reference)] = image
        digests |= {digest: replace(image, floating=False) for digest in each.digests}
    releases = {
        (book.engine, version): schema_at(book, version) for book in books for version in book.versions
    }
    return replace(images, seen=by_reference, digests=digests, releases={**images.releases, **releases})


def _seen_image(seen: InspectedImage, images: Images) -> Image:
    """The machine's own reading over what the registry knows; a tag that moves may have moved since."""
    base = identify(seen.reference, images) or Image(seen.engine, None)
    moved = "; its tag moves, so learn it again after a pull" if base.floating else ""
    note = f"read here on {seen.on}{moved}" + (f"; {base.note}" if base.note else "")
    return replace(
        base,
        engine=seen.engine,
        version=seen.version,
        reference=seen.reference,
        entrypoint=base.entrypoint if seen.entrypoint is None else seen.entrypoint,
        arch=seen.arch,
        note=note,
        schema=seen.schema,
    )


def identify(reference: str, images: Images) -> Image | None:
    """What is known of the image that a docker reference names; None when nothing is.

    A digest that is known decides; then what was read on this machine, then a named image, then the tag
    rows, the earlier before the later. Of a digest that is not known the tag is all there is to go by.
    """
    bare = plain_reference(reference)
    digest = bare.partition("@")[2]
    if digest in images.digests:
        return replace(images.digests[digest], reference=reference)
    if not digest and _tagged(bare) in images.seen:
        return replace(images.seen[_tagged(bare)], reference=reference)
    for image in images.named.values():
        if image.reference is not None and bare in (image.reference, image.reference.partition("@")[0]):
            return image
    found = _by_tag(reference, images.tags)
    if found is None or not digest:
        return found
    return replace(found, note=f"{_DIGEST_DECIDES}; {found.note}" if found.note else _DIGEST_DECIDES)


def is_upstream(reference: str) -> bool:
    """Made by the engine's own makers: a fork may have flags of its own."""
    return plain_reference(reference).startswith(_UPSTREAM)


def other_image(reference: str, images: Images) -> OtherImage | None:
    """What an image is that holds no engine firesteel reads; None when it is not known to be such."""
    repository, _ = split_reference(plain_reference(reference))
    for row in images.others:
        start = row.repository.removesuffix("*")
        if repository == start or (start != row.repository and repository.startswith(start)):
            return row
    return None


def _by_tag(reference: str, tags: Iterable[TagRow]) -> Image | None:
    repository, tag = split_reference(plain_reference(reference))
    for row in tags:
        match = row.tag.fullmatch(tag) if row.repository == repository else None
        if match is None:
            continue
        version = _version(row, match)
        if not row.versions or (version is not None and row.versions.contains(version, prereleases=True)):
            floating = row.image.floating and "@" not in reference
            return replace(row.image, reference=reference, version=version, floating=floating)
    return None


def split_reference(reference: str) -> tuple[str, str]:
    """`host:5000/name:tag@sha256:...` -> (`host:5000/name`, `tag`).

    Without a tag docker takes `latest`; a digest alone has none, and says nothing of what it holds.
    """
    named, digest, _ = reference.partition("@")
    head, slash, last = named.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{head}{slash}{name}", tag or ("" if digest else "latest")


def _tagged(reference: str) -> str:
    """With the tag that docker would take when none is said."""
    return ":".join(split_reference(plain_reference(reference)))


def _version(row: TagRow, match: re.Match[str]) -> str | None:
    groups = match.groupdict()
    if groups.get("version"):
        return groups["version"]
    if groups.get("key"):
        return row.versions_by_key.get(groups["key"], row.image.version)
    return row.image.version
