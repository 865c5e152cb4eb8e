"""What a container finds after a pull: the store, the caches of its own version, and no network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from firesteel import render
from firesteel.catalog import Image, contain, shipped
from firesteel.edge.files.home import Home
from firesteel.engines.schema.releases import schema
from firesteel.facts.host.hardware import hardware, host_at_rest
from firesteel.facts.host.host import Gpu
from firesteel.launch import Ask, EngineName, Mount
from firesteel.rules import Proposal, propose
from firesteel.run.start.caches import (
    COMPILED_INSIDE,
    STORE_INSIDE,
    cache_name,
    compiled_env,
    offline_env,
    staged,
    stale,
)

HOME = Home(Path("/fs"))
STORE = "/data/hub"
OLD, NEW = "580.95.05", "590.10.01"


def proposal(name: str, driver: str = OLD) -> Proposal:
    gpu = Gpu("NVIDIA GB10", driver, "12.1")
    spark = replace(host_at_rest(hardware("gb10")), gpus=(gpu,))
    return propose(shipped(), spark, Ask(model=name))[0]


def mounts(planned: Proposal) -> dict[str, Mount]:
    container = staged(planned, HOME, STORE).container
    assert container is not None
    return {mount.target: mount for mount in container.mounts}


@pytest.mark.parametrize("name", ["qwen3.6-35b-a3b-nvfp4", "gpt-oss-120b-llamacpp"])
def test_the_store_is_mounted_read_only_where_the_engine_looks(name: str) -> None:
    planned = staged(proposal(name), HOME, STORE)
    inside = planned.env.get("LLAMA_CACHE") or f"{planned.env['HF_HOME']}/hub"
    assert mounts(proposal(name))[inside] == Mount(STORE, STORE_INSIDE, read_only=True)
    assert len([target for target in mounts(proposal(name)) if target.startswith("/hub")]) == 1
    assert offline_env(planned.engine).items() <= planned.env.items()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_all_compile_caches_are_in_the_mount(engine: EngineName) -> None:
    assert all(where.startswith(COMPILED_INSIDE) for where in compiled_env(engine).values())


def test_the_engines_read_these_variables() -> None:
    """Held against what was read out of the engines' own releases."""
    vllm = schema("vllm", "0.28.0")
    assert vllm is not None and "VLLM_CACHE_ROOT" in vllm.variables
    llamacpp = schema("llamacpp", "11549")
    assert llamacpp is not None and offline_env("llamacpp").keys() & llamacpp.variables.keys()


def test_another_version_image_or_driver_has_other_caches() -> None:
    names = {
        cache_name("vllm", "0.28.0", "a:1", OLD),
        cache_name("vllm", "0.28.1", "a:1", OLD),
        cache_name("vllm", "0.28.0", "a:1@sha256:00", OLD),
        cache_name("vllm", "0.28.0", "a:1", NEW),
        cache_name("vllm", "0.28.0", "a:1", None),
    }
    assert len(names) == 5
    assert all("/" not in name and ".." not in name for name in names)


def test_a_hostile_reference_is_a_plain_name() -> None:
    assert "/" not in cache_name("vllm", "../../x", "../../y", "../z")


def test_settings_of_the_recipe_take_precedence() -> None:
    planned = proposal("qwen3.6-35b-a3b-nvfp4")
    launch = replace(planned.plan.launch, env={**planned.plan.launch.env, "VLLM_CACHE_ROOT": "/mine"})
    mine = replace(planned, plan=replace(planned.plan, launch=launch))
    assert staged(mine, HOME, STORE).env["VLLM_CACHE_ROOT"] == "/mine"


def test_packages_are_installed_from_the_pulled_wheels() -> None:
    planned = staged(proposal("phi-4-multimodal-nvfp4"), HOME, STORE)
    assert planned.env["PIP_NO_INDEX"] == "1" and planned.env["PIP_FIND_LINKS"] == "/wheels"
    assert mounts(proposal("phi-4-multimodal-nvfp4"))["/wheels"].read_only


def test_a_checkpoint_on_disk_needs_no_store() -> None:
    planned = proposal("qwen3.6-35b-a3b-nvfp4")
    container = planned.plan.launch.container
    assert container is not None
    on_disk = replace(container, mounts=(Mount("/my/model", "/models/model", read_only=True),))
    launch = replace(planned.plan.launch, container=on_disk)
    got = staged(replace(planned, plan=replace(planned.plan, launch=launch)), HOME, STORE)
    assert got.container is not None
    assert {mount.target for mount in got.container.mounts} == {"/models/model", COMPILED_INSIDE}
    assert "HF_HUB_OFFLINE" not in got.env


def test_a_file_of_the_store_is_read_through_the_store_mount() -> None:
    """In a snapshot there are links alone; the folder by itself would be full of links to nowhere."""
    planned = proposal("gpt-oss-120b-llamacpp")
    snapshot = f"{STORE}/models--o--n/snapshots/{'c' * 40}"
    image = shipped().images.named[planned.recipe.image] if planned.recipe else None
    assert image is not None
    bare = replace(planned.plan.launch, model=f"{snapshot}/n-Q4_0.gguf", container=None)
    launch = contain(bare, image)
    got = staged(replace(planned, model=None, plan=replace(planned.plan, launch=launch)), HOME, STORE)
    assert got.model == f"{STORE_INSIDE}/models--o--n/snapshots/{'c' * 40}/n-Q4_0.gguf"
    assert got.container is not None
    assert {mount.target for mount in got.container.mounts} == {STORE_INSIDE, COMPILED_INSIDE}


def test_an_embedded_launch_is_unchanged() -> None:
    planned = proposal("smollm2")
    assert staged(planned, HOME, STORE) is planned.plan.launch


def test_a_pinned_commit_is_passed_to_the_engine() -> None:
    planned = proposal("qwen3.6-35b-a3b-nvfp4")
    assert planned.model is not None
    pinned = replace(planned, model=replace(planned.model, revision="a" * 40))
    assert staged(pinned, HOME, STORE).flags["revision"] == "a" * 40
    assert "--revision" in render.docker_argv(staged(pinned, HOME, STORE)).argv
    assert "revision" not in staged(planned, HOME, STORE).flags


def test_folders_that_no_image_uses_with_this_driver_are_stale() -> None:
    images = [Image("vllm", "0.28.0", reference="v:0.28"), Image("llamacpp", "1", package="x==1")]
    current = cache_name("vllm", "0.28.0", "v:0.28", OLD)
    older_driver = cache_name("vllm", "0.28.0", "v:0.28", NEW)
    older_image = cache_name("vllm", "0.24.0", "v:0.24", OLD)
    planned = [current, older_driver, older_image, "what-is-this"]
    assert stale(planned, images, OLD) == (older_driver, older_image, "what-is-this")
    assert stale(planned, images, None) == (older_image, "what-is-this")
    assert stale(planned, [], OLD) == tuple(planned)
