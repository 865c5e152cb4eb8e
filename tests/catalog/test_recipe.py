"""Recipes: read and written, and their request settings, which every way that a request can take carries."""

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.catalog.recipe import Asset, Recipe, RecipeRequests, Setting, read_recipe
from firesteel.engines.engine import TEMPLATE_FLAGS, argv, merged, parse_argv, size_flags
from firesteel.engines.schema.releases import release_ranges
from firesteel.errors import InvalidFile
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask, EngineName, FlagValue
from firesteel.planner.propose import propose
from firesteel.values import YamlFile

RECIPES = shipped().recipes
MEMORY_FLAGS = {"gpu-memory-utilization", "kv-cache-memory-bytes", "mem-fraction-static"}

GOOD = """\
title: Tiny
model: acme/tiny
engine: vllm
image: vllm-openai-0.28
serves: {context: 1024, users: 2}
flags:
  kv-cache-dtype: {value: fp8, why: halves it}
  enable-auto-tool-choice: {value: true, why: agents}
  async-scheduling: {value: false, why: a known workaround}
  version-like: {value: 0.20, why: stays text}
  speculative-config: {value: {method: mtp, k: 3, deep: {on: true, list: [1, a]}}, why: fast}
env:
  VLLM_X: {value: "1", why: needed}
assets:
  - {kind: file, name: acme/tiny, path: parser.py, target: /plugins/parser.py, why: no part of it}
  - {kind: package, name: "scipy>=1.15", why: imported}
  - {kind: draft, name: acme/draft, bytes: 12, why: drafts}
requests: {temperature: 0.6, per_request: {reasoning_effort: high}}
quality: [{suite: S, baseline: 2.0, this: 1.5, source: {url: https://example.org/q, seen: 2026-11-15}}]
status: untried
corrects: [{was: old, why: new, source: {url: https://example.org/c, seen: 2026-11-15}}]
sources: [{url: https://example.org/r, seen: 2026-11-15}]
"""


def good(was: str = "", now: str = "") -> Recipe:
    assert was in GOOD
    return read_recipe("tiny", YamlFile.parse("recipes/tiny.yaml", GOOD.replace(was, now, 1)))


def test_flag_values_take_their_kind() -> None:
    values = {flag: setting.value for flag, setting in good().flags.items()}
    assert values == {
        "kv-cache-dtype": "fp8",
        "enable-auto-tool-choice": True,
        "async-scheduling": False,
        "version-like": "0.20",
        "speculative-config": {"method": "mtp", "k": 3, "deep": {"on": True, "list": [1, "a"]}},
    }


