"""Configuration of clients: their settings, and user files that keep everything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from firesteel.errors import UsageError
from firesteel.render import client_config
from firesteel.render.client_config import apply_edit, merge_settings, render_settings
from firesteel.render.clients import (
    ClientEndpoint,
    ClientSettings,
    Option,
    SettingEdit,
    client_names,
    keepalive_events,
    load_client,
    settings,
)

PLAIN = ClientEndpoint("http://127.0.0.1:8000/v1", "small")
FULL = ClientEndpoint(
    "https://spark.example/v1",
    "coder",
    131_072,
    tools=True,
    images=True,
    reasoning=True,
    key="FIRESTEEL_API_KEY",
)


def rendered(name: str, endpoint: ClientEndpoint) -> Any:
    """As the client itself would read it."""
    text = render_settings(settings(name, endpoint), load_client(name).format)
    readers: dict[str, Callable[[str], Any]] = {
        "json": json.loads,
        "toml": tomllib.loads,
        "yaml": yaml.safe_load,
    }
    return readers[load_client(name).format](text)


def test_opencode_as_the_seed_has_it() -> None:
    """The facts of seed document 000: a server behind MagicDNS, 131,072 tokens, answers of 16,384."""
    seed = ClientEndpoint(
        "http://stpetersburg-llama-cpp/v1", "Qwen3-Coder-Next", 131_072, provider="llama-cpp"
    )
    assert rendered("opencode", seed) == {
        "$schema": "https://opencode.ai/config.json",
        "model": "llama-cpp/Qwen3-Coder-Next",
        "provider": {
            "llama-cpp": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": "http://stpetersburg-llama-cpp/v1"},
                "models": {
                    "Qwen3-Coder-Next": {
                        "name": "Qwen3-Coder-Next",
                        "limit": {"context": 131072, "output": 16384},
                    }
                },
            }
        },
    }


@pytest.mark.parametrize(("context", "output"), [(None, None), (131_072, 16_384), (8192, 2048), (3, 1)])
def test_the_longest_answer(context: int | None, output: int | None) -> None:
    assert ClientEndpoint("http://x/v1", "m", context).output == output


def test_known_facts_are_written() -> None:
    model = rendered("opencode", FULL)["provider"]["firesteel"]["models"]["coder"]
    assert model["tool_call"] and model["reasoning"] and model["attachment"]
    assert model["modalities"]["input"] == ["text", "image"]
    env = rendered("claude-code", FULL)["env"]
    assert env["ANTHROPIC_BASE_URL"] == "https://spark.example", "Claude Code adds /v1/messages itself"
    assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "131072"
    assert env["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "coder", "background work asks for a model that is there"
    codex = rendered("codex", FULL)
    assert codex["model_provider"] == "firesteel" and codex["model_context_window"] == 131072
    assert codex["model_providers"]["firesteel"]["wire_api"] == "responses"
    (model,) = rendered("continue", FULL)["models"]
    assert model["capabilities"] == ["tool_use", "image_input"]
    assert model["defaultCompletionOptions"] == {"contextLength": 131072, "maxTokens": 16384}
    zed = rendered("zed", FULL)["language_models"]["openai_compatible"]["firesteel"]
    assert zed["available_models"][0]["max_tokens"] == 131072
    assert zed["available_models"][0]["capabilities"]["images"] is True


def test_unknown_facts_are_left_out() -> None:
    assert rendered("opencode", PLAIN)["provider"]["firesteel"]["models"]["small"] == {"name": "small"}
    assert not any("TOKENS" in name for name in rendered("claude-code", PLAIN)["env"])
    assert "model_context_window" not in rendered("codex", PLAIN)
    (model,) = rendered("continue", PLAIN)["models"]
    assert "capabilities" not in model and "defaultCompletionOptions" not in model
    assert any("is unknown" in note for note in settings("zed", PLAIN).notes)


@pytest.mark.parametrize("name", client_names())
def test_a_key_is_named_and_never_written(name: str) -> None:
    text = render_settings(settings(name, FULL), load_client(name).format)
    output = text + " ".join(settings(name, FULL).notes)
    assert "FIRESTEEL_API_KEY" in output
    assert "FIRESTEEL_API_KEY" not in render_settings(settings(name, PLAIN), load_client(name).format)


@pytest.mark.parametrize("name", client_names())
def test_every_client_has_its_source(name: str) -> None:
    about = load_client(name)
    assert about.sources and (about.format == "env") == (about.folder is None)


def test_openais_own_client_takes_it() -> None:
    """The lines are run by a shell, and the package message what it made of them."""
    program = "import openai; c = openai.OpenAI(); print(c.base_url, c.api_key)"
    script = render_settings(settings("openai", FULL), "env") + f'"{sys.executable}" -c "{program}"\n'
    done = subprocess.run(
        ["sh", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "FIRESTEEL_API_KEY": "the-key"},
    )
    assert done.stdout.split() == ["https://spark.example/v1/", "the-key"]


ZED = """\
// Zed settings
{
  /* mine */ "theme": "One Dark", // dark
  "language_models": {
    "ollama": {"api_url": "http://x", },
    // local ones
  },
  "buffer_font_size": 15,
}
"""


def test_a_file_with_comments_keeps_them() -> None:
    text = merge_settings(ZED, settings("zed", FULL), "json", "settings.json")
    for line in ("// Zed settings", "/* mine */", "// dark", "// local ones", '"buffer_font_size": 15,'):
        assert line in text
    models = client_config.read_jsonc(text, "-")["language_models"]
    assert models["ollama"] == {"api_url": "http://x"}
    assert models["openai_compatible"] == rendered("zed", FULL)["language_models"]["openai_compatible"]
    assert merge_settings(text, settings("zed", FULL), "json", "-") == text, "a second time changes nothing"


def test_other_models_of_the_same_provider_stay() -> None:
    first = render_settings(settings("opencode", FULL), "json")
    both = merge_settings(first, settings("opencode", PLAIN), "json", "-")
    provider = json.loads(both)["provider"]["firesteel"]
    assert provider["models"].keys() == {"coder", "small"} and provider["options"] == {"baseURL": PLAIN.url}


CODEX = """\
# my settings
model = "gpt-5" # the old one
approval_policy = "on-request"

