"""`import firesteel`: the same values as the commands show."""

from __future__ import annotations

import subprocess
import sys

import firesteel


def test_everything_on_the_door_is_there() -> None:
    for name in firesteel.__all__:
        assert getattr(firesteel, name) is not None
    assert not hasattr(firesteel, "nonsense")


def test_plan_and_models() -> None:
    best, *others = firesteel.plan("gpt-oss-120b", host_name="gb10")
    assert best.plan.fits and [other.name for other in others] == ["gpt-oss-120b-vllm"]
    assert {each.name for each in firesteel.models("gb10")} >= {best.name, "smollm2"}


def test_check_and_docker_agree() -> None:
    best = firesteel.plan("qwen3.6-35b-a3b-nvfp4", host_name="gb10")[0]
    assert not [finding for finding in firesteel.check(firesteel.docker(best)) if finding.level == "stop"]


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = ("pydantic", "rich", "aiohttp", "yaml")
    program = f"import firesteel, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
