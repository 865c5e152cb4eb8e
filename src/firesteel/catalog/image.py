"""Images: what a container tag (or an engine package) holds, before anything is pulled.

Two lists in `images.yaml`. `images` are the ones recipes name. `tags` read a docker reference that
somebody typed: a repository, a pattern for the tag, and what is known of every image so tagged. The
pattern's group `version` is the engine version; a group `key` looks it up in `versions_by_key`.

Three things go wrong most. Some images start the engine themselves and some do not (`entrypoint`), so
`vllm serve` is either needed or said twice. Some have no code for this GPU (`sm`). And some tags move
(`floating`), so that their version is not known: None, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, model_validator

from firesteel import sheets
from firesteel.catalog.docker_words import plain_reference
from firesteel.catalog.mistake import mistake
from firesteel.facts.evidence import Source, Sources
from firesteel.launch import EngineName

Words = tuple[str, ...]


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
    entrypoint: Words = ()
    """The words that the image itself starts; empty: it runs the words that it is given."""
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
    sources: tuple[Source, ...] = ()
    note: str | None = None


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


VersionRange = Annotated[str, AfterValidator(_specifies)]
"""Text in a sheet that says which versions of an engine are meant."""


class ContentsSheet(sheets.Sheet):
    """What is inside an image."""

    version: str | None = None
    entrypoint: Words = ()
    arch: Words | None = None
    cuda: str | None = None
    sm: Words | None = None
    ipc: str | None = None
    gpu: bool = True
    floating: bool = False
    note: str | None = None

    def contents(self) -> dict[str, Any]:
        """What the file says, and nothing that it leaves out."""
        return self.model_dump(include=set(ContentsSheet.model_fields), exclude_unset=True)


class NamedSheet(ContentsSheet):
    reference: str | None = None
    digest: str | None = None
    package: str | None = None
    engine: EngineName | None = None
    sources: tuple[Source, ...] = ()

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if (self.reference is None) == (self.package is None):
            raise ValueError("needs a container `reference` or a PyPI `package`, and not both")
        return self


class TagSheet(ContentsSheet):
    repository: str
    tag: Annotated[str, AfterValidator(_compiles)]
    versions: VersionRange = ""
    """The row holds only for these versions."""
    versions_by_key: dict[str, str] = {}
    engine: EngineName
    sources: Sources


class ImagesSheet(sheets.Sheet):
    images: dict[str, NamedSheet] = {}
    tags: tuple[TagSheet, ...] = ()


def read_images(path: str, text: str, under: Images) -> Images:
    """The text of an `images.yaml` laid over `under`, or BadSheet with the lines of its mistakes.

    An image whose reference a tag row knows needs nothing else said; what is said wins.
    """
    sheet = sheets.load(path, text, ImagesSheet)
    tags = (*(_tag_row(row) for row in sheet.tags), *under.tags)
    named = dict(under.named)
    for name, each in sheet.images.items():
        base = _base(each, tags)
        if base is None:
            what = f"`images.{name}`: needs its `engine`: no tag row knows `{each.reference or each.package}`"
            raise mistake(path, text, ("images", name), what)
        if name in named and named[name].engine != base.engine:
            what = f"`images.{name}` is {named[name].engine} in the recipes that use it, not {base.engine}"
            raise mistake(path, text, ("images", name), what)
        named[name] = _named(name, each, base)
    return Images(named, tags)


def _base(sheet: NamedSheet, tags: tuple[TagRow, ...]) -> Image | None:
    """What is known of the image before the file adds its own."""
    known = _by_tag(sheet.reference, tags) if sheet.reference else None
    if sheet.engine is None:
        return known
    return replace(known, engine=sheet.engine) if known else Image(sheet.engine, None)


def _named(name: str, sheet: NamedSheet, base: Image) -> Image:
    reference = f"{sheet.reference}@{sheet.digest}" if sheet.digest else sheet.reference
    sources = (*sheet.sources, *base.sources)
    told = replace(base, name=name, reference=reference, package=sheet.package, sources=sources)
    return replace(told, **sheet.contents())


def _tag_row(sheet: TagSheet) -> TagRow:
    image = replace(Image(sheet.engine, None, sources=sheet.sources), **sheet.contents())
    specifiers = SpecifierSet(sheet.versions)
    return TagRow(sheet.repository, re.compile(sheet.tag), specifiers, sheet.versions_by_key, image)


def identify(reference: str, images: Images) -> Image | None:
    """What is known of the image that a docker reference names; None when nothing is.

    A named image wins over a tag row, an earlier row over a later one.
    """
    bare = plain_reference(reference)
    for image in images.named.values():
        if image.reference is not None and bare in (image.reference, image.reference.partition("@")[0]):
            return image
    return _by_tag(reference, images.tags)


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


def _version(row: TagRow, match: re.Match[str]) -> str | None:
    groups = match.groupdict()
    if groups.get("version"):
        return groups["version"]
    if groups.get("key"):
        return row.versions_by_key.get(groups["key"], row.image.version)
    return row.image.version
