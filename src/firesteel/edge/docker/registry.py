"""Reads images in a registry (OCI distribution, v2): manifests, configs and layers. Never writes to one.

    registry = Registry(parse_reference("vllm/vllm-openai:v0.28.0"))
    registry.manifest("v0.28.0")        bytes, with their digest
    registry.blob("sha256:...")         a stream

Anonymous, with the token that public registries give to everyone; with an account use `docker pull`. A
registry on this machine is reached over http, any other over https. A blob may be redirected to a store on
another host, which never gets the token.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import IO
from urllib.parse import quote, urlencode, urlsplit

from firesteel.edge.http.sync_client import bearer, open_stream
from firesteel.errors import FiresteelError, UsageError
from firesteel.units import MIB
from firesteel.values import Value

_MAX_DOCUMENT_BYTES = 4 * MIB
"""What registries themselves accept as a manifest."""
_TAGS_PER_PAGE, _MAX_TAG_PAGES = 1000, 50
_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_REFERENCE = re.compile(
    r"(?:(?P<host>localhost(?::\d+)?|[^/@]+[.:][^/@]*)/)?"
    r"(?P<repository>[a-z0-9][a-z0-9._/-]{0,250})"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class RegistryReference(Value):
    host: str
    repository: str
    version: str
    """A digest, or else a tag."""

    @property
    def url(self) -> str:
        name = urlsplit(f"//{self.host}").hostname
        scheme = "http" if name in ("localhost", "127.0.0.1", "::1") else "https"
        return f"{scheme}://{self.host}/v2/{quote(self.repository)}"


def parse_reference(text: str) -> RegistryReference:
    """As docker reads it: without a host Docker Hub, without a tag `latest`."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"`{text[:100]}` is not the name of an image",
            next="firesteel image inspect NAME:TAG, a folder, an archive or a container",
        )
    host, repository = match["host"] or "docker.io", match["repository"]
    if host in ("docker.io", "index.docker.io"):
        host = "registry-1.docker.io"
        repository = repository if "/" in repository else f"library/{repository}"
    return RegistryReference(host, repository, match["digest"] or match["tag"] or "latest")


class Registry:
    def __init__(self, reference: RegistryReference) -> None:
        self._reference = reference
        self._token: str | None = None

    def manifest(self, version: str) -> tuple[bytes, str]:
        """A manifest or index by tag or digest, and its digest; raises when they differ."""
        data = self._document(f"manifests/{version}")
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if version.startswith("sha256:") and version != digest:
            raise FiresteelError(
                f"{self._reference.host} sent a manifest other than {version[:19]}...", next="try again"
            )
        return data, digest

    def tags(self) -> list[str]:
        """All tags of the repository, page by page as registries hand them out."""
        found: dict[str, None] = {}
        last = ""
        for _ in range(_MAX_TAG_PAGES):
            query = urlencode({"n": _TAGS_PER_PAGE, **({"last": last} if last else {})})
            try:
                document = json.loads(self._document(f"tags/list?{query}"))
                page = [tag for tag in document["tags"] or () if isinstance(tag, str) and tag not in found]
            except (ValueError, KeyError, TypeError):
                raise FiresteelError(
                    f"{self._reference.host} sent no list of tags", next="try again later"
                ) from None
            if not page:
                break
            found.update(dict.fromkeys(page))
            last = page[-1]
        return [*found]

    def document(self, digest: str) -> bytes:
        """A small blob: the config."""
        return self._document(f"blobs/{digest}")

    def _document(self, path: str) -> bytes:
        with self._stream(path) as stream:
            data = stream.read(_MAX_DOCUMENT_BYTES + 1)
        if len(data) > _MAX_DOCUMENT_BYTES:
            raise FiresteelError(
                f"{self._reference.host} sent more than a manifest", next="firesteel image inspect"
            )
        return data

    def blob(self, digest: str) -> AbstractContextManager[IO[bytes]]:
        return self._stream(f"blobs/{digest}")

    @contextmanager
    def _stream(self, path: str) -> Iterator[IO[bytes]]:
        where = f"{self._reference.host}/{self._reference.repository}"
        try:
            with self._open(path) as stream:
                yield stream
        except urllib.error.HTTPError as error:
            error.close()
            raise self._refused(error.code, where) from error
        except (OSError, http.client.HTTPException) as error:
            raise FiresteelError(
                f"{where} cannot be read: {getattr(error, 'reason', None) or error}",
                next="check the network, or docker pull it on a machine that can reach it",
            ) from error

    def _refused(self, status: int, where: str) -> FiresteelError:
        name = f"{where}:{self._reference.version}"
        if status == 404:
            return UsageError(
                f"the registry has no {name}", next="check the name and the tag; nothing here has it either"
            )
        if status in (401, 403):
            return FiresteelError(
                f"{name} is private, or does not exist (HTTP {status})",
                next=f"docker pull {name}, then inspect it by that name",
            )
        if status == 429:
            return FiresteelError(f"{where} allows no more requests for now", next="try again later")
        return FiresteelError(f"{where} answered HTTP {status}", next="try again later")

    def _open(self, path: str) -> http.client.HTTPResponse:
        url = f"{self._reference.url}/{path}"
        try:
            return open_stream(url, {"Accept": _ACCEPT, **bearer(self._token)})
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate") or ""
            if error.code != 401 or self._token or not challenge.lower().startswith("bearer "):
                raise
            error.close()
        self._token = self._anonymous_token(dict(_CHALLENGE.findall(challenge)))
        return open_stream(url, {"Accept": _ACCEPT, **bearer(self._token)})

    def _anonymous_token(self, challenge: Mapping[str, str]) -> str:
        realm = challenge.get("realm", "")
        scheme = self._reference.url.partition("://")[0]
        if not realm.startswith(f"{scheme}://"):
            raise OSError(f"its token server has no address with {scheme}")
        query = {name: challenge[name] for name in ("service", "scope") if name in challenge}
        with open_stream(f"{realm}?{urlencode(query)}", {}) as response:
            try:
                answer = json.loads(response.read(_MAX_DOCUMENT_BYTES))
            except ValueError as error:
                raise OSError("its token server sent no JSON") from error
        token = answer.get("token") or answer.get("access_token") if isinstance(answer, dict) else None
        if not isinstance(token, str):
            raise OSError("its token server sent no token")
        return token
