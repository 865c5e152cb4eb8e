"""Checkpoints on disk and on a small real HTTP hub: headers are read, tensors are not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from firesteel.edge import checkpoints
from firesteel.edge.checkpoints import FileSource, UrlSource
from firesteel.edge.http.sync_client import Deadline
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.formats.byte_source import BadHeader
from firesteel.facts.model.tensors import Role
from tests.http_thread import QuietHandler, serving_http

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "intermediate_size": 128,
}


def tensors(layers: range) -> dict[str, np.ndarray]:
    arrays = {}
    for layer in layers:
        arrays[f"model.layers.{layer}.self_attn.q_proj.weight"] = np.zeros((64, 64), np.float16)
        arrays[f"model.layers.{layer}.mlp.up_proj.weight"] = np.zeros((128, 64), np.float16)
    return arrays


def write_model(folder: Path, shards: bool) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    parts = {"model.safetensors": tensors(range(2))}
    parts["model.safetensors"]["model.embed_tokens.weight"] = np.zeros((256, 64), np.float16)
    if shards:
        whole = parts.pop("model.safetensors")
        names = sorted(whole)
        parts = {
            "model-00001-of-00002.safetensors": {name: whole[name] for name in names[:2]},
            "model-00002-of-00002.safetensors": {name: whole[name] for name in names[2:]},
        }
        index = {"weight_map": {name: part for part, held in parts.items() for name in held}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for part, held in parts.items():
        save_file(held, folder / part)
    return folder


@pytest.mark.parametrize("shards", [False, True])
def test_a_folder_is_counted_to_the_byte(tmp_path: Path, shards: bool) -> None:
    checkpoint = checkpoints.open_path(str(write_model(tmp_path / "tiny", shards)))
    assert checkpoint.format == "safetensors" and checkpoint.name == "tiny"
    assert checkpoint.weights.provenance == "counted"
    assert checkpoint.weights.bytes_by_role == {
        Role.ATTENTION: 2 * 64 * 64 * 2,
        Role.DENSE_MLP: 2 * 128 * 64 * 2,
        Role.EMBEDDINGS: 256 * 64 * 2,
    }
    assert checkpoint.weights.tied_head
    assert len(checkpoint.architecture.layers) == 2


@pytest.mark.real
def test_the_real_gguf(pulled: object, tmp_path: Path) -> None:
    from firesteel.edge.home import Home

    assert isinstance(pulled, Home)
    path = next(pulled.weights.rglob("*.gguf"))
    checkpoint = checkpoints.open_path(str(path))
    assert checkpoint.format == "gguf" and checkpoint.weights.total_bytes == 96_576_768


def test_what_is_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FiresteelError, match="does not exist"):
        checkpoints.open_path(str(tmp_path / "none.gguf"))
    with pytest.raises(FiresteelError, match=r"no config\.json and no GGUF"):
        checkpoints.open_path(str(tmp_path))
    text = tmp_path / "notes.txt"
    text.write_text("x")
    with pytest.raises(FiresteelError, match="neither a GGUF file, a config"):
        checkpoints.open_path(str(text))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03")
    with pytest.raises(BadHeader, match="truncated"):
        checkpoints.open_path(str(broken))
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("[" * 100_000)
    with pytest.raises(FiresteelError, match="nested deeper than any model's config"):
        checkpoints.open_path(str(tmp_path / "m"))
    (tmp_path / "m" / "config.json").write_text("{,")
    with pytest.raises(FiresteelError, match="is not JSON"):
        checkpoints.open_path(str(tmp_path / "m"))


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "m.gguf"])
def test_a_pointer_of_git_lfs_is_told(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "clone", shards=True)
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    opened = folder / name if name.endswith(".gguf") else folder
    with pytest.raises(FiresteelError, match=f"{name} is a pointer of git-lfs") as caught:
        checkpoints.open_path(str(opened))
    assert caught.value.next == f"git -C {folder} lfs pull"


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    """Its header is sound; its plan would need no memory and fit everywhere."""
    folder = write_model(tmp_path / "tiny", shards=False)
    for held in ({}, {"model.norm.weight": np.zeros((0,), np.float16)}):
        save_file(held, folder / "model.safetensors")
        with pytest.raises(UsageError, match="holds no tensors"):
            checkpoints.open_path(str(folder))
    empty = tmp_path / "empty.gguf"
    empty.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    with pytest.raises(FiresteelError):
        checkpoints.open_path(str(empty))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, None),
        (
            {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36},
            "cannot belong to its config",
        ),
        ({"hidden_size": 8, "vocab_size": 8, "intermediate_size": 8}, "cannot belong to its config"),
        ({"hidden_size": 4096, "quantization_config": {"quant_method": "nobody's"}}, None),
        ({"hidden_size": 4096, "model_type": "mpt"}, None),
    ],
)
def test_files_of_another_model_are_refused(
    tmp_path: Path, more: dict[str, object], message: str | None
) -> None:
    """Where the config allows no estimate of the size, the files are accepted."""
    folder = write_model(tmp_path / "tiny", shards=False)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **more}))
    if message:
        with pytest.raises(UsageError, match=message):
            checkpoints.open_path(str(folder))
        return
    try:
        assert checkpoints.open_path(str(folder)).weights.provenance == "counted"
    except FiresteelError as error:
        assert "cannot belong to its config" not in str(error)


@dataclass
class Hub:
    """A Hub server on loopback that supports ranges."""

    root: Path
    url: str = ""
    sent_bytes: int = 0
    requests: list[str] = field(default_factory=list)
    ignores_ranges: bool = False


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    served = Hub(tmp_path / "hub")

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            served.requests.append(self.path)
            if "/secret/" in self.path and self.headers.get("Authorization") != "Bearer hf_mine":
                self.send_error(401)
                return
            file = served.root / self.path.lstrip("/").replace("/resolve/main", "")
            if not file.is_file():
                self.send_error(404)
                return
            data = file.read_bytes()
            range = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if range and not served.ignores_ranges:
                start, end = int(range[1]), min(int(range[2]), len(data) - 1)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
                data = data[start : end + 1]
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            served.sent_bytes += len(data)

    with serving_http(Handler) as served.url:
        yield served


@pytest.mark.parametrize("shards", [False, True])
def test_a_hub_repository_reads_like_a_folder(hub: Hub, shards: bool) -> None:
    folder = write_model(hub.root / "org" / "tiny", shards)
    remote = checkpoints.open_hub("org/tiny", {"HF_ENDPOINT": hub.url})
    local = checkpoints.open_path(str(folder))
    assert remote.weights.bytes_by_role == local.weights.bytes_by_role
    assert remote.architecture == local.architecture
    assert remote.model == "org/tiny"


def test_only_the_start_of_a_large_file_is_fetched(hub: Hub) -> None:
    folder = hub.root / "org" / "large"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 16384, "hidden_size": 1024}))
    save_file(
        {"model.embed_tokens.weight": np.zeros((16384, 1024), np.float16)}, folder / "model.safetensors"
    )
    checkpoints.open_hub("org/large", {"HF_ENDPOINT": hub.url})
    assert hub.sent_bytes < 2 * 2**20 < (folder / "model.safetensors").stat().st_size


def test_hub_errors_say_what_to_do(hub: Hub) -> None:
    with pytest.raises(FiresteelError, match=r"org/none has no config\.json"):
        checkpoints.open_hub("org/none", {"HF_ENDPOINT": hub.url})
    with pytest.raises(FiresteelError, match="gated or private") as gated:
        checkpoints.open_hub("secret/model", {"HF_ENDPOINT": hub.url})
    assert "HF_TOKEN" in gated.value.next
    with pytest.raises(FiresteelError, match="cannot be read"):
        checkpoints.open_hub("org/x", {"HF_ENDPOINT": "http://127.0.0.1:1"})
    with pytest.raises(FiresteelError, match="is not a web address") as invalid:
        checkpoints.open_hub("org/x", {"HF_ENDPOINT": "nonsense"})
    assert "HF_ENDPOINT" in invalid.value.next


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME"])
def test_a_private_repository_is_read_with_the_token_that_the_hub_uses(
    hub: Hub, tmp_path: Path, name: str
) -> None:
    """From the environment, or from the file that `hf auth login` writes."""
    write_model(hub.root / "secret" / "model", shards=False)
    (tmp_path / "token").write_text("hf_mine\n")
    value = {"HF_TOKEN_PATH": tmp_path / "token", "HF_HOME": tmp_path}.get(name, "hf_mine")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    code = "from firesteel.edge.checkpoints import open_hub; print(open_hub('secret/model').model)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "HF_ENDPOINT": hub.url, "FIRESTEEL_HOME": str(tmp_path / "home"), name: str(value)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "secret/model\n", ran.stderr


def test_a_pipe_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(FiresteelError, match="is not a file"):
        checkpoints.open_path(str(tmp_path / "x.gguf"))


def test_a_server_without_ranges_is_refused(hub: Hub) -> None:
    write_model(hub.root / "org" / "tiny", shards=False)
    hub.ignores_ranges = True
    with pytest.raises(FiresteelError, match="does not serve ranges"):
        checkpoints.open_hub("org/tiny", {"HF_ENDPOINT": hub.url})


def test_sources_return_exactly_the_requested_bytes(hub: Hub) -> None:
    hub.root.mkdir()
    data = bytes(range(256)) * 8192
    (hub.root / "file").write_bytes(data)
    with FileSource(hub.root / "file") as file:
        for source in (file, UrlSource(f"{hub.url}/file", {}, Deadline())):
            assert source.size == len(data)
            for start, length in ((0, 0), (0, 5), (1_500_000, 300), (len(data) - 1, 1)):
                assert source.read(start, length) == data[start : start + length]
            with pytest.raises(BadHeader, match="truncated"):
                source.read(len(data) - 1, 2)
