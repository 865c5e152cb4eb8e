"""What ships, what a user lays over it, and recipes by others: all but flags is refused there."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from firesteel.catalog.catalog import Catalog, find_recipes, max_context, overlay, shipped, with_shelf
from firesteel.catalog.image import Images
from firesteel.catalog.launches import from_recipe
from firesteel.catalog.recipe import dump_recipe, read_recipe
from firesteel.edge.home import Home
from firesteel.errors import InvalidFile, UsageError
from firesteel.launch import Ask, Container, Mount
from firesteel.planner.rendered import catalog_patch
from firesteel.values import YamlFile, replace
from firesteel.workspace import Workspace
from tests.needs import needs_programs

CATALOG = shipped()

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
    (recipe,) = find_recipes(overlay(fresh, []), "gpt-oss-20b")
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
    assert tuple(recipe.name for recipe in find_recipes(CATALOG, name)) == found


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
        find_recipes(CATALOG, name)
    assert says in str(error.value)
    assert error.value.next == "firesteel models"


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
    assert [recipe.name for recipe in find_recipes(mine, "tiny")] == ["tiny-vllm"]
    assert mine.models["acme/tiny"].gated
    assert from_recipe(mine, mine.recipes["tiny-vllm"], Ask()).container == Container(
        "acme/vllm:1",
        program=("vllm", "serve"),
        gpus="all",
        publish=("127.0.0.1:8000:8000",),
        mounts=(Mount("~/.cache/huggingface", "/hub"),),
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


def test_a_recipe_may_allow_what_the_card_says() -> None:
    recipe = CATALOG.recipes["nemotron-3-nano-nvfp4-1m"]
    model = CATALOG.models[recipe.model]
    assert max_context(recipe, model) == 1_000_000 > model.architecture.max_context
    plain = CATALOG.recipes["nemotron-3-nano-nvfp4-plain"]
    assert max_context(plain, model) == model.architecture.max_context


GOOD = """\
title: gpt-oss-20b, by somebody
model: openai/gpt-oss-20b
engine: vllm
image: vllm-openai-0.28
serves: {context: 8192, users: 2}
flags:
  max-num-batched-tokens: {value: "4096", why: small steps}
  speculative-config: {value: {method: ngram, num_speculative_tokens: 2}, why: repeats}
