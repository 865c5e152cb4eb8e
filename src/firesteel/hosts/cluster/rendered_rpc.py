"""`render` of llama.cpp over hosts: `llama-server --rpc` on the head, `ggml-rpc-server` on the others. Pure.

As programs in units of systemd, or in an image that has both: upstream's images are built without RPC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from firesteel import render
from firesteel.catalog.image import Image, Images
from firesteel.catalog.launches import in_container, openmp_environment
from firesteel.errors import UsageError
from firesteel.hosts.cluster.ranks import RPC_PORT, RankHost
from firesteel.launch import Launch, container_name
from firesteel.render import LaunchFacts
from firesteel.render.docker import quote
from firesteel.render.systemd import INSTALL_SECTION, install_notes, native_unit, unit_line, unit_word
from firesteel.render.yaml_text import Explained, document

RPC_FORMS = ("docker", "compose", "systemd")
_IMAGES = ("llamacpp-gb10", "llamacpp-here")
_OPEN = "It asks for no password: whoever reaches this address can use this host's memory and GPU"


def head_file(launch: Launch, facts: LaunchFacts, form: str, images: Images) -> str:
    if form == "systemd":
        return native_unit(launch, facts)
    write = {"docker": render.docker, "compose": render.compose}[form]
    return write(in_container(launch, rpc_image(images)), facts)


def worker_file(launch: Launch, host: RankHost, form: str, images: Images, program: str) -> str:
    """`program`: where `cluster stage` puts it on a node, below the user's home."""
    name, words = container_name(f"{launch.name}-rpc"), ("-H", host.address, "-p", str(RPC_PORT), "-c")
    env = openmp_environment(launch)
    if form == "systemd":
        return _unit(name, [f"~/{program}", *words], env)
    image = rpc_image(images)
    entrypoint = str(PurePosixPath((image.entrypoint or ("",))[0]).with_name("ggml-rpc-server"))
    if form == "compose":
        return _compose(name, image, entrypoint, words, env)
    options = ["--restart", "on-failure:3", "--name", name, "--network", "host"]
    options += ["--gpus", "all"] if image.gpu else []
    options += [word for key, value in env.items() for word in ("-e", f"{key}={value}")]
    argv = ["docker", "run", "--detach", *options, "--entrypoint", entrypoint, image.reference or "", *words]
    return f"# {_OPEN}\n{' '.join(map(quote, argv))}\n"


def rpc_image(images: Images) -> Image:
    found = [images.named[name] for name in _IMAGES if name in images.named]
    if not found:
        raise UsageError(
            "no image here has llama.cpp's RPC server: upstream's are built without it",
            next="firesteel image build llamacpp-here (on a Spark: llamacpp-gb10), or --as systemd",
        )
    return found[0]


def _compose(name: str, image: Image, entrypoint: str, words: Sequence[str], env: Mapping[str, str]) -> str:
    service: dict[str, object] = {
        "image": image.reference,
        "container_name": name,
        "network_mode": "host",
        "restart": Explained("on-failure:3", "the head ends when it is lost, and finds it again"),
        "entrypoint": [entrypoint],
        "command": list(words),
    }
    if image.gpu:
        gpu = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [gpu]}}}
    if env:
        service["environment"] = dict(env)
    return document({"services": {name: service}}, [_OPEN])


def _unit(name: str, argv: Sequence[str], env: Mapping[str, str]) -> str:
    notes = [
        _OPEN,
        "The program: firesteel cluster stage MODEL --native, on the head",
        *install_notes(f"~/.config/systemd/user/{name}.service", name),
    ]
    lines = [
        *(f"# {note}" for note in notes), "[Unit]", "Description=llama.cpp RPC server", "",
        "[Service]", "Type=exec",
        *(f"Environment={unit_word(f'{key}={value}')}" for key, value in env.items()),
        unit_line("ExecStart", [tuple(argv)]), "Restart=on-failure", "RestartSec=5", "", *INSTALL_SECTION,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
