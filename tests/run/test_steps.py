"""Steps as a dry run prints them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import firesteel
from firesteel.edge.files.home import Home
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import Ask, FlagValue
from firesteel.proposals import Proposal
from firesteel.run import make_steps

HOME = Home(Path("/home/me/fs"))
SPARK = firesteel.host("gb10")


def proposal(name: str, **flags: FlagValue) -> Proposal:
    found = firesteel.propose(Ask(name), SPARK)[0]
    launch = found.plan.launch
    all_flags = {**launch.flags, **{flag.replace("_", "-"): value for flag, value in flags.items()}}
    return replace(found, plan=replace(found.plan, launch=replace(launch, flags=all_flags)))


def test_the_embedded_engine_is_one_process() -> None:
    pull, serve = make_steps(proposal("smollm2"), HOME)
    assert pull.command.argv == ("firesteel", "pull", "smollm2")
    argv = serve.command.argv
    assert argv[0] == "/home/me/fs/engines/xllamacpp-2026.10.11549/bin/python" and argv[1] == "-I"
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--threads") + 1] == "19"
    assert serve.command.env["GOMP_SPINCOUNT"] == "1000"
    assert serve.undo is None


def test_a_container_is_removed_when_it_stops_and_needs_no_network() -> None:
    pull, serve = make_steps(proposal("gpt-oss-120b-vllm"), HOME)
    assert pull.command.argv == ("firesteel", "pull", "gpt-oss-120b-vllm")
    argv = serve.command.argv
    assert "HF_HUB_OFFLINE=1" in argv and argv[argv.index("--security-opt") + 1] == "no-new-privileges"
    assert argv[:2] == ("docker", "run") and "--rm" in argv and "-d" not in argv
    assert "HF_TOKEN" not in argv
    assert serve.undo is not None and serve.undo.argv == ("docker", "stop", "firesteel-gpt-oss-120b-vllm")


@pytest.mark.parametrize(
    ("flag", "says", "types"),
    [
        ("cache_rom", "does not know `--cache-rom`", "write --cache-ram instead"),
        ("zzz", "does not know `--zzz`", "take the flag out"),
    ],
)
def test_a_flag_that_the_embedded_engine_does_not_know(flag: str, says: str, types: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        make_steps(proposal("smollm2", **{flag: "1"}), HOME)
    assert refused.value.next.startswith(types)


def test_a_launch_without_an_image() -> None:
    found = proposal("gpt-oss-120b-vllm")
    bare = replace(found.plan, launch=replace(found.plan.launch, container=None))
    with pytest.raises(FiresteelError, match="which image runs gpt-oss-120b-vllm"):
        make_steps(replace(found, plan=bare), HOME)