status: measured
sources: [{url: https://example.org/r, seen: 2026-11-16}]
"""
HOSTILE = {
    "adapter": "adapters: {evil: evil/lora}",
    "assets": "assets: [{kind: package, name: evil, why: x}]",
    "file asset": "assets: [{kind: file, name: evil/repo, path: a.py, target: /plugins/a.py, why: x}]",
    "preload": "env: {LD_PRELOAD: {value: /tmp/evil.so, why: x}}",
    "any variable": "env: {VLLM_PLUGINS: {value: evil, why: x}}",
    "a long note": f"note: {'a' * 3000}",
    "an escape": 'note: "\\e]0;owned\\a"',
    "requests that name a file": "requests: {per_request: {guided_grammar: /etc/passwd}}",
    "requests to another model": "requests: {per_request: {model: other, n: 10000}}",
    "requests with an escape": 'requests: {per_request: {"\\e[2J": 1}}',
    "requests with more in them": "requests: {per_request: {chat_template_kwargs: {thinking: {a: 1}}}}",
    "a name of a setting with an escape": 'requests: {instead: {"\\e[2J": {top_k: 1}}}',
    "a system prompt of the host": "requests: {system_prompt: ../../etc/passwd}",
    "a fallback that is none": "fallback: ../../etc/passwd",
    "a thousand Sparks": "sparks: 1000",
}
FLAGS = {
    "remote code": "trust-remote-code: {value: true, why: x}",
    "a plugin": "tool-parser-plugin: {value: evil.py, why: x}",
    "middleware": "middleware: {value: evil.Middleware, why: x}",
    "files of the host": "allowed-local-media-path: {value: /, why: x}",
    "all addresses": "host: {value: 0.0.0.0, why: x}",
    "a worker class": "worker-cls: {value: evil.Worker, why: x}",
    "a path": "moe-backend: {value: /tmp/evil, why: x}",
    "a path upward": "moe-backend: {value: a..b, why: x}",
    "a variable": "moe-backend: {value: $HOME, why: x}",
    "a command": "moe-backend: {value: marlin; rm -rf ~, why: x}",
    "a substitution": "moe-backend: {value: '$(reboot)', why: x}",
    "two words": "moe-backend: {value: marlin --trust-remote-code, why: x}",
    "another flag": "moe-backend: {value: --trust-remote-code, why: x}",
    "an address": "moe-backend: {value: https://evil.example, why: x}",
}
JSON_KEYS = {
    "a draft from anywhere": "{method: eagle, model: evil/pickle, num_speculative_tokens: 2}",
    "a path in JSON": "{method: /tmp/x, num_speculative_tokens: 2}",
    "JSON in JSON": "{method: {model: evil/pickle}, num_speculative_tokens: 2}",
}


def refused(text: str, name: str = "stranger") -> str | None:
    catalog, refusals = with_shelf(shipped(), [(f"others/{name}.yaml", text), ("others/fine.yaml", GOOD)])
    assert "fine" in catalog.recipes, "one bad recipe must not hide the others"
    if not refusals:
        assert name in catalog.recipes
        return None
    assert name not in catalog.recipes or name in shipped().recipes
    return refusals[0].why


def test_flags_alone_are_taken_and_count_as_untried() -> None:
    assert refused(GOOD) is None
    recipe = with_shelf(shipped(), [("others/a.yaml", GOOD)])[0].recipes["a"]
    assert recipe.status == "untried" and recipe.title.endswith("(by others)")


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_more_than_flags_is_refused(line: str) -> None:
    assert refused(GOOD + line + "\n")


@pytest.mark.parametrize("line", FLAGS.values(), ids=FLAGS)
def test_flags_that_reach_further_are_refused(line: str) -> None:
    why = refused(GOOD.replace("flags:\n", f"flags:\n  {line}\n"))
    assert why and why.startswith("--")


@pytest.mark.parametrize(
    "flag",
    [
        "enable-custom-logit-processor", "forward-hooks", "custom-weight-loader", "json-model-override-args",
        "speculative-draft-model-path", "tool-server", "crash-dump-folder", "mem-fraction-static",
        "max-total-tokens", "load-format", "chat-template", "admin-api-key",
    ],
)  # fmt: skip
def test_flags_of_sglang_that_reach_further_are_refused(flag: str) -> None:
    flags = f"flags:\n  {flag}: {{value: x, why: x}}\n  sleep-on-idle: {{value: true, why: x}}\n"
    head, tail = GOOD.split("flags:\n")[0], "status: measured" + GOOD.split("status: measured")[1]
    base = head.replace("engine: vllm", "engine: sglang").replace("vllm-openai-0.28", "sglang-0.5.21")
    assert refused(base + flags.replace(f"  {flag}: {{value: x, why: x}}\n", "") + tail) is None
    assert f"--{flag} is not among the flags" in str(refused(base + flags + tail))


@pytest.mark.parametrize("value", JSON_KEYS.values(), ids=JSON_KEYS)
def test_json_values_are_looked_into(value: str) -> None:
    assert refused(GOOD.replace("{method: ngram, num_speculative_tokens: 2}", value))


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("openai/gpt-oss-20b", "evil/model"),
        ("vllm-openai-0.28", "evil/image:latest"),
        ("status: measured", "status: &a [*a]"),
        ("engine: vllm", "engine: bash"),
        (GOOD, "a: " * 100_000),
        (GOOD, "\x00"),
    ],
    ids=["model", "image", "alias", "engine", "depth", "bytes"],
)
def test_files_that_are_no_such_recipe_are_refused(was: str, now: str) -> None:
    assert refused(GOOD.replace(was, now))


@pytest.mark.parametrize("name", ["gpt-oss-20b", "GPT-OSS-20B", "-rm", "a b", "x;y"])
def test_names_that_are_taken_or_no_names_are_refused(name: str) -> None:
    assert refused(GOOD, name)
    assert shipped().recipes["gpt-oss-20b"].title != "gpt-oss-20b, by somebody"


def test_links_hidden_folders_and_large_files_are_not_read(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    (home.others / ".git").mkdir(parents=True)
    (home.others / "good.yaml").write_text(GOOD)
    (home.others / ".git" / "hook.yaml").write_text(GOOD)
    (home.others / "large.yaml").write_text(GOOD + "#" * 100_000)
    secret = tmp_path / "secret.yaml"
    secret.write_text("token: abc")
    (home.others / "link.yaml").symlink_to(secret)
    assert [Path(path).name for path, _ in home.others_files()] == ["good.yaml"]
    workspace = Workspace(home)
    assert "good" in workspace.catalog.recipes and workspace.refused_recipes == ()


@pytest.mark.parametrize("name", sorted(shipped().recipes))
def test_every_recipe_is_written_and_read_back_as_itself(name: str) -> None:
    recipe = shipped().recipes[name]
    assert replace(read_recipe(name, YamlFile.parse("x", dump_recipe(recipe))), path=recipe.path) == recipe


@needs_programs("git")
def test_a_patch_adds_the_recipe_to_the_catalog(tmp_path: Path) -> None:
    recipe = shipped().recipes["gpt-oss-20b"]
    text = dump_recipe(recipe)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(
        ["git", "apply", "-"], cwd=tmp_path, check=True, input=catalog_patch(recipe, text).encode()
    )
    (added,) = tmp_path.rglob("gpt-oss-20b.yaml")
    assert added.read_text() == text
    assert added.relative_to(tmp_path) == Path("src/firesteel/data", recipe.path)