def test_the_rest_of_a_recipe() -> None:
    recipe = good()
    assert (recipe.name, recipe.path, recipe.context, recipe.users, recipe.sparks) == (
        "tiny",
        "recipes/tiny.yaml",
        1024,
        2,
        1,
    )
    assert recipe.env["VLLM_X"].value == "1"
    assert recipe.requests.body == {"temperature": 0.6, "reasoning_effort": "high"}
    assert recipe.quality[0].this == 1.5
    assert recipe.corrects[0].was == "old"
    assert recipe.assets == (
        Asset("file", "acme/tiny", "no part of it", "parser.py", "/plugins/parser.py"),
        Asset("package", "scipy>=1.15", "imported"),
        Asset("draft", "acme/draft", "drafts", bytes=12),
    )


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("engine: vllm", "engine: vlm", "tiny.yaml:3: `engine`"),
        ("context: 1024", "context: long", "tiny.yaml:5: `serves.context`"),
        ("users: 2", "users: 0", "tiny.yaml:5: `serves.users`"),
        ("{value: fp8, why: halves it}", "fp8", "tiny.yaml:7: `flags.kv-cache-dtype`"),
        (", why: halves it", "", "tiny.yaml:7: `flags.kv-cache-dtype.why`: is missing"),
        ("kv-cache-dtype:", "kv_cache_dtype:", "tiny.yaml:7: `flags.kv_cache_dtype"),
        (
            "kv-cache-dtype:",
            "max-model-len:",
            "tiny.yaml:7: `max-model-len` is derived from `serves`; leave it out",
        ),
        (
            "agents}",
            "agents}\n  kv-cache-dtype: {value: x, why: y}",
            "tiny.yaml:9: `kv-cache-dtype` is given twice",
        ),
        ("kind: file", "kind: folder", "tiny.yaml:15: `assets.0.kind`"),
        (", path: parser.py", "", "tiny.yaml:15: `assets.0`: a file needs its `path`"),
        ('"scipy>=1.15"', '"scipy; rm -rf"', "tiny.yaml:16: `assets.1.name`"),
        ('"scipy>=1.15"', "scipy, target: /x", "tiny.yaml:16: `assets.1`: a package has neither"),
        ("/plugins/parser.py", "/plugins/$(x)", "tiny.yaml:15: `assets.0.target`"),
        ("parser.py, target", "../parser.py, target", "tiny.yaml:15: `assets.0`: `..` is not allowed"),
        ("status: untried", "status: perfect", "tiny.yaml:20: `status`"),
        (
            "sources: [{url: https://example.org/r, seen: 2026-11-15}]",
            "sources: []",
            "tiny.yaml:22: `sources`",
        ),
        ("title: Tiny", "name: Tiny", "tiny.yaml:1: `name`: no such key"),
    ],
)
def test_mistakes_have_a_line(was: str, now: str, says: str) -> None:
    with pytest.raises(InvalidFile) as error:
        good(was, now)
    assert says in str(error.value)


def test_the_error_for_a_missing_flag_value_explains_true() -> None:
    with pytest.raises(InvalidFile, match="write true for a flag that takes none"):
        YamlFile("x", {"value": None, "why": "x"}, dict).convert(Setting)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_shipped_recipes_leave_memory_to_the_plan(recipe: Recipe) -> None:
    assert not MEMORY_FLAGS & recipe.flags.keys()
    assert not size_flags(recipe.engine, 1, 1).keys() & recipe.flags.keys()


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_shipped_recipes_say_why(recipe: Recipe) -> None:
    for setting in (*recipe.flags.values(), *recipe.env.values()):
        assert len(setting.why) > 15
    assert all(source.seen.year == 2026 for source in recipe.sources)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_shipped_recipes_have_nothing_that_their_engine_dropped(recipe: Recipe) -> None:
    """Flags and variables that guides still carry and that these versions refuse or ignore."""
    gone = {
        "speculative-disable-by-batch-size",
        "swap-space",
        "no-mmap",
        "draft-max",
        "jinja",
        "quantization",
    }
    assert not gone & recipe.flags.keys()
    assert not [name for name in recipe.env if "MOE" in name or name == "VLLM_ATTENTION_BACKEND"]


TOO_LARGE = "llama-3.1-405b"
"""In the catalog to be refused."""


@pytest.mark.parametrize("name", RECIPES)
def test_shipped_recipes_fit_a_spark_and_break_no_rule(name: str) -> None:
    (best,) = propose(shipped(), idle_host(hardware("gb10")), Ask(name))
    assert best.plan.fits == (name != TOO_LARGE)
    if name == TOO_LARGE:
        assert best.plan.memory.needed.low > 2 * best.plan.memory.budget_bytes
    else:
        assert not [finding for finding in best.findings if finding.level != "note"]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_reported_recipe_has_a_source(recipe: Recipe) -> None:
    """A page about the model alone is no report; and what nobody ran on this many Sparks is untried."""
    if recipe.status != "untried":
        assert any(not source.url.startswith("https://huggingface.co/") for source in recipe.sources)
        assert recipe.sparks == 1


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_first_score_has_one_to_hold_it_against(recipe: Recipe) -> None:
    """The list of models shows the first as `this of baseline`."""
    assert not recipe.quality or recipe.quality[0].baseline is not None


