"""`docker run ...` -> everything that a pretend engine needs to know, as one JSON document on stdout.

    python -m firesteel.sim.docker.engine_config FOLDER ID --rm --gpus all IMAGE ...

The words are read by `reads`, as `check` would, and planned by `planner`, for a GB10. It is a process of its
own so that neither the pretend `docker run` nor the pretend engine, which live long, carry the planner.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from firesteel import catalog as catalog_room
from firesteel import engines, reads
from firesteel.catalog import Catalog
from firesteel.edge.files import checkpoints
from firesteel.edge.files.home import catalog_files, find_home
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts import Architecture, Weights
from firesteel.facts.host.hardware import hardware, host_at_rest
from firesteel.launch import Launch
from firesteel.planner import Plan, plan
from firesteel.reads.docker import DockerOption, environment, options
from firesteel.reads.shell import split
from firesteel.reads.source_text import source_file
from firesteel.sim import nvidia_smi
from firesteel.sim.engine.boot import stages
from firesteel.sim.spark import SimSpark, TrueSpeed, read_spark

_KNOWN = frozenset({
    "cap-add", "cap-drop", "detach", "device", "entrypoint", "env", "env-file", "gpus", "group-add",
    "hostname", "init", "interactive", "ipc", "label", "log-driver", "log-opt", "memory", "memory-swap",
    "mount", "name", "network", "no-healthcheck", "pids-limit", "platform", "publish", "pull", "quiet",
    "read-only", "restart", "rm", "runtime", "security-opt", "shm-size", "sig-proxy", "stop-signal",
    "stop-timeout", "tmpfs", "tty", "ulimit", "user", "volume", "workdir",
})  # fmt: skip
_PREFILL = 2000.0
"""Tokens a second, where the planner has no figure."""
_CROWDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_DEFAULT_USERS = {"vllm": 256, "sglang": 256, "llamacpp": 4}


class InvalidRun(Exception):
    def __init__(self, says: str, code: int = 125) -> None:
        super().__init__(says)
        self.code = code


def engine_config(words: Sequence[str], folder: Path, id: str, environ: Mapping[str, str]) -> dict[str, Any]:
    world = read_spark(folder)
    text = shlex.join(["docker", "run", *words])
    told = split(source_file(text, "docker run").whole, source_file(text, "docker run"))[0].words[2:]
    given, at = options(told)
    _refuse_unknown(given)
    if at >= len(told):
        raise InvalidRun("docker: 'docker run' requires at least 1 argument")
    image, after = told[at].text, [word.text for word in told[at + 1 :]]
    box = _box(given, image, after, id, environ)
    entrypoint = next((each.value for each in reversed(given) if each.name == "entrypoint"), None)
    other = _no_engine([*([entrypoint] if entrypoint else []), *after], world, folder, has_gpu=box["gpus"])
    if other is not None:
        return {**box, "says": other[1], "code": other[0]}
    return {**box, **_engine(text, after, world)}


def _refuse_unknown(given: Sequence[DockerOption]) -> None:
    for option in given:
        if option.name not in _KNOWN:
            raise InvalidRun(f"unknown flag: --{option.name} (the pretend docker does not know it)")


def _box(
    given: Sequence[DockerOption], image: str, after: list[str], id: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    last = {option.name: option.value for option in given}
    labels = dict(_pair(option.value or "") for option in given if option.name == "label")
    return {
        "says": None,
        "image": image,
        "command": after,
        "name": last.get("name") or f"pretend_{id[:6]}",
        "labels": labels,
        "gpus": "gpus" in last,
        "remove": "rm" in last,
        "detach": "detach" in last,
        "ports": [port for option in given if option.name == "publish" for port in _port(option.value or "")],
        "env": _environment(given, environ),
    }


def _environment(given: Sequence[DockerOption], environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for option in given:
        if option.name == "env-file":
            lines = Path(option.value or "").read_text().splitlines()
            found |= dict(_pair(line) for line in lines if "=" in line and not line.startswith("#"))
    for name, value in environment(given).items():
        if value != f"${name}":
            found[name] = value
        elif name in environ:
            found[name] = environ[name]
    return found


def _port(text: str) -> list[tuple[str, int, int]]:
    """`127.0.0.1:8000:8000`, `8000:8000`, `8000`. Whatever it says, a pretend engine listens on loopback."""
    *before, inside = text.removesuffix("/tcp").split(":")
    outside = before[-1] if before else inside
    if not (inside.isdigit() and outside.isdigit()):
        raise InvalidRun(f'docker: invalid publish opts format "{text}"')
    return [(before[0] if len(before) > 1 else "0.0.0.0", int(outside), int(inside))]


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _no_engine(words: list[str], world: SimSpark, folder: Path, *, has_gpu: bool) -> tuple[int, str] | None:
    """The few programs besides engines that are run in a container: what they say, and their exit code."""
    program = Path(words[0]).name if words else ""
    if program == "nvidia-smi":
        if not has_gpu:
            return 127, "nvidia-smi: command not found\n"
        if world.fault("no-gpu-in-docker"):
            daemon = "docker: Error response from daemon: "
            raise InvalidRun(f'{daemon}could not select device driver "" with capabilities: [[gpu]].')
        code, said = nvidia_smi.answer(words[1:], folder)
        return code, f"{said}\n"
    if program.startswith("python") and words[1:4] == ["-m", "pip", "download"]:
        return 0, "a pretend container downloads nothing\n"
    return None


def _engine(text: str, after: list[str], world: SimSpark) -> dict[str, Any]:
    known = catalog_room.overlay(catalog_room.shipped(), catalog_files(find_home()))
    try:
        launch = reads.read(text, "docker run", known.images)[0].launch
    except UsageError as error:
        raise InvalidRun(
            f"docker: a pretend container runs an engine, and this starts none: {error}", 127
        ) from error
    shape, weights = _model(launch, known)
    planned = plan(launch, shape, weights, host_at_rest(hardware("gb10")))
    return {
        "engine": launch.engine,
        "version": launch.version,
        "model": launch.model,
        "served": engines.parse(launch.engine, after, contained=True).name or launch.name,
        "listens": launch.port,
        "key": launch.flags.get("api-key") if isinstance(launch.flags.get("api-key"), str) else None,
        "thinks": "reasoning-parser" in launch.flags or _thinks_always(launch),
        "calls_tools": _calls_tools(launch),
        "metrics": launch.engine == "vllm"
        or launch.flags.get("metrics" if launch.engine == "llamacpp" else "enable-metrics") is True,
        "stages": stages(planned, world),
        "pace": engine_speed(planned, world),
    }


def _thinks_always(launch: Launch) -> bool:
    """llama.cpp splits off what gpt-oss thinks by itself; vLLM does so for the same family."""
    return "gpt-oss" in launch.model.lower()


def _calls_tools(launch: Launch) -> bool:
    if launch.engine == "vllm":
        return launch.flags.get("enable-auto-tool-choice") is True and "tool-call-parser" in launch.flags
    if launch.engine == "sglang":
        return "tool-call-parser" in launch.flags
    return launch.flags.get("jinja") is not False


def _model(launch: Launch, known: Catalog) -> tuple[Architecture, Weights]:
    """From the catalog, or from a checkpoint that lies on this disk; a pretend Spark downloads nothing."""
    if launch.model in known.models:
        model = known.models[launch.model]
        recipe = known.recipes.get(launch.name)
        is_its = recipe is not None and recipe.model == model.id
        return model.architecture, catalog_room.weights(known, recipe) if is_its and recipe else model.weights
    path = _on_disk(launch)
    if path is not None:
        found = checkpoints.open_path(str(path))
        return found.architecture, found.weights
    raise InvalidRun(
        f"the pretend Spark knows no model `{launch.model}`: it is not in the catalog, nor on this disk", 1
    )


def _on_disk(launch: Launch) -> Path | None:
    for mount in launch.container.mounts if launch.container else ():
        if launch.model == mount.target or launch.model.startswith(f"{mount.target.rstrip('/')}/"):
            rest = launch.model.removeprefix(mount.target).strip("/")
            path = Path(mount.source).expanduser() / rest
            return path if path.exists() else None
    return None


# --- how fast it is ---


def engine_speed(planned: Plan, world: SimSpark) -> dict[str, Any]:
    launch, speed = planned.launch, planned.speed
    truths = [truth for truth in world.truths if applies(truth, launch)]
    said = next((each.decode_tokens_per_s for each in truths if each.decode_tokens_per_s), None)
    read = next((each.prefill_tokens_per_s for each in truths if each.prefill_tokens_per_s), None)
    slow = world.fault("slow-tokens")
    times = (slow.times if slow else 1.0) / _product(each.decode_times for each in truths)
    alone = 1000 / speed.decode_tokens_per_s.expected if speed else 50.0
    scale = times * (1000 / said / alone if said else 1.0)
    prefill = read or (speed.prefill.tokens_per_s.expected if speed and speed.prefill else _PREFILL)
    users = engines.served(launch).users or _DEFAULT_USERS[launch.engine]
    drafts = engines.speculative_tokens(launch.flags)
    return {
        "step_ms": [(many, ms * scale) for many, ms in _steps(planned, users, alone)],
        "depths": [(0, 1.0)] if said else _depths(planned),
        "prefill_tokens_per_s": prefill
        * _product(each.prefill_times for each in truths)
        * world.reads_faster,
        "batched_tokens": _batched(launch),
        "users": users,
        "context": planned.cache.context,
        "pool_tokens": planned.printed[0].tokens if planned.printed else planned.cache.context * users,
        "pool_blocks": planned.printed[0].num_blocks if planned.printed else 0,
        "concurrency": planned.printed[0].concurrency if planned.printed else float(users),
        "drafts": drafts,
        "acceptance": dict(world.acceptance),
        "draft_cost": world.draft_cost,
        "jitter": world.jitter,
        "seed": world.seed,
        "caches_prefixes": launch.flags.get("enable-prefix-caching") is not False,
    }


def applies(truth: TrueSpeed, launch: Launch) -> bool:
    said = {
        name: engines.compact(value)
        if isinstance(value, dict | list)
        else str(value).lower()
        if isinstance(value, bool)
        else value
        for name, value in engines.written_out(launch).items()
    }
    return fnmatchcase(launch.model, truth.model) and all(
        said.get(name) == value for name, value in truth.when.items()
    )


def _product(factors: Any) -> float:
    found = 1.0
    for factor in factors:
        found *= factor
    return found


def _steps(planned: Plan, users: int, alone: float) -> list[tuple[int, float]]:
    """Milliseconds of a step with 1, 2, 4, ... users at once."""
    found = [(1, alone)]
    for many in (each for each in _CROWDS if 1 < each <= max(2, users)):
        flags = {
            **planned.launch.flags,
            **engines.size_flags(planned.launch.engine, planned.cache.context, many),
        }
        again = plan(replace(planned.launch, flags=flags), planned.shape, planned.weights, planned.host)
        crowd = again.speed.crowd if again.speed else None
        if crowd is not None:
            found.append((many, max(found[-1][1], 1000 / crowd.each_tokens_per_s.expected)))
    return found


def _depths(planned: Plan) -> list[tuple[int, float]]:
    """How much longer a step takes deep in a conversation, against one at a thousand tokens."""
    speed = planned.speed
    if speed is None or not speed.at_depth:
        return [(0, 1.0)]
    base = speed.decode_tokens_per_s.expected
    return [(depth, base / band.expected) for depth, band in speed.at_depth]


def _batched(launch: Launch) -> int:
    names = {"vllm": "max-num-batched-tokens", "llamacpp": "batch-size", "sglang": "chunked-prefill-size"}
    said = launch.flags.get(names[launch.engine])
    return int(said) if isinstance(said, str) and said.isdigit() and int(said) else 2048


def main(words: Sequence[str], environ: Mapping[str, str]) -> int:
    folder, id, *rest = words
    try:
        sys.stdout.write(json.dumps(engine_config(rest, Path(folder), id, environ)))
    except InvalidRun as error:
        sys.stderr.write(f"{error}\n")
        return error.code
    except (FiresteelError, OSError) as error:
        sys.stderr.write(f"docker: {error}\n")
        return 125
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
