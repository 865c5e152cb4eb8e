"""A recipe for an image -> a Dockerfile for BuildKit, each step under its reason. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from shlex import quote

from firesteel.catalog.image_recipe import BuildStage, BuildStep, ImageRecipe, SourcePatch

_NOT_PINNED = "not pinned: `firesteel image build` pins it to what its registry has on that day"


def dockerfile(name: str, recipe: ImageRecipe, digests: Mapping[str, str] | None = None) -> str:
    """`digests`: of bases that the recipe does not pin, by their names."""
    lines = [f"# {recipe.title}", f"# firesteel render {name} --as dockerfile"]
    lines += [
        " ".join(filter(None, ("# from", pin.name, pin.package or pin.image, pin.commit or pin.sha256)))
        for pin in recipe.pins
    ]
    lines += [f"# left out: {left.what}: {left.why}" for left in recipe.left_out]
    for stage in recipe.stages:
        lines += ["", *_stage(stage, {one.name for one in recipe.stages}, digests or {})]
    lines += [f"ENTRYPOINT {json.dumps(list(recipe.entrypoint))}"]
    return "\n".join(lines) + "\n"


def uses_buildkit(recipe: ImageRecipe) -> bool:
    return any(step.cache for stage in recipe.stages for step in stage.steps)


def _stage(stage: BuildStage, stages: set[str], digests: Mapping[str, str]) -> Iterator[str]:
    digest = stage.digest or digests.get(stage.base)
    if stage.base not in stages and stage.base != "scratch" and digest is None:
        yield f"# {_NOT_PINNED}"
    yield f"FROM {stage.base}{f'@{digest}' if digest else ''} AS {stage.name}"
    for variable, setting in stage.env.items():
        yield f"# {setting.why}"
        yield f"ENV {variable}={json.dumps(setting.value)}"
    for step in stage.steps:
        yield f"# {step.why}"
        yield from _step(step)


def _step(step: BuildStep) -> Iterator[str]:
    if step.copy:
        yield f"COPY {step.copy}"
        return
    mounts = [f"--mount=type=cache,target={folder}" for folder in step.cache]
    commands = _patch(step.patch) if step.patch else (step.run or "").strip().splitlines()
    first, *rest = (line.strip() for line in commands if line.strip())
    yield " \\\n    ".join((f"RUN {' '.join((*mounts, first))}", *(f"&& {line}" for line in rest)))


def _patch(patch: SourcePatch) -> list[str]:
    return [
        f"curl --fail --silent --show-error --location --output /tmp/change.patch {quote(patch.url)}",
        f"echo {quote(f'{patch.sha256}  /tmp/change.patch')} | sha256sum --check",
        f"git -C {quote(patch.folder)} apply /tmp/change.patch",
    ]
