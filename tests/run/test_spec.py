"""What a container finds after a pull: the store, the caches of its own version, and no network."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel import render
from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import Image
from firesteel.catalog.launches import in_container
from firesteel.edge.home import Home
from firesteel.engines.schema.releases import find_schema
from firesteel.errors import FiresteelError
from firesteel.facts.host.hardware import Gpu, hardware, idle_host
from firesteel.launch import (
    COMPILE_CACHE_ENV,
    COMPILED_INSIDE,
    HUB_CACHE_INSIDE,
    OFFLINE_ENV,
    Ask,
    EngineName,
    Launch,
    Mount,
)
from firesteel.planner.propose import Proposal, propose
from firesteel.run.spec import _container_steps, cache_name, staged_launch, unused_folders
from firesteel.values import replace


def test_a_host_for_which_there_is_no_image_is_told_what_runs_there() -> None:
    with pytest.raises(FiresteelError, match="no container image is known that runs s4 on this host") as told:
        _container_steps(Launch("s4", "/data/s4", "vllm"), "/data/s4")
    assert told.value.next == (
        "firesteel up /data/s4 --native, with an engine of this host: firesteel engine list"
    )


HOME = Home(Path("/fs"))
STORE = "/data/hub"
OLD, NEW = "580.95.05", "590.10.01"


def proposal(name: str, driver: str = OLD) -> Proposal:
    gpu = Gpu("NVIDIA GB10", driver, "12.1")
    spark = replace(idle_host(hardware("gb10")), gpus=(gpu,))
    return propose(shipped(), spark, Ask(model=name))[0]


def mounts(found: Proposal) -> dict[str, Mount]:
    box = staged_launch(found, HOME, STORE).container
    assert box is not None
    return {mount.target: mount for mount in box.mounts}


@pytest.mark.parametrize("name", ["qwen3.6-35b-a3b-nvfp4", "gpt-oss-120b-llamacpp"])
def test_the_store_is_where_the_engine_looks_and_cannot_be_written(name: str) -> None:
    found = staged_launch(proposal(name), HOME, STORE)
    inside = found.env.get("LLAMA_CACHE") or f"{found.env['HF_HOME']}/hub"
    assert mounts(proposal(name))[inside] == Mount(STORE, HUB_CACHE_INSIDE, read_only=True)
    assert len([target for target in mounts(proposal(name)) if target.startswith("/hub")]) == 1
    assert OFFLINE_ENV[found.engine].items() <= found.env.items()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_everything_compiled_lands_in_the_mount(engine: EngineName) -> None:
    assert all(where.startswith(COMPILED_INSIDE) for where in COMPILE_CACHE_ENV[engine].values())


def test_variables_are_ones_that_the_engines_read() -> None:
    """Held against what was read out of the engines' own releases."""
    vllm = find_schema("vllm", "0.28.0")
    assert vllm is not None and "VLLM_CACHE_ROOT" in vllm.variables
    llamacpp = find_schema("llamacpp", "11549")
    assert llamacpp is not None and OFFLINE_ENV["llamacpp"].keys() & llamacpp.variables.keys()


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


def test_what_the_recipe_says_stands() -> None:
    found = proposal("qwen3.6-35b-a3b-nvfp4")
    launch = replace(found.plan.launch, env={**found.plan.launch.env, "VLLM_CACHE_ROOT": "/mine"})
    mine = replace(found, plan=replace(found.plan, launch=launch))
    assert staged_launch(mine, HOME, STORE).env["VLLM_CACHE_ROOT"] == "/mine"


def test_packages_come_from_what_was_pulled() -> None:
    found = staged_launch(proposal("phi-4-multimodal-nvfp4"), HOME, STORE)
    assert found.env["PIP_NO_INDEX"] == "1" and found.env["PIP_FIND_LINKS"] == "/wheels"
    assert mounts(proposal("phi-4-multimodal-nvfp4"))["/wheels"].read_only


def test_a_checkpoint_on_disk_needs_no_store() -> None:
    found = proposal("qwen3.6-35b-a3b-nvfp4")
    box = found.plan.launch.container
    assert box is not None
    on_disk = replace(box, mounts=(Mount("/my/model", "/models/model", read_only=True),))
    launch = replace(found.plan.launch, container=on_disk)
    got = staged_launch(replace(found, plan=replace(found.plan, launch=launch)), HOME, STORE)
    assert got.container is not None
    assert {mount.target for mount in got.container.mounts} == {"/models/model", COMPILED_INSIDE}
    assert "HF_HUB_OFFLINE" not in got.env


def test_a_file_of_the_store_is_reached_through_the_whole_store() -> None:
    """In a snapshot there are links alone; the folder by itself would be full of links to nowhere."""
    found = proposal("gpt-oss-120b-llamacpp")
    snapshot = f"{STORE}/models--o--n/snapshots/{'c' * 40}"
    image = shipped().images.named[found.recipe.image] if found.recipe else None
    assert image is not None
    bare = replace(found.plan.launch, model=f"{snapshot}/n-Q4_0.gguf", container=None)
    launch = in_container(bare, image)
    got = staged_launch(replace(found, model=None, plan=replace(found.plan, launch=launch)), HOME, STORE)
    assert got.model == f"{HUB_CACHE_INSIDE}/models--o--n/snapshots/{'c' * 40}/n-Q4_0.gguf"
    assert got.container is not None
    assert {mount.target for mount in got.container.mounts} == {HUB_CACHE_INSIDE, COMPILED_INSIDE}


def test_an_embedded_launch_is_left_alone() -> None:
    found = proposal("smollm2")
    assert staged_launch(found, HOME, STORE) is found.plan.launch


def test_a_pinned_commit_is_said_to_the_engine() -> None:
    found = proposal("qwen3.6-35b-a3b-nvfp4")
    assert found.model is not None
    pinned = replace(found, model=replace(found.model, revision="a" * 40))
    assert staged_launch(pinned, HOME, STORE).flags["revision"] == "a" * 40
    assert "--revision" in render.docker_argv(staged_launch(pinned, HOME, STORE)).argv
    assert "revision" not in staged_launch(found, HOME, STORE).flags


def test_stale_is_what_no_image_reads_on_this_driver() -> None:
    images = [Image("vllm", "0.28.0", reference="v:0.28"), Image("llamacpp", "1", package="x==1")]
    current = cache_name("vllm", "0.28.0", "v:0.28", OLD)
    older_driver = cache_name("vllm", "0.28.0", "v:0.28", NEW)
    older_image = cache_name("vllm", "0.24.0", "v:0.24", OLD)
    found = [current, older_driver, older_image, "what-is-this"]
    assert unused_folders(found, images, OLD) == (older_driver, older_image, "what-is-this")
    assert unused_folders(found, images, None) == (older_image, "what-is-this")
    assert unused_folders(found, [], OLD) == tuple(found)
