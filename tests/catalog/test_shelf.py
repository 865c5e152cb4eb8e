"""Recipes by strangers: what asks for more than flags is refused, and the rest of the shelf is still read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.catalog.recipe import read_recipe
from firesteel.catalog.recipe_text import dump_recipe
from firesteel.catalog.shelf import with_shelf
from firesteel.edge.files.home import Home, shelf_files
from firesteel.proposals.new_recipe import catalog_patch
from firesteel.values import YamlFile, replace
from firesteel.workspace import Workspace
from tests.needs import needs_programs

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
    assert [Path(path).name for path, _ in shelf_files(home)] == ["good.yaml"]
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
