"""The arguments of `docker run` -> the configuration of a simulated engine, as one JSON document on stdout.

    python -m firesteel.edge.sim.engine_config FOLDER ID --rm --gpus all IMAGE ...

The arguments are read by `reads`, as `check` does, and planned by `planner` for a GB10. This is a separate
process so that neither the simulated `docker run` nor the simulated engine, which live long, loads it.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Any

from firesteel.catalog.catalog import Catalog, loaded_weights, overlay, shipped
from firesteel.edge import checkpoints
from firesteel.edge.home import find_home
from firesteel.edge.sim import nvidia_smi
from firesteel.edge.sim.boot import stages
from firesteel.edge.sim.containers import FAILED, NO_GPU, DockerError
from firesteel.edge.sim.spark import SimSpark, TrueSpeed, read_spark
from firesteel.engines.engine import expand_shortcuts, parse_argv, served_capacity, size_flags
from firesteel.engines.flags import compact_json
from firesteel.engines.vllm.kv_settings import speculative_tokens
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.facts.model.architecture import Architecture
from firesteel.facts.model.tensors import Weights
from firesteel.launch import Launch
from firesteel.planner.plan import Plan, plan
from firesteel.reads.docker import DockerOption, environment, name_and_value, parse_options
from firesteel.reads.launches import read
from firesteel.reads.shell import split
from firesteel.reads.source_text import source_file
from firesteel.values import replace

_KNOWN = frozenset({
    "cap-add", "cap-drop", "detach", "device", "entrypoint", "env", "env-file", "gpus", "group-add",
    "health-cmd", "health-start-period",
    "hostname", "init", "interactive", "ipc", "label", "log-driver", "log-opt", "memory", "memory-swap",
    "mount", "name", "network", "no-healthcheck", "pids-limit", "platform", "publish", "pull", "quiet",
    "read-only", "restart", "rm", "runtime", "security-opt", "shm-size", "sig-proxy", "stop-signal",
    "stop-timeout", "tmpfs", "tty", "ulimit", "user", "volume", "workdir",
})  # fmt: skip
_PREFILL_TOKENS_PER_S = 2000.0
"""Where the planner has no figure."""
_USER_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_DEFAULT_USERS = {"vllm": 256, "sglang": 256, "llamacpp": 4}


def engine_config(
    arguments: Sequence[str], folder: Path, id: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    spark = read_spark(folder)
    text = shlex.join(["docker", "run", *arguments])
    # Read as text by `reads`, so that `docker run` and `check` never disagree about a command.
    source = source_file(text, "docker run")
    words = split(source.whole, source)[0].words[2:]
    given, image_index = parse_options(words)
    for option in given:
        if option.name not in _KNOWN:
            raise DockerError(
                f"unknown flag: --{option.name} (the simulated docker does not know it)", FAILED
            )
    if image_index >= len(words):
        raise DockerError("docker: 'docker run' requires at least 1 argument", FAILED)
    command = [word.text for word in words[image_index + 1 :]]
    container = _container(given, words[image_index].text, command, id, environ)
    entrypoint = next((option.value for option in reversed(given) if option.name == "entrypoint"), None)
    argv = [entrypoint, *command] if entrypoint else command
    result = _run_other_program(argv, spark, folder, has_gpu=container["gpus"])
    if result is not None:
        return {**container, "output": result[1], "code": result[0]}
    return {**container, **_engine(text, command, spark)}


def _container(
    given: Sequence[DockerOption], image: str, command: list[str], id: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    last = {option.name: option.value for option in given}
    labels = dict(name_and_value(option.value or "") for option in given if option.name == "label")
    return {
        "output": None,
        "image": image,
        "command": command,
        "name": last.get("name") or f"simulated_{id[:6]}",
        "labels": labels,
        "gpus": "gpus" in last,
        "remove": "rm" in last,
        "detach": "detach" in last,
        "ports": [port for option in given if option.name == "publish" for port in _port(option.value or "")],
        "env": _environment(given, environ),
    }


def _environment(given: Sequence[DockerOption], environ: Mapping[str, str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for option in given:
        if option.name == "env-file":
            lines = Path(option.value or "").read_text().splitlines()
            variables |= dict(
                name_and_value(line) for line in lines if "=" in line and not line.startswith("#")
            )
    for name, value in environment(given).items():
        if value != f"${name}":
            variables[name] = value
        elif name in environ:  # `-e NAME` passes the variable of the caller on
            variables[name] = environ[name]
    return variables


def _port(text: str) -> list[tuple[str, int, int]]:
    """`127.0.0.1:8000:8000`, `8000:8000`, `8000`. A simulated engine listens on loopback in any case."""
    *before, inside = text.removesuffix("/tcp").split(":")
    outside = before[-1] if before else inside
    if not (inside.isdigit() and outside.isdigit()):
        raise DockerError(f'docker: invalid publish opts format "{text}"', FAILED)
    return [(before[0] if len(before) > 1 else "0.0.0.0", int(outside), int(inside))]


def _run_other_program(
    argv: list[str], spark: SimSpark, folder: Path, *, has_gpu: bool
) -> tuple[int, str] | None:
    """Exit code and output of the few programs besides engines that firesteel runs in a container."""
    program = Path(argv[0]).name if argv else ""
    if program == "nvidia-smi":
        if not has_gpu:
            return 127, "nvidia-smi: command not found\n"
        if spark.fault("no-gpu-in-docker"):
            raise DockerError(NO_GPU, FAILED)
        code, output = nvidia_smi.run(argv[1:], folder)
        return code, f"{output}\n"
    if program.startswith("python") and argv[1:4] == ["-m", "pip", "download"]:
        return 0, "a simulated container downloads nothing\n"
    return None


def _engine(text: str, command: list[str], spark: SimSpark) -> dict[str, Any]:
    # Not the Workspace: docker and the engine do not know what was measured before.
    known = overlay(shipped(), find_home().catalog_files())
    try:
        launch = read(text, "docker run", known.images)[0].launch
    except UsageError as error:
        raise DockerError(
            f"docker: a simulated container runs an engine, and this starts none: {error}", 127
        ) from error
    architecture, weights = _model(launch, known)
    planned = plan(launch, architecture, weights, idle_host(hardware("gb10")))
    return {
        "engine": launch.engine,
        "version": launch.version,
        "model": launch.model,
        "served": parse_argv(launch.engine, command, contained=True).name or launch.name,
        "port": launch.port,
        "headless": launch.flags.get("headless") is True,
        "key": launch.flags.get("api-key") if isinstance(launch.flags.get("api-key"), str) else None,
        # llama.cpp and vLLM separate the reasoning of gpt-oss without a flag.
        "thinks": "reasoning-parser" in launch.flags or "gpt-oss" in launch.model.lower(),
        "calls_tools": _calls_tools(launch),
        "metrics": launch.engine == "vllm"
        or launch.flags.get("metrics" if launch.engine == "llamacpp" else "enable-metrics") is True,
        "stages": stages(planned, spark),
        "speed": engine_speed(planned, spark),
    }


def _calls_tools(launch: Launch) -> bool:
    if launch.engine == "vllm":
        return launch.flags.get("enable-auto-tool-choice") is True and "tool-call-parser" in launch.flags
    if launch.engine == "sglang":
        return "tool-call-parser" in launch.flags
    return launch.flags.get("jinja") is not False


def _model(launch: Launch, known: Catalog) -> tuple[Architecture, Weights]:
    """From the catalog, or from a checkpoint on this disk; a simulated Spark downloads nothing."""
    if launch.model in known.models:
        model = known.models[launch.model]
        recipe = known.recipes.get(launch.name)
        if recipe is not None and recipe.model == model.id:
            return model.architecture, loaded_weights(known, recipe)
        return model.architecture, model.weights
    path = _on_disk(launch)
    if path is not None:
        checkpoint = checkpoints.open_path(str(path))
        return checkpoint.architecture, checkpoint.weights
    raise DockerError(
        f"the simulated Spark knows no model `{launch.model}`: it is neither in the catalog nor on this disk",
        1,
    )


def _on_disk(launch: Launch) -> Path | None:
    for mount in launch.container.mounts if launch.container else ():
        if launch.model == mount.target or launch.model.startswith(f"{mount.target.rstrip('/')}/"):
            rest = launch.model.removeprefix(mount.target).strip("/")
            path = Path(mount.source).expanduser() / rest
            return path if path.exists() else None
    return None


# --- speed ---


def engine_speed(planned: Plan, spark: SimSpark) -> dict[str, Any]:
    """The fields of `EngineSpeed`: the planner's figures, unless a `TrueSpeed` of the Spark applies."""
    launch, speed = planned.launch, planned.speed
    truths = [truth for truth in spark.truths if applies(truth, launch)]
    decode = next((truth.decode_tokens_per_s for truth in truths if truth.decode_tokens_per_s), None)
    prefill = next((truth.prefill_tokens_per_s for truth in truths if truth.prefill_tokens_per_s), None)
    if prefill is None:
        planned_prefill = speed.prefill if speed else None
        prefill = planned_prefill.tokens_per_s.expected if planned_prefill else _PREFILL_TOKENS_PER_S
    slow = spark.fault("slow-tokens")
    times = (slow.times if slow else 1.0) / prod(truth.decode_times for truth in truths)
    single_ms = 1000 / speed.decode_tokens_per_s.expected if speed else 50.0
    scale = times * (1000 / decode / single_ms if decode else 1.0)
    users = served_capacity(launch).users or _DEFAULT_USERS[launch.engine]
    drafts = speculative_tokens(launch.flags)
    return {
        "step_ms": [(count, ms * scale) for count, ms in _steps(planned, users, single_ms)],
        "depths": [(0, 1.0)] if decode else _depths(planned),
        "prefill_tokens_per_s": prefill * prod(truth.prefill_times for truth in truths) * spark.reads_faster,
        "batched_tokens": _batched_tokens(launch),
        "users": users,
        "context": planned.cache.context,
        "pool_tokens": planned.printed[0].tokens if planned.printed else planned.cache.context * users,
        "pool_blocks": planned.printed[0].num_blocks if planned.printed else 0,
        "concurrency": planned.printed[0].concurrency if planned.printed else float(users),
        "drafts": drafts,
        "acceptance": dict(spark.acceptance),
        "draft_cost": spark.draft_cost,
        "jitter": spark.jitter,
        "seed": spark.seed,
        "caches_prefixes": launch.flags.get("enable-prefix-caching") is not False,
    }


