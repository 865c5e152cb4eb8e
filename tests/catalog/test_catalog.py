from importlib.resources import files

import pytest

from firesteel import engines
from firesteel.catalog import Catalog, contain, find, launch, overlay, shipped
from firesteel.errors import UsageError
from firesteel.launch import Ask, Container, Launch, Mount
from firesteel.sheets import BadSheet

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
IMAGE = "images:\n  ours: {reference: 'acme/vllm:1', engine: vllm, sm: ['12.1']}\n"


def test_what_ships() -> None:
    assert set(CATALOG.recipes) == {
        "smollm2",
        "qwen3.6-35b-a3b-nvfp4",
        "gpt-oss-120b-vllm",
        "gpt-oss-120b-llamacpp",
        "qwen3-coder-next-fp8",
        "qwen3-coder-next-q4",
    }
    assert {recipe.model for recipe in CATALOG.recipes.values()} == set(CATALOG.models)
    assert shipped() is CATALOG


def test_files_stand_where_their_names_say() -> None:
    data = files("firesteel") / "data"
    for model in CATALOG.models:
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
        ("gpt-oss-120b", ("gpt-oss-120b-llamacpp", "gpt-oss-120b-vllm")),
        ("GPT-OSS-120B-vLLM", ("gpt-oss-120b-vllm",)),
        ("openai/gpt-oss-120b", ("gpt-oss-120b-vllm",)),
        ("ggml-org/gpt-oss-120b-GGUF", ("gpt-oss-120b-llamacpp",)),
        ("ggml-org/gpt-oss-120b-gguf:mxfp4", ("gpt-oss-120b-llamacpp",)),
        ("gpt-oss-120b-GGUF", ("gpt-oss-120b-llamacpp",)),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", ("qwen3.6-35b-a3b-nvfp4",)),
        ("qwen3.6-35b-a3b", ("qwen3.6-35b-a3b-nvfp4",)),
        ("Qwen3-Coder-Next", ("qwen3-coder-next-fp8", "qwen3-coder-next-q4")),
        ("Qwen3-Coder-Next-FP8", ("qwen3-coder-next-fp8",)),
        ("unsloth/Qwen3-Coder-Next-GGUF:UD-Q4_K_XL", ("qwen3-coder-next-q4",)),
    ],
)
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
    return launch(catalog, recipe, ask or Ask())


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
    assert engines.served(made) == engines.Served(8192, 3)


def test_an_image_that_starts_nothing_is_told_the_program() -> None:
    recipe = RECIPE.replace("vllm-openai-0.24", "ngc")
    image = "images:\n  ngc: {reference: 'nvcr.io/nvidia/vllm:26.10-py3'}\n"
    made = start("mine", catalog=overlay(CATALOG, [("images.yaml", image), ("recipes/mine.yaml", recipe)]))
    assert made.version == "0.31.0"
    assert made.container is not None
    assert made.container.program == ("vllm", "serve")


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
        ("r/models/acme/x.yaml", MODEL.replace("max_context: 128", "max_context: far"),
         "r/models/acme/x.yaml:11: `architecture.max_context`"),
        ("r/images.yaml", "images:\n  a: {reference: b}\n", "r/images.yaml:2: `images.a`: needs"),
        ("r/images.yaml", "images: [", "r/images.yaml:"),
    ],
)  # fmt: skip
def test_mistakes_have_a_file_and_a_line(path: str, text: str, says: str) -> None:
    with pytest.raises(BadSheet) as error:
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
    with pytest.raises(BadSheet, match=f"{other}:1: {what} is also in {one}"):
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
    boxed = contain(Launch("x", model, "llamacpp"), CATALOG.images.named["llamacpp-cuda13"])
    assert boxed.model == inside
    assert boxed.container is not None
    assert boxed.container.mounts == (mount,)


@pytest.mark.parametrize(
    "path", ["recipes/...yaml", "recipes/a b;c.yaml", "recipes/-rm.yaml", "recipes/ü.yaml"]
)
def test_a_name_that_no_command_could_take(path: str) -> None:
    with pytest.raises(BadSheet) as caught:
        overlay(CATALOG, [(path, RECIPE)])
    assert caught.value.what.startswith(f"{path}:1: ") and "cannot be a recipe's name" in caught.value.what
    assert caught.value.next == f"rename {path}"


@pytest.mark.parametrize("name", ["Mine", "0.5b", "a_b-c.d"])
def test_names_that_recipes_may_have(name: str) -> None:
    assert name in overlay(CATALOG, [(f"recipes/{name}.yaml", RECIPE)]).recipes


def test_a_relative_file_and_a_host_in_a_container() -> None:
    given = Launch("x", "x.GGUF", "llamacpp", flags={"host": "127.0.0.1", "ctx-size": "1"})
    boxed = contain(given, CATALOG.images.named["llamacpp-cuda13"])
    assert (boxed.model, boxed.flags, boxed.env) == ("/models/x.GGUF", {"ctx-size": "1"}, {})
    assert boxed.container is not None
    assert boxed.container.mounts == (Mount(".", "/models", read_only=True),)
    hub = contain(Launch("x", "org/x:Q8_0", "llamacpp"), CATALOG.images.named["llamacpp-cuda13"])
    assert hub.env == {"LLAMA_CACHE": "/hub/hub"}


def test_a_model_of_the_hub_keeps_its_name() -> None:
    boxed = contain(Launch("x", "acme/x", "vllm"), CATALOG.images.named["vllm-openai-0.28"])
    assert (boxed.model, boxed.container is not None) == ("acme/x", True)
