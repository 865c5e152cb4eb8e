"""firesteel's own recipes: what `check` reads is what the catalog launches."""

from __future__ import annotations

from importlib.resources import files

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import Images
from firesteel.catalog.launches import from_recipe
from firesteel.errors import UsageError
from firesteel.launch import Ask
from firesteel.reads.launches import read
from firesteel.values import replace

RECIPES = sorted(shipped().recipes)


def text_of(name: str) -> str:
    return (files("firesteel") / "data" / shipped().recipes[name].path).read_text("utf-8")


@pytest.mark.parametrize("name", RECIPES)
def test_the_launch_of_the_catalog(name: str) -> None:
    """But for its name; and an engine that is no container has no version that a text could tell."""
    recipe = shipped().recipes[name]
    (reading,) = read(text_of(name), f"{name}.yaml", shipped().images)
    expected = from_recipe(shipped(), recipe, Ask(recipe.model))
    assert replace(reading.launch, name="", version=None) == replace(expected, name="", version=None)
    assert reading.launch.version == (expected.version if expected.container else None)


def test_places() -> None:
    text = text_of("qwen3.6-35b-a3b-nvfp4")
    (reading,) = read(text, "recipe.yaml", shipped().images)
    lines = text.splitlines()
    assert "moe-backend" in lines[reading.locations["flag:moe-backend"].line - 1]
    assert lines[reading.locations["image"].line - 1].startswith("image:")
    assert lines[reading.locations["flag:max-model-len"].line - 1].startswith("serves:")


def test_an_image_that_does_not_ship_leaves_a_process_of_unknown_version(images: Images) -> None:
    text = text_of("gpt-oss-120b-vllm").replace("image: ", "image: my-")
    (reading,) = read(text, "recipe.yaml", images)
    assert (reading.launch.container, reading.launch.version) == (None, None)
    assert reading.launch.flags["moe-backend"] == "marlin"


def test_a_mistake_has_its_line() -> None:
    with pytest.raises(UsageError, match=r"recipe\.yaml:\d+: .*nobody"):
        read(text_of("smollm2") + "nobody: knows\n", "recipe.yaml", shipped().images)
