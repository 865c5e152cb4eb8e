"""Images made by the tests themselves: OCI layouts, OCI archives and docker archives."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

GPU_CODE = Path(__file__).parents[2] / "facts" / "gpu_code"
Entries = Mapping[str, bytes | str | None]
"""Path -> content; a str is the target of a symbolic link, None a directory."""


def gpu_library(name: str) -> bytes:
    """A library that nvcc built: `sm90`, `sm121a`, `many`, `ptx`, `family`, `compressed`, `none`."""
    return (GPU_CODE / f"{name}.so").read_bytes()


def layer(entries: Entries) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path, content in entries.items():
            member = tarfile.TarInfo(path)
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            else:
                member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return data.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config_of(layers: Sequence[bytes], architecture: str = "arm64", **config: Any) -> bytes:
    rootfs = {"type": "layers", "diff_ids": [digest(data) for data in layers]}
    return json.dumps(
        {"architecture": architecture, "os": "linux", "config": config, "rootfs": rootfs}
    ).encode()


def write_layout(
    folder: Path,
    layers: Sequence[bytes],
    *,
    architecture: str = "arm64",
    compress: bool = True,
    **config: Any,
) -> Path:
    """An OCI layout with one image."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, kind: str, **more: Any) -> dict[str, Any]:
        (blobs / hashlib.sha256(data).hexdigest()).write_bytes(data)
        return {"mediaType": kind, "digest": digest(data), "size": len(data), **more}

    stored = [gzip.compress(data, mtime=0) if compress else data for data in layers]
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put(config_of(layers, architecture, **config), "application/vnd.oci.image.config.v1+json"),
        "layers": [put(data, "application/vnd.oci.image.layer.v1.tar+gzip") for data in stored],
    }
    entry = put(
        json.dumps(manifest).encode(),
        "application/vnd.oci.image.manifest.v1+json",
        platform={"os": "linux", "architecture": architecture},
    )
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def write_oci_archive(path: Path, folder: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        archive.add(folder, arcname=".")
    return path


def write_docker_archive(
    path: Path, layers: Sequence[bytes], architecture: str = "arm64", **config: Any
) -> Path:
    """As `docker save` wrote it for years: layer.tar files, and the manifest at the end."""
    data = config_of(layers, architecture, **config)
    names = [f"{index:064x}/layer.tar" for index in range(len(layers))]
    config_name = f"{digest(data)[7:]}.json"
    manifest = [{"Config": config_name, "RepoTags": ["test:1"], "Layers": names}]
    entries = {
        **dict(zip(names, layers, strict=True)),
        config_name: data,
        "manifest.json": json.dumps(manifest).encode(),
    }
    path.write_bytes(layer(entries))
    return path


SITE = "usr/local/lib/python3.12/dist-packages"


def package(name: str, version: str) -> dict[str, bytes]:
    return {f"{SITE}/{name}-{version}.dist-info/METADATA": f"Name: {name}\nVersion: {version}\n".encode()}


def vllm_files(kernels: str = "family", **versions: str) -> dict[str, bytes | str | None]:
    """The files of a vLLM image that an inspection looks at."""
    chosen = {"torch": "2.11.0", "vllm": "0.28.0", "triton": "3.6.0", **versions}
    files: dict[str, bytes | str | None] = {}
    for name, version in chosen.items():
        files |= package(name, version)
    files[f"{SITE}/vllm/_C.abi3.so"] = gpu_library(kernels)
    files["etc/os-release"] = b'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n'
    files["usr/bin/python3.12"] = b"#!"
    return files


VLLM_CONFIG: dict[str, Any] = {
    "Entrypoint": ["vllm", "serve"],
    "Env": ["CUDA_VERSION=13.0.2", "PATH=/usr/local/bin:/usr/bin", "HF_TOKEN=hf_secret"],
    "ExposedPorts": {"8000/tcp": {}},
    "Volumes": {"/var/cache/huggingface": {}},
    "Healthcheck": {"Test": ["CMD-SHELL", "curl -f http://localhost:8000/health"]},
}
