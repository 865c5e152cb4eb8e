"""Recipes for sparkrun, read back as sparkrun itself would render them."""

from __future__ import annotations

import pytest
import yaml

from firesteel.engines.engine import program
from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount
from firesteel.render import containerized, pin, sparkrun
from firesteel.units import GIB
from firesteel.values import replace
from tests.render.material import (
    RECIPES,
    SHIPPED,
    SHOWN,
    check_golden,
    facts_of,
    launch_of,
    objections,
    own_objections,
    read_one,
)

WITH_GPU = [name for name in RECIPES if SHIPPED.images.named[SHIPPED.recipes[name].image].gpu]


@pytest.mark.parametrize("name", WITH_GPU)
def test_every_recipe_is_read_back(name: str) -> None:
    launch, known = launch_of(name), facts_of(name)
    text = sparkrun(launch, known)
    expected = containerized(pin(launch, known))
    container = expected.container
    assert container is not None
    env = {key: value.replace("/hub", "/cache/huggingface", 1) for key, value in expected.env.items()}
    flags = {**expected.flags, "host": "127.0.0.1"}
    if launch.sparks > 1:
        flags["master-addr"] = "{head_ip}"
    image = SHIPPED.images.named[SHIPPED.recipes[name].image]
    container = replace(
        container,
        entrypoint="",
        program=container.program
        if container.entrypoint == ""
        else image.entrypoint or program(launch.engine),
        network="host",
        shm_bytes=None if container.ipc else 32 * GIB,
        publish=(),
        mounts=(Mount("~/.cache/huggingface", "/cache/huggingface"),),
        options=(("device", "/dev/infiniband"),),
    )
    found = read_one(text, "recipe.yaml")
    assert found.container is not None
    if container.program[0] == "bash":  # sparkrun's own shell runs the script
        assert found.flags == flags
        container = replace(container, program=found.container.program)
    own = {"HF_HOME": "/cache/huggingface", "RAY_memory_monitor_refresh_ms": "0"}  # set by sparkrun itself
    assert found.env == {**own, **env}
    assert found == replace(expected, version=found.version, flags=flags, env=found.env, container=container)
    assert objections(text, "recipe.yaml") <= own_objections(launch)


@pytest.mark.parametrize("name", [name for name in SHOWN if name in WITH_GPU])
def test_golden(name: str) -> None:
    check_golden(f"{name}.sparkrun.yaml", sparkrun(launch_of(name), facts_of(name)))


def test_sparkrun_itself_connects_several_sparks() -> None:
    recipe = yaml.safe_load(sparkrun(launch_of("qwen3-235b-gptq-int4-two-sparks")))
    assert recipe["min_nodes"] == 2 and recipe["defaults"]["tensor_parallel"] == 2
    assert "--tensor-parallel-size {tensor_parallel}" in recipe["command"]
    assert "--nnodes" not in recipe["command"] and "$HEAD" not in recipe["command"]


def test_it_listens_on_other_addresses_only_when_the_launch_does() -> None:
    container = Container("vllm/vllm-openai:v0.28.0", gpus="all", publish=("0.0.0.0:8000:8000",))
    launch = Launch(
        "m", "org/m", "vllm", "0.28.0", env={"VLLM_API_KEY": "$VLLM_API_KEY"}, container=container
    )
    recipe = yaml.safe_load(sparkrun(launch))
    assert recipe["defaults"]["host"] == "0.0.0.0" and recipe["env"] == {"VLLM_API_KEY": "$VLLM_API_KEY"}


def test_an_image_without_the_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="does not use one"):
        sparkrun(launch_of("smollm2"))