def applies(truth: TrueSpeed, launch: Launch) -> bool:
    flags = {
        name: value if isinstance(value, str) else compact_json(value)
        for name, value in expand_shortcuts(launch).items()
    }
    has_flags = all(flags.get(name) == value for name, value in truth.when.items())
    return has_flags and fnmatchcase(launch.model, truth.model)


def _steps(planned: Plan, users: int, single_ms: float) -> list[tuple[int, float]]:
    """Milliseconds of a step with 1, 2, 4, ... concurrent users."""
    steps = [(1, single_ms)]
    for count in (count for count in _USER_COUNTS if 1 < count <= max(2, users)):
        sizes = size_flags(planned.launch.engine, planned.cache.context, count)
        flags = {**planned.launch.flags, **sizes}
        replanned = plan(replace(planned.launch, flags=flags), planned.shape, planned.weights, planned.host)
        batch = replanned.speed.batch if replanned.speed else None
        # With more users a step never gets shorter, whatever the estimates say.
        if batch is not None:
            steps.append((count, max(steps[-1][1], 1000 / batch.per_user_tokens_per_s.expected)))
    return steps


def _depths(planned: Plan) -> list[tuple[int, float]]:
    """How much longer a step takes deep in a conversation than at a thousand tokens."""
    speed = planned.speed
    if speed is None or not speed.at_depth:
        return [(0, 1.0)]
    base = speed.decode_tokens_per_s.expected
    return [(depth, base / band.expected) for depth, band in speed.at_depth]


def _batched_tokens(launch: Launch) -> int:
    names = {"vllm": "max-num-batched-tokens", "llamacpp": "batch-size", "sglang": "chunked-prefill-size"}
    value = launch.flags.get(names[launch.engine])
    return int(value) if isinstance(value, str) and value.isdigit() and int(value) else 2048


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    folder, id, *rest = arguments
    try:
        sys.stdout.write(json.dumps(engine_config(rest, Path(folder), id, environ)))
    except DockerError as error:
        sys.stderr.write(f"{error}\n")
        return error.code
    except (FiresteelError, OSError) as error:
        sys.stderr.write(f"docker: {error}\n")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
