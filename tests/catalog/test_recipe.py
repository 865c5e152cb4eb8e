import pytest

from firesteel.catalog.catalog import shipped
from firesteel.catalog.recipe import Asset, Recipe, Setting, read_recipe
from firesteel.engines.engine import size_flags
from firesteel.errors import InvalidFile
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask
from firesteel.proposals import propose
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
