"""Files to a node over a real sshd: in parallel, resumed, and never under their name with another content."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import docker_daemon_in
from tests.hosts.cluster.namespaces import NamespaceHost
from tests.workshop.images.made_images import layer, write_docker_archive

SCRIPT = """
import asyncio, json, sys
from pathlib import Path
from firesteel.edge.home import find_home
from firesteel.hosts.cluster.nodes import find_node, target_of
from firesteel.hosts.cluster.stage import stage_files
target = target_of(find_home(), find_node(find_home(), "spark2"))
files = {Path(one): other for one, other in json.loads(sys.argv[1]).items()}
print(json.dumps(asyncio.run(stage_files(target, files))))
"""


def send(head: NamespaceHost, files: dict[Path, Path]) -> Any:
    named = json.dumps({str(one): str(other) for one, other in files.items()})
    done = head.run(sys.executable, "-c", SCRIPT, named)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_files_are_sent_once_resumed_and_compared(two_hosts: list[NamespaceHost]) -> None:
    head, node = two_hosts
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    files: dict[Path, Path] = {}
    for number in range(6):
        content = os.urandom(300_000 + number)
        # Half of them are stored under their digest, as in the Hub's cache.
        name = hashlib.sha256(content).hexdigest() if number % 2 else f"file {number}"
        path = head.folder / "blobs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        files[path] = node.home / "its blobs" / name
    size = sum(path.stat().st_size for path in files)
    first, second, *_ = files
    files[first].parent.mkdir()
    files[first].with_name(f"{files[first].name}.part").write_bytes(first.read_bytes()[:100_000])
    files[second].with_name(f"{files[second].name}.part").write_bytes(b"of another file")
    sent = send(head, files)
    assert sent == size - 100_000 - len(b"of another file") + second.stat().st_size
    assert all(one.read_bytes() == other.read_bytes() for one, other in files.items())
    assert not list(files[first].parent.glob("*.part"))


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
    "max_position_embeddings": 512,
}  # fmt: skip


def make_engine(folder: Path, release: str) -> None:
    """What firesteel sees of an environment with vLLM: a script, and a Python that knows its release."""
    folder.mkdir(parents=True)
    for name, text in {"python3": f"echo {release}", "vllm": "exit 1"}.items():
        shebang = "#!/bin/sh" if name == "python3" else f"#!{folder}/python3"
        (folder / name).write_text(f"{shebang}\n{text}\n")
        (folder / name).chmod(0o755)


def test_a_folder_is_copied_and_another_engine_on_a_node_is_refused(two_hosts: list[NamespaceHost]) -> None:
    head, node = two_hosts
    config, folder = head.folder / "config.json", head.home / "models/tiny"
    config.write_text(json.dumps(CONFIG))
    make = Path(__file__).resolve().parents[3] / "scripts/make-random-checkpoint"
    assert head.run(sys.executable, str(make), str(config), str(folder)).code == 0
    (folder / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}')
    make_engine(head.home / "engine/bin", "0.32.0+cpu")
    model = (str(folder), "--engine-path", str(head.home / "engine"))
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    staged = head.firesteel("cluster", "stage", *model)
    assert staged.code == 0 and "digests equal" in staged.err, staged.err
    copies = node.home / "models/tiny"
    assert {path.name: path.read_bytes() for path in copies.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
    refused = head.firesteel("up", *model, "--cluster", "--allow-tcp")
    assert refused.code == 5 and f"spark2 has no {node.home}/engine/bin/vllm" in refused.err, refused.err
    make_engine(node.home / "engine/bin", "0.30.0+cpu")
    refused = head.firesteel("up", *model, "--cluster", "--allow-tcp")
    assert refused.code == 5 and "spark2 has vllm 0.30.0, and this host 0.32.0" in refused.err, refused.err


SEND_IMAGE = """
import asyncio
from firesteel.edge.home import find_home
from firesteel.hosts.cluster.nodes import find_node, target_of
from firesteel.hosts.cluster.stage import stage_image

async def send():
    home = find_home()
    async for event in stage_image("test:1", [target_of(home, find_node(home, "spark2"))]):
        print(event)

asyncio.run(send())
"""


def test_an_image_goes_to_the_other_host_with_its_digest(
    two_hosts: list[NamespaceHost],
    docker_daemon: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    head, node = two_hosts
    head.env["DOCKER_HOST"] = docker_daemon
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    archive = write_docker_archive(tmp_path / "image.tar", [layer({"etc/motd": os.urandom(100_000)})])
    assert head.run("docker", "load", "--input", str(archive)).code == 0
    with docker_daemon_in(tmp_path_factory.mktemp("docker"), "--bridge=none", "--iptables=false") as other:
        assert node.run("ln", "-s", other.removeprefix("unix://"), "/run/docker.sock").code == 0
        sent = head.run(sys.executable, "-c", SEND_IMAGE)
        assert "test:1 copied, digests equal" in sent.out, sent
        asked = ("docker", "image", "inspect", "--format", "{{.Id}}", "test:1")
        assert node.run(*asked).out == head.run(*asked).out != ""
        again = head.run(sys.executable, "-c", SEND_IMAGE)
        assert "was there already" in again.out, again
