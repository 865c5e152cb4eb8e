"""Facts beside a launch: reasons, pins, and the key without which nothing starts."""

from __future__ import annotations

import subprocess

from firesteel.launch import Container, Launch
from firesteel.reads.launches import read
from firesteel.render import LaunchFacts, docker, find_digest, pin
from tests.render.material import SHIPPED, facts_of, launch_of

OPEN = Launch(
    "m",
    "org/m",
    "vllm",
    "0.28.0",
    env={"VLLM_API_KEY": "$VLLM_API_KEY"},
    container=Container("vllm/vllm-openai:v0.28.0", publish=("0.0.0.0:8000:8000",)),
)


def test_a_digest_is_of_exactly_this_tag() -> None:
    images = SHIPPED.images
    for digest, image in images.digests.items():
        assert image.reference is not None
        tag = image.reference.partition("@")[0]
        assert find_digest(tag, images) == digest
        assert find_digest(image.reference, images) is None, "it is pinned already"
    assert find_digest("vllm/vllm-openai:v0.28.0", images) is None


def test_pins_only_what_the_engine_can_pin() -> None:
    known = LaunchFacts(revision="c" * 40)
    assert pin(Launch("m", "org/m", "vllm"), known).flags == {"revision": "c" * 40}
    assert pin(Launch("m", "org/m", "vllm", flags={"revision": "mine"}), known).flags == {"revision": "mine"}
    assert pin(Launch("m", "org/m:Q4", "llamacpp"), known).flags == {}
    assert pin(Launch("m", "/models/m", "vllm"), known).flags == {}


def test_docker_has_its_reasons_before_the_command() -> None:
    text = docker(launch_of("qwen3.6-35b-a3b-nvfp4"), facts_of("qwen3.6-35b-a3b-nvfp4"))
    assert "# --kv-cache-dtype: halves the KV cache" in text.partition("docker run")[0]
    (reading,) = read(text, "run.sh", SHIPPED.images)
    assert reading.launch == launch_of("qwen3.6-35b-a3b-nvfp4")


def test_nothing_starts_without_the_required_key() -> None:
    """A real shell, with `echo` for docker, starts nothing while the variable is empty."""
    script = docker(OPEN).replace("docker run", "echo started", 1)
    for key, code, output in (("", 127, ""), ("secret", 0, "started")):
        env = {"PATH": "/usr/bin:/bin", "VLLM_API_KEY": key}
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=env)
        assert (done.returncode, done.stdout[:7]) == (code, output) and "secret" not in done.stdout
    (reading,) = read(docker(OPEN), "run.sh", SHIPPED.images)
    assert reading.launch == OPEN