def test_a_gated_model_is_given_a_token() -> None:
    for recipe in RECIPES.values():
        if shipped().models[recipe.model].gated:
            assert recipe.env["HF_TOKEN"].value == "$HF_TOKEN", recipe.name


ASKED = {name: recipe for name, recipe in shipped().recipes.items() if recipe.requests}


def settings() -> RecipeRequests:
    return RecipeRequests(
        temperature=0.6,
        top_p=0.95,
        top_k=40,
        min_p=0.01,
        presence_penalty=1.5,
        per_request={"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "high"},
        for_tools={"temperature": 0.2},
    )


def test_the_body_of_a_request_and_of_one_with_tools() -> None:
    body = settings().body
    assert body == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 40,
        "min_p": 0.01,
        "presence_penalty": 1.5,
        "chat_template_kwargs": {"enable_thinking": True},
        "reasoning_effort": "high",
    }
    assert settings().tool_body == {**body, "temperature": 0.2}
    assert not RecipeRequests()


@pytest.mark.parametrize(
    ("engine", "version", "flags"),
    [
        (
            "vllm",
            "0.24.0",
            {
                "override-generation-config": {"temperature": 0.6, "top_p": 0.95, "top_k": 40, "min_p": 0.01},
                "default-chat-template-kwargs": {"enable_thinking": True},
            },
        ),
        (
            "vllm",
            "0.13.0",
            {"override-generation-config": {"temperature": 0.6, "top_p": 0.95, "top_k": 40, "min_p": 0.01}},
        ),
        (
            "llamacpp",
            None,
            {
                "temp": "0.6",
                "top-p": "0.95",
                "top-k": "40",
                "min-p": "0.01",
                "presence-penalty": "1.5",
                "chat-template-kwargs": {"enable_thinking": True},
            },
        ),
        ("sglang", "0.5.16", {"default-chat-template-kwargs": {"enable_thinking": True}}),
        ("sglang", "0.5.15", {}),
    ],
)
def test_flags_by_engine_and_release(
    engine: EngineName, version: str | None, flags: dict[str, object]
) -> None:
    assert settings().launch_flags(engine, version) == flags


@pytest.mark.parametrize("engine", TEMPLATE_FLAGS)
def test_template_flags_begin_where_the_engines_sources_say(engine: EngineName) -> None:
    flag, releases = TEMPLATE_FLAGS[engine]
    ((first, last),) = release_ranges(engine, f"--{flag}")
    assert (releases, last) == (f">={first}", None)


def test_a_recipes_own_flag_goes_before_its_request_settings() -> None:
    own: dict[str, FlagValue] = {
        "override-generation-config": {"max_new_tokens": None, "top_p": 1.0},
        "x": "y",
    }
    defaults: dict[str, FlagValue] = {"override-generation-config": {"top_p": 0.5, "top_k": 3}, "temp": "1"}
    assert merged(defaults, own) == {
        "override-generation-config": {"top_p": 1.0, "top_k": 3, "max_new_tokens": None},
        "x": "y",
        "temp": "1",
    }


@pytest.mark.parametrize("name", ASKED)
def test_every_recipe_starts_with_its_request_settings(name: str) -> None:
    """The argv that `up` and `render` use, read back."""
    (proposal,) = propose(shipped(), idle_host(hardware("gb10")), Ask(name))
    launch = proposal.plan.launch
    read = parse_argv(launch.engine, argv(launch), contained=True).flags
    for flag, value in ASKED[name].requests.launch_flags(launch.engine, launch.version).items():
        assert read[flag] == value
    assert ASKED[name].requests.why and ASKED[name].requests.source


@pytest.mark.parametrize("name", ASKED)
def test_no_recipe_says_its_request_settings_twice(name: str) -> None:
    recipe = ASKED[name]
    version = shipped().images.named[recipe.image].version
    assert not recipe.requests.launch_flags(recipe.engine, version).keys() & recipe.flags.keys()
