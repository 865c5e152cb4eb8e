"""Request settings: one value, and every way that a request can take carries it."""

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.catalog.request_settings import RecipeRequests
from firesteel.engines.engine import TEMPLATE_FLAGS, argv, merged, parse_argv
from firesteel.engines.schema.releases import release_ranges
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask, EngineName, FlagValue
from firesteel.proposals import propose

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