# servers
[mcp_servers.files]
command = "npx"

[model_providers.firesteel]
name = "old"
env_key = "OLD"
request_max_retries = 2 # mine
[profiles.x]
model = "keep"
"""


def test_toml_keeps_its_comments_and_tables() -> None:
    text = merge_settings(CODEX, settings("codex", FULL), "toml", "config.toml")
    found = tomllib.loads(text)
    assert found["model"] == "coder" and found["profiles"]["x"]["model"] == "keep"
    assert found["approval_policy"] == "on-request" and found["mcp_servers"] == {"files": {"command": "npx"}}
    provider = found["model_providers"]["firesteel"]
    assert provider["request_max_retries"] == 2 and provider["env_key"] == "FIRESTEEL_API_KEY"
    for line in ("# my settings", "# servers\n[mcp_servers.files]", "# mine"):
        assert line in text
    assert merge_settings(text, settings("codex", FULL), "toml", "-") == text


def test_toml_drops_a_key_that_is_no_longer_required() -> None:
    found = tomllib.loads(merge_settings(CODEX, settings("codex", PLAIN), "toml", "-"))
    assert "env_key" not in found["model_providers"]["firesteel"]


CONTINUE = """\
name: Mine # do not touch
version: 0.0.1
schema: v1
models:
  # the big one
  - name: other
    provider: ollama
    model: x
  - name: coder (firesteel)
    provider: openai
    model: old
    roles:
      - chat
rules:
  - be kind
