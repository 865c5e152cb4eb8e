"""What the tests of all formats share: every shipped recipe as a launch, and the facts beside it."""

from __future__ import annotations

import os
from pathlib import Path

from firesteel.catalog.catalog import shipped
from firesteel.catalog.launches import from_recipe
from firesteel.catalog.recipe import Recipe
from firesteel.launch import Ask, Launch
from firesteel.reads.launches import read
from firesteel.render import LaunchFacts, containerized
from firesteel.rules.checker import check
from firesteel.rules.linter import LintOptions, lint

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = shipped()
RECIPES = sorted(SHIPPED.recipes)
ON_ONE = [name for name in RECIPES if SHIPPED.recipes[name].sparks == 1]
SHOWN = (
    "gpt-oss-120b-llamacpp", "nemotron-3-nano-nvfp4", "gemma-4-31b-nvfp4", "qwen3.6-35b-a3b-nvfp4", "smollm2"
)  # fmt: skip
"""An engine of its own, a script, a gated model, drafts with JSON, a child process."""


def launch_of(name: str) -> Launch:
    return from_recipe(SHIPPED, SHIPPED.recipes[name], Ask())


def facts_of(name: str) -> LaunchFacts:
    recipe: Recipe = SHIPPED.recipes[name]
    model = SHIPPED.models[recipe.model]
    return LaunchFacts(
        flag_reasons={flag: setting.why for flag, setting in recipe.flags.items()},
        env_reasons={variable: setting.why for variable, setting in recipe.env.items()},
        start_up_s=605.0,
        needed_bytes=model.weights.total_bytes + 2**30,
        weights_bytes=model.weights.total_bytes,
        revision=model.revision,
        is_gated=model.gated,
    )


def read_one(text: str, path: str) -> Launch:
    (reading,) = read(text, path, SHIPPED.images)
    return reading.launch


def check_golden(file: str, text: str) -> None:
    golden = GOLDEN / file
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True, parents=True)
        golden.write_text(text, "utf-8")
    assert text == golden.read_text("utf-8"), "if this is meant: UPDATE_GOLDEN=1 pytest tests/render"


def objections(text: str, path: str) -> set[str]:
    """The rules that stop or warn."""
    found = lint(text, path, LintOptions(SHIPPED.images, level="warn"))
    assert not found.unread and found.launches
    return {finding.rule for finding in found.findings}


def own_objections(launch: Launch) -> set[str]:
    """Those that the launch itself has, in whichever form."""
    found = check(containerized(launch), hardware="gb10", images=SHIPPED.images)
    return {finding.rule for finding in found if finding.level != "note"}
