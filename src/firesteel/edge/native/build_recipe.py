"""How an engine is built from sources: pinned sources and CMake options with reasons, from `data/builds`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from firesteel import shipped_data
from firesteel.facts.evidence import Sources
from firesteel.facts.host.hardware import Gpu
from firesteel.values import FileValue, Value


class BuildOption(FileValue, kw_only=True):
    value: str
    why: str


class BuildRecipe(FileValue, kw_only=True):
    version: str
    package: str
    sha256: str
    """Of the package's source archive."""
    sources: Sources
    targets: tuple[str, ...]
    options: dict[str, BuildOption]
    cuda_options: dict[str, BuildOption] = {}
    architectures: dict[str, str] = {}


def build_recipe(engine: str = "llamacpp") -> BuildRecipe:
    return shipped_data.load(f"builds/{engine}.yaml", BuildRecipe)


class BuildSettings(Value):
    """Everything that decides what comes out, so that equal settings need not be built twice."""

    version: str
    sources: str
    """The digest of the archive, or the commit and the state of a checkout."""
    options: Mapping[str, str]
    targets: Sequence[str]

    @property
    def key(self) -> str:
        text = json.dumps([self.version, self.sources, dict(self.options), list(self.targets)])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def uses_gpu(self) -> bool:
        return self.options.get("GGML_CUDA") == "ON"


def build_settings(recipe: BuildRecipe, version: str, sources: str, gpus: Sequence[Gpu]) -> BuildSettings:
    """For the GPUs at hand, and for the CPU where there is none."""
    chosen = recipe.options | (recipe.cuda_options if gpus else {})
    options = {name: option.value for name, option in chosen.items()}
    # The sources are no git checkout, so the build cannot count commits and would call itself 0.
    options["LLAMA_BUILD_NUMBER"] = version
    if gpus:
        capabilities = sorted({gpu.compute_capability for gpu in gpus})
        options["CMAKE_CUDA_ARCHITECTURES"] = ";".join(architecture(recipe, one) for one in capabilities)
    return BuildSettings(version, sources, options, recipe.targets)


def architecture(recipe: BuildRecipe, compute_capability: str) -> str:
    """`8.9` -> `89-real`, where the recipe has no better word for it."""
    return recipe.architectures.get(compute_capability, f"{compute_capability.replace('.', '')}-real")
