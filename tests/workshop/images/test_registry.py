"""Images in registries: Debian's own registry on loopback, and one of ours for tokens, redirects and lies."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from firesteel.edge.docker.registry import Registry as RegistryClient
from firesteel.edge.docker.registry import parse_reference
from firesteel.errors import FiresteelError, UsageError
from firesteel.workshop.images import sources as sources_module
from firesteel.workshop.images.inspect import inspect_image
from firesteel.workshop.images.layers import DamagedImage
from firesteel.workshop.images.sources import open_image
from tests.conftest import Firesteel
from tests.workshop.images.made_images import VLLM_CONFIG, layer, vllm_files, write_layout


@pytest.mark.parametrize(
    ("text", "url", "version"),
    [
        ("python", "https://registry-1.docker.io/v2/library/python", "latest"),
        ("vllm/vllm-openai:v0.28.0", "https://registry-1.docker.io/v2/vllm/vllm-openai", "v0.28.0"),
        ("docker.io/library/busybox:1", "https://registry-1.docker.io/v2/library/busybox", "1"),
        ("ghcr.io/ggml-org/llama.cpp:server", "https://ghcr.io/v2/ggml-org/llama.cpp", "server"),
        ("127.0.0.1:5000/a/b", "http://127.0.0.1:5000/v2/a/b", "latest"),
        ("localhost:5000/a:x", "http://localhost:5000/v2/a", "x"),
        (f"a/b:t@sha256:{'0' * 64}", "https://registry-1.docker.io/v2/a/b", f"sha256:{'0' * 64}"),
    ],
)  # fmt: skip
def test_references(text: str, url: str, version: str) -> None:
    reference = parse_reference(text)
    assert (reference.url, reference.version) == (url, version)


@pytest.mark.parametrize("text", ["", "UPPER", "a b", "a:", "a@sha256:12", "-x", "a/../b:x y"])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_reference(text)


class Registry:
    """A registry that serves the blobs of an OCI layout, and does what the test asks besides."""

    def __init__(self, layout: Path) -> None:
        self.layout = layout
        self.requests: list[tuple[str, str | None]] = []
        """Path, and the token that came with it."""
        self.answer: Callable[[str, BaseHTTPRequestHandler], bool] = lambda path, handler: False
        """Returns whether it has answered in our place."""
        self.port = 0

    def find(self, path: str) -> bytes | None:
        kind, _, name = path.partition("/v2/test/image/")[2].partition("/")
        if kind == "manifests" and name == "1":
            entry = json.loads((self.layout / "index.json").read_text())["manifests"][0]
            name = entry["digest"]
        blob = self.layout / "blobs" / name.replace(":", "/")
        return blob.read_bytes() if kind in ("manifests", "blobs") and blob.is_file() else None


@contextmanager
def serving(layout: Path) -> Iterator[Registry]:
    registry = Registry(layout)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.requests.append((self.path, self.headers.get("Authorization")))
            if registry.answer(self.path, self):
                return
            data = registry.find(self.path)
            send(self, 200 if data is not None else 404, data or b"")

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    return write_layout(
        tmp_path / "layout", [layer(vllm_files()), layer({"opt/x": bytes(5000)})], **VLLM_CONFIG
    )


def test_an_image_is_read_with_the_token_that_everybody_gets(layout: Path, tmp_path: Path) -> None:
    with serving(layout) as registry, serving(layout) as store:

        def answer(path: str, handler: BaseHTTPRequestHandler) -> bool:
            if path.startswith("/token?"):
                send(handler, 200, b'{"token": "t0ken"}')
            elif handler.headers.get("Authorization") != "Bearer t0ken":
                realm = f'Bearer realm="http://127.0.0.1:{registry.port}/token",service="s",scope="pull"'
                send(handler, 401, WWW_Authenticate=realm)
            elif "/blobs/" in path:
                send(handler, 307, Location=f"http://127.0.0.1:{store.port}{path}")
            else:
                return False
            return True

        registry.answer = answer
        report = inspect_image(open_image(f"127.0.0.1:{registry.port}/test/image:1", remote=True), tmp_path)
    assert report.engine == "vllm" and report.source == "registry" and report.is_complete
    tokens = [path for path, _ in registry.requests if path.startswith("/token?")]
    assert len(tokens) == 1 and "service=s" in tokens[0] and "scope=pull" in tokens[0]
    assert store.requests and {token for _, token in store.requests} == {None}, (
        "the token stays with its host"
    )


def test_large_layers_are_not_downloaded_unless_asked(
    layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources_module, "SMALL_LAYER_BYTES", 1000)
    with serving(layout) as registry:
        name = f"127.0.0.1:{registry.port}/test/image:1"
        report = inspect_image(open_image(name, remote=True), tmp_path)
        assert report.unread_layers == 1 and report.unread_bytes > 1000 and not report.is_complete
        assert report.engine is None, "it is in the layer that was not read"
        assert report.start.style == "starts the engine", "the config says it without any layer"
        assert report.problems == (), "what was not read is not missing"
        asked = len(registry.requests)
        opened = open_image(name, remote=True, deep=True)
        assert not any("/blobs/" in path for path, _ in registry.requests[asked:][2:]), (
            "told before any layer"
        )
        assert inspect_image(opened, tmp_path).engine == "vllm"


@pytest.mark.parametrize(
    ("status", "words"), [(404, "no "), (401, "private"), (403, "private"), (429, "no more"), (500, "500")]
)
def test_refusals_say_what_to_do(status: int, words: str, layout: Path) -> None:
    with serving(layout) as registry:

        def answer(path: str, handler: BaseHTTPRequestHandler) -> bool:
            send(handler, status)
            return True

        registry.answer = answer
        with pytest.raises(FiresteelError, match=words) as caught:
            open_image(f"127.0.0.1:{registry.port}/test/image:1", remote=True)
        assert caught.value.next


def test_a_registry_that_lies_is_found_out(layout: Path, tmp_path: Path) -> None:
    blobs = sorted((layout / "blobs" / "sha256").iterdir())
    for blob in blobs:
        original = blob.read_bytes()
        blob.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
        with serving(layout) as registry, pytest.raises(FiresteelError):
            digest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
            name = f"127.0.0.1:{registry.port}/test/image@{digest}"
            inspect_image(open_image(name, remote=True), tmp_path)
        blob.write_bytes(original)


def test_a_connection_that_breaks_off(layout: Path, tmp_path: Path) -> None:
    with serving(layout) as registry:

        def answer(path: str, handler: BaseHTTPRequestHandler) -> bool:
            data = registry.find(path) or b""
            if len(data) < 2000:
                return False
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data[:1000])
            handler.close_connection = True
            return True

        registry.answer = answer
        with pytest.raises(DamagedImage):
            inspect_image(open_image(f"127.0.0.1:{registry.port}/test/image:1", remote=True), tmp_path)


def test_nobody_listens(free_port: int) -> None:
    with pytest.raises(FiresteelError, match="cannot be read"):
        open_image(f"127.0.0.1:{free_port}/test/image:1", remote=True)


# --- Debian's registry ---


@pytest.fixture
def real_registry(tmp_path: Path, free_port: int) -> Iterator[str]:
    if shutil.which("docker-registry") is None:
        assert os.environ.get("CI") != "true", "scripts/test installs docker-registry in CI"
        pytest.skip("needs docker-registry (Debian: docker-registry)")
    config = tmp_path / "registry.yml"
    storage = {"filesystem": {"rootdirectory": str(tmp_path / "store")}}
    config.write_text(
        json.dumps({"version": 0.1, "storage": storage, "http": {"addr": f"127.0.0.1:{free_port}"}})
    )
    with (tmp_path / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", free_port)) == 0:
                    break
            assert process.poll() is None, (tmp_path / "registry.log").read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{free_port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def push(host: str, layout: Path, tag: str = "1") -> None:
    """As `docker push` does it: every blob, then the manifest under its tag."""
    entry = json.loads((layout / "index.json").read_text())["manifests"][0]
    manifest = (layout / "blobs" / entry["digest"].replace(":", "/")).read_bytes()
    connection = http.client.HTTPConnection(host, timeout=60)
    for blob in (layout / "blobs" / "sha256").iterdir():
        data = blob.read_bytes()
        connection.request("POST", "/v2/test/image/blobs/uploads/")
        started = connection.getresponse()
        started.read()
        place = urlsplit(started.headers["Location"])
        target = f"{place.path}?{place.query}&digest=sha256:{hashlib.sha256(data).hexdigest()}"
        connection.request("PUT", target, data, {"Content-Type": "application/octet-stream"})
        done = connection.getresponse()
        done.read()
        assert done.status == 201
    connection.request(
        "PUT", f"/v2/test/image/manifests/{tag}", manifest, {"Content-Type": entry["mediaType"]}
    )
    done = connection.getresponse()
    assert done.status == 201, done.read()
    connection.close()


def test_debians_registry(real_registry: str, layout: Path, firesteel: Firesteel) -> None:
    push(real_registry, layout)
    ran = firesteel("image", "inspect", f"{real_registry}/test/image:1", "--remote", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["source"] == "registry" and ran.json["engine"] == "vllm" and ran.json["saved"]
    assert "fetch   2 layers" in ran.err
    for tag in ("2", "3"):
        push(real_registry, layout, tag)
    address = parse_reference(f"{real_registry}/test/image:1")
    assert sorted(RegistryClient(address).tags()) == ["1", "2", "3"]
    absent = firesteel("image", "inspect", f"{real_registry}/test/other:1", "--remote")
    assert absent.code == 2 and "has no" in absent.err