"""


def test_yaml_keeps_its_comments_and_items() -> None:
    text = merge_settings(CONTINUE, settings("continue", FULL), "yaml", "config.yaml")
    found = yaml.safe_load(text)
    assert found["name"] == "Mine" and found["rules"] == ["be kind"]
    assert [model["name"] for model in found["models"]] == ["other", "coder (firesteel)"]
    assert found["models"][1] == rendered("continue", FULL)["models"][0]
    assert "# do not touch" in text and "# the big one" in text
    assert merge_settings(text, settings("continue", FULL), "yaml", "-") == text


@pytest.mark.parametrize(
    "text",
    ["name: a\nversion: 1.0.0\nschema: v1\n", "name: a\nmodels:\n- name: x\n  provider: y\n", "schema: v1"],
)
def test_yaml_without_our_model(text: str) -> None:
    found = yaml.safe_load(merge_settings(text, settings("continue", FULL), "yaml", "-"))
    assert found["models"][0] == rendered("continue", FULL)["models"][0]
    before = yaml.safe_load(text)
    assert before.pop("models", []) == found["models"][1:]
    assert before.items() <= found.items() and found.keys() >= {"name", "version", "schema"}


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("json", "{"),
        ("json", '{"a": 1} {"b": 2}'),
        ("json", '{"a" 1}'),
        ("json", '{"a": 1 "b": 2}'),
        ("json", "[]"),
        ("json", '{"a": 1, "a": 2}'),
        ("json", '{"model": /* open }'),
        ("json", "[" * 100_000),
        ("json", '{"provider": []}'),
        ("json", '{"a": ' + "9" * 10_000 + "}"),
        ("toml", "a = "),
        ("toml", "model_providers = {}"),
        ("toml", 'model_providers.firesteel = { name = "x" }'),
        ("toml", "model_providers = 3"),
        ("toml", "a = " + "[" * 100_000),
        ("yaml", "a: [1"),
        ("yaml", "models: [{name: x}]"),
        ("yaml", "models:\nname: x"),
        ("yaml", "models: 3"),
        ("yaml", "a: &x [1]\nb: *x"),
        ("yaml", "- 1"),
        ("yaml", "{name: x}"),
        ("yaml", "[" * 100_000),
        ("json", " " * 2**20 + "{}"),
    ],
)
def test_what_cannot_be_changed_safely_is_refused(form: Any, text: str) -> None:
    name = {"json": "opencode", "toml": "codex", "yaml": "continue"}[form]
    with pytest.raises(UsageError, match=r"my\.conf"):
        merge_settings(text, settings(name, FULL), form, "my.conf")


def test_a_mistake_has_its_line() -> None:
    with pytest.raises(UsageError, match=r"x\.json:3: a comma is missing"):
        client_config.read_jsonc('{\n"a": 1\n"b": 2}', "x.json")


leaf = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False)
)
tree = st.recursive(
    leaf,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
key = st.sampled_from(["a", "b", "c"])


def with_comments(value: Any, draw: Any) -> str:
    """The same value as people write it."""
    blank = draw(st.sampled_from(["", " ", "\n", " // x\n", "/* } */", '\n// "a": 1,\n  ']))
    comma = draw(st.sampled_from(["", ","]))
    if isinstance(value, dict) and value:
        inner = f",{blank}".join(
            f"{json.dumps(name)}:{blank}{with_comments(item, draw)}" for name, item in value.items()
        )
        return f"{{{blank}{inner}{blank}{comma}{blank}}}"
    if isinstance(value, list) and value:
        return f"[{blank}{f',{blank}'.join(with_comments(item, draw) for item in value)}{comma}{blank}]"
    return json.dumps(value)


@settings_of_hypothesis(max_examples=60)
@given(
    st.dictionaries(key, tree | st.dictionaries(key, tree)),
    st.lists(key, min_size=1, max_size=3),
    tree,
    st.data(),
)
def test_one_value_is_set_and_nothing_else(value: Any, path: list[str], new: Any, data: Any) -> None:
    text = with_comments(value, data.draw)
    assert client_config.read_jsonc(text, "-") == value
    edit = SettingEdit(tuple(path), new)
    try:
        wanted = apply_edit(value, edit)
    except UsageError:
        return
    if not text.strip() or wanted == value:
        return
    changed = merge_settings(text, ClientSettings((edit,)), "json", "-")
    assert client_config.read_jsonc(changed, "-") == wanted
    if path[0] not in value:
        assert all(changed.count(mark) >= text.count(mark) for mark in ("// x", "/* } */", '// "a": 1,'))


# --- settings from data ---

SMALL = ClientEndpoint("http://127.0.0.1:8080/v1", "coder", 4096, requests={"reasoning_effort": "low"})


def test_the_settings_that_the_agents_need() -> None:
    env = rendered("claude-code", SMALL)["env"]
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0", "its first line changes with each session"
    assert env["CLAUDE_STREAM_IDLE_TIMEOUT_MS"] == "1800000"
    assert env["CLAUDE_CODE_EFFORT_LEVEL"] == "low"
    assert "CLAUDE_CODE_EFFORT_LEVEL" not in rendered("claude-code", PLAIN)["env"]
    codex = rendered("codex", SMALL)
    assert codex["web_search"] == "disabled" and codex["agents"]["enabled"] is False
    assert codex["model_providers"]["firesteel"]["stream_idle_timeout_ms"] == 1_800_000
    assert codex["model_reasoning_effort"] == "low"
    (pi,) = rendered("pi", FULL)["providers"]["firesteel"]["models"]
    assert (pi["contextWindow"], pi["maxTokens"], pi["input"]) == (131_072, 16_384, ["text", "image"])
    assert rendered("pi", PLAIN)["providers"]["firesteel"]["models"] == [{"id": "small"}]
    assert not any("requests should say" in note for note in settings("claude-code", SMALL).notes)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("aider", ["OPENAI_API_BASE=http://127.0.0.1:8080/v1", "AIDER_MODEL=openai/coder"]),
        ("goose", ["OPENAI_HOST=http://127.0.0.1:8080", "GOOSE_MODEL=coder", "GOOSE_CONTEXT_LIMIT=4096"]),
        ("qwen-code", ["OPENAI_BASE_URL=http://127.0.0.1:8080/v1", "OPENAI_MODEL=coder"]),
    ],
)
def test_clients_with_variables(name: str, lines: list[str]) -> None:
    text = render_settings(settings(name, SMALL), "env").splitlines()
    assert all(f"export {line}" in text for line in lines)


def test_a_context_that_is_too_small_is_said_before_the_first_request() -> None:
    def says(name: str, context: int | None) -> bool:
        endpoint = ClientEndpoint("http://x/v1", "coder", context)
        return any("before your first word" in note for note in settings(name, endpoint).notes)

    assert says("claude-code", 4096) and says("opencode", 8192) and not says("aider", 4096)
    assert not says("claude-code", 32_768) and not says("claude-code", None)


QUIET: tuple[Option, ...] = ("quiet",)


def test_offered_settings_are_written_only_if_they_are_asked_for() -> None:
    def env(options: tuple[Option, ...]) -> Any:
        return json.loads(render_settings(settings("claude-code", PLAIN, options), "json"))["env"]

    git = "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS"
    assert git not in env(()) and env(("stable-prompt",))[git] == "1"
    assert any("--stable-prompt: " in note for note in settings("claude-code", PLAIN).notes)
    assert any("chatgpt.com" in note for note in settings("codex", PLAIN).notes)
    assert not any("chatgpt.com" in note for note in settings("codex", PLAIN, QUIET).notes)
    with pytest.raises(UsageError, match="has no settings for --quiet"):
        settings("zed", PLAIN, QUIET)


def test_what_was_never_run_is_labelled() -> None:
    labelled = {
        name for name in client_names() if any("untried" in note for note in settings(name, PLAIN).notes)
    }
    assert labelled == {"zed"}


LLM = "# mine\n- model_id: other\n  model_name: x\n  api_base: http://y/v1\n"


def test_llm_has_a_list_of_models() -> None:
    text = merge_settings(LLM, settings("llm", SMALL), "yaml-list", "extra-openai-models.yaml")
    coder, other = yaml.safe_load(text)
    assert coder["model_id"] == "coder" and coder["api_base"] == SMALL.url and coder["can_stream"] is True
    assert other == {"model_id": "other", "model_name": "x", "api_base": "http://y/v1"}
    assert text.startswith("# mine\n") and LLM.removeprefix("# mine\n") in text
    assert merge_settings(text, settings("llm", SMALL), "yaml-list", "x") == text
    moved = ClientEndpoint("http://other/v1", "coder")
    again = yaml.safe_load(merge_settings(text, settings("llm", moved), "yaml-list", "x"))
    assert [each.get("api_base") for each in again] == ["http://other/v1", "http://y/v1"]


def test_events_only_for_versions_that_were_seen_to_accept_them() -> None:
    assert keepalive_events()["codex_exec/0.169.0"] == "keepalive"
    assert not any(agent.startswith("claude") for agent in keepalive_events())
