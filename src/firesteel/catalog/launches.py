"""How a Launch comes to be and every change that is made to it, in order. Pure; no other module changes one.

    step               called by         why
    from_recipe        proposals         a recipe becomes a launch at the context and users asked for
    from_checkpoint    proposals         a checkpoint without a recipe gets its sizes, and metrics
    in_container       proposals         a launch without a container moves into the engine's image
    with_user_options  proposals         what the user typed overrules the recipe
    native             proposals         an engine of this machine serves it, in place of a container
    with_adapters      proposals         LoRA adapters by the engine's own flags, mounted into its container
    across_sparks      proposals         several Sparks need their ranks, the host's network and RDMA
    on_rank            `up --cluster`    each host has its rank, its interfaces and the others' addresses
    with_memory_flags  planner           vLLM and SGLang get the memory that the plan gives them
    with_flags         `tune`            a candidate differs from the launch by the flags that are searched
    with_host_folders  `render`          the Hub's cache and compiled kernels where this user has them
    listening_on       `up --listen`     another address than loopback, and then with a key
    with_local_files   `up`, after pull  weights and compiled kernels come from this host, without a network
    with_native_files  `up`, after pull  a program reads the weights that were pulled, without a network
    supervised         `up`              a container that ends with its supervisor, without extra privileges
    llamacpp_process   `up`              llama.cpp in no container: threads, metrics and log level

Rules judge a launch and never change it; renderers and readers translate it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from firesteel.catalog.catalog import Catalog, max_context
from firesteel.catalog.image import Image
from firesteel.catalog.recipe import Recipe
from firesteel.engines.engine import adapter_flags, merged, size_flags
from firesteel.engines.engine import program as engine_program
from firesteel.engines.kv_cache import MEMORY_FLAGS, KvCache, memory_flags
from firesteel.engines.metrics import METRICS_FLAGS
from firesteel.errors import UsageError
from firesteel.facts.model.adapter import Adapter
from firesteel.facts.model.architecture import Checkpoint
from firesteel.launch import (
    ADAPTERS_INSIDE,
    COMPILE_CACHE_ENV,
    COMPILED_INSIDE,
    DOWNLOAD_ENV,
    HUB_CACHE,
    HUB_CACHE_INSIDE,
    HUB_ENV,
    HUB_INSIDE,
    LOOPBACK,
    MODELS_INSIDE,
    OFFLINE_ENV,
    WHEELS_INSIDE,
    Ask,
    Container,
    EngineName,
    EngineProgram,
    FlagValue,
    Launch,
    Mount,
    health_options,
)
from firesteel.values import replace

DEFAULT_PORT = 8000
DEFAULT_CONTEXT = 8192
_WHEELS_ENV = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS_INSIDE}
_SUPERVISED_OPTIONS = (("rm", None), ("security-opt", "no-new-privileges"))
"""Removed when it stops; and a setuid program in the image does not become root."""
_LOG_WITH_BUFFERS = "4"
"""From this verbosity on llama.cpp logs the size of its buffers; the report compares them with the plan."""


# --- creating ---


def from_recipe(catalog: Catalog, recipe: Recipe, ask: Ask) -> Launch:
    """A recipe at the sizes asked for.

    The port is published on the loopback address alone: Docker's published ports bypass a host firewall, and
    engines accept requests without a key.
    """
    model, image = catalog.models[recipe.model], catalog.images.named[recipe.image]
    context = recipe.context if ask.context is None else ask.context
    users = recipe.users if ask.users is None else ask.users
    port = DEFAULT_PORT if ask.port is None else ask.port
    _check_sizes(model.title, context, max_context(recipe, model), users, port)
    container = None if ask.runtime == "native" else _container(image, port)
    if container:
        container = with_assets(container, image, recipe)
    else:
        _refuse_assets(recipe)
    own = {flag: setting.value for flag, setting in recipe.flags.items()}
    defaults = recipe.requests.launch_flags(recipe.engine, ask.version or image.version)
    env = {variable: str(setting.value) for variable, setting in recipe.env.items()}
    return Launch(
        name=ask.name or recipe.name,
        model=model.id,
        engine=recipe.engine,
        version=image.version,
        flags={**merged(defaults, own), **size_flags(recipe.engine, context, users)},
        env={**(HUB_ENV[recipe.engine] if container else {}), **env},
        port=port,
        container=container,
        sparks=recipe.sparks,
    )


def _check_sizes(title: str, context: int, limit: int, users: int, port: int) -> None:
    if context > limit:
        raise UsageError(
            f"{title} takes {limit:,} tokens at most, and {context:,} were asked for",
            next=f"--context {limit}",
        )
    if context < 1 or users < 1:
        raise UsageError(f"context {context} and users {users} must both be at least 1", next="--users 1")
    if not 0 < port < 65536:
        raise UsageError(f"{port} is not a port", next=f"--port {DEFAULT_PORT}")


def _container(image: Image, port: int) -> Container | None:
    if image.reference is None:
        return None
    return Container(
        image=image.reference,
        program=() if image.entrypoint else engine_program(image.engine),
        gpus="all" if image.gpu else None,
        ipc=image.ipc,
        publish=(f"{LOOPBACK}:{port}:{port}",),
        mounts=(Mount(HUB_CACHE, HUB_INSIDE),),
        options=health_options(image.health_port, port),
    )


def with_assets(container: Container, image: Image, recipe: Recipe) -> Container:
    """The container with the recipe's assets: its program becomes a script that fetches them first."""
    fetches = [command for asset in recipe.assets if (command := asset.fetch_command)]
    if not fetches:
        return container
    script = " && ".join([*fetches, " ".join(engine_program(image.engine))])
    return replace(container, entrypoint="" if image.entrypoint else None, program=("bash", "-c", script))


def _refuse_assets(recipe: Recipe) -> None:
    for asset in recipe.assets:
        if asset.fetch_command:
            raise UsageError(
                f"{recipe.name} needs {asset.name} in its container, and here it runs without one",
                next="firesteel models",
            )


def from_checkpoint(
    checkpoint: Checkpoint, name: str, engine: EngineName, image: Image | None, ask: Ask
) -> Launch:
    """A checkpoint without a recipe, in the image if that is a container."""
    limit = checkpoint.architecture.max_context
    context = ask.context or min(limit, DEFAULT_CONTEXT)
    if context > limit:
        raise UsageError(f"{checkpoint.name} takes {limit:,} tokens at most", next=f"--context {limit}")
    flags = {**size_flags(engine, context, ask.users or 1), **METRICS_FLAGS[engine]}
    if engine == "vllm" and checkpoint.kv_cache_dtype:  # what its `auto` would choose, spelled out
        flags = {**flags, "kv-cache-dtype": checkpoint.kv_cache_dtype}
    launch = Launch(
        name=name,
        model=checkpoint.model,
        engine=engine,
        version=image.version if image else None,
        flags=flags,
        port=ask.port or DEFAULT_PORT,
    )
    if image and image.reference:
        launch = in_container(launch, image)
    return with_user_options(launch, ask)


def in_container(launch: Launch, image: Image) -> Launch:
    """A launch without a container, in this image, reached through the loopback address alone.

    A model on disk is mounted read-only; a Hub id stays one, with the host's cache mounted.
    """
    container = _container(image, launch.port)
    if container is None:
        return replace(launch, container=None)
    flags = {name: value for name, value in launch.flags.items() if name != "host"}
    if not (launch.model.startswith("/") or launch.model.lower().endswith(".gguf")):
        env = {**HUB_ENV[launch.engine], **launch.env}
        return replace(launch, flags=flags, env=env, container=container)
    folder, _, name = launch.model.rpartition("/")
    inside = f"{MODELS_INSIDE}/{name}"
    is_file = name.lower().endswith(".gguf")
    mount = Mount(folder or ".", MODELS_INSIDE, True) if is_file else Mount(launch.model, inside, True)
    return replace(launch, model=inside, flags=flags, container=replace(container, mounts=(mount,)))


# --- planning ---


def with_user_options(launch: Launch, ask: Ask) -> Launch:
    """What the user typed, in place of what the recipe has."""
    flags: dict[str, FlagValue] = {}
    if ask.kv_cache_dtype == "auto":  # whatever the checkpoint is calibrated for
        pass
    elif ask.kv_cache_dtype and launch.engine == "llamacpp":
        flags |= {"cache-type-k": ask.kv_cache_dtype, "cache-type-v": ask.kv_cache_dtype}
    elif ask.kv_cache_dtype:
        flags["kv-cache-dtype"] = ask.kv_cache_dtype
    if ask.kv_cache_bytes is not None:
        if launch.engine != "vllm":
            raise UsageError("only vLLM takes the size of its cache in bytes", next="--engine vllm")
        flags["kv-cache-memory-bytes"] = str(ask.kv_cache_bytes)
    changed = replace(launch, flags={**launch.flags, **flags}, version=ask.version or launch.version)
    return across_sparks(changed, ask.sparks or launch.sparks)


def native(launch: Launch, program: EngineProgram) -> Launch:
    """Served by a program of this machine, and checked against that program's release.

    A release that it does not tell is not known: that of the recipe's image would be a guess.
    """
    return replace(launch, container=None, program=program, version=program.version)


def with_adapters(launch: Launch, adapters: Sequence[Adapter]) -> Launch:
    """A path is mounted into the container; a Hub id is in the cache that is mounted already."""
    if not adapters:
        return launch
    container, mounts, inside = launch.container, [], []
    for adapter in adapters:
        if container and adapter.path.startswith("/"):
            target = f"{ADAPTERS_INSIDE}/{adapter.name}{PurePosixPath(adapter.path).suffix}"
            mounts.append(Mount(adapter.path, target, read_only=True))
            adapter = replace(adapter, path=target)
        inside.append(adapter)
    return replace(
        launch,
        flags={**launch.flags, **adapter_flags(launch.engine, inside)},
        container=replace(container, mounts=(*container.mounts, *mounts)) if container else None,
        adapter_bytes=sum(adapter.bytes for adapter in adapters),
    )


def across_sparks(launch: Launch, sparks: int) -> Launch:
    """The first node of a launch over several Sparks.

    Nodes reach each other at ports that they choose themselves and through the link's RDMA devices: what the
    rules `cluster-behind-bridge` and `cluster-without-rdma` ask of other people's launches;
    https://docs.vllm.ai/en/latest/serving/parallelism_scaling/, seen 2026-11-15.
    """
    if sparks == 1 or launch.engine == "llamacpp":  # llama.cpp has no tensor parallelism between machines
        return replace(launch, sparks=sparks)
    flags = {
        **launch.flags, "tensor-parallel-size": str(sparks), "nnodes": str(sparks), "node-rank": "0",
        ("master-addr" if launch.engine == "vllm" else "dist-init-addr"): "$HEAD",
    }  # fmt: skip
    container = launch.container
    if container:
        flags.setdefault("host", LOOPBACK)  # nothing is published on the host's network
        given = {name for name, _ in container.options}
        rdma = (("device", "/dev/infiniband"), ("ulimit", "memlock=-1"))
        container = replace(
            container,
            network="host",
            ipc=container.ipc or "host",
            publish=(),
            options=(*container.options, *(option for option in rdma if option[0] not in given)),
        )
    return replace(launch, flags=flags, container=container, sparks=sparks)


def on_rank(launch: Launch, flags: Mapping[str, FlagValue], env: Mapping[str, str]) -> Launch:
    """As one host of several runs it: rank and addresses are its own, and so are the names of interfaces."""
    return replace(launch, flags={**launch.flags, **flags}, env={**env, **launch.env})


def with_memory_flags(
    launch: Launch, cache: KvCache, needed_bytes: float, total_bytes: int, budget_bytes: int
) -> Launch:
    """The engine reserves what the plan gives it; what the launch itself says of its memory stays."""
    if MEMORY_FLAGS & launch.flags.keys():
        return launch
    flags = memory_flags(launch.engine, cache, needed_bytes, total_bytes, budget_bytes)
    return replace(launch, flags={**launch.flags, **flags})


def with_flags(launch: Launch, flags: Mapping[str, FlagValue]) -> Launch:
    """A candidate of `tune`: the same launch with these flags in place of its own."""
    return replace(launch, flags=flags)


# --- starting ---


def with_host_folders(launch: Launch, hub_cache: Mount, compiled: str | None) -> Launch:
    """For other tools: the Hub's cache of this user, and a folder in which compiled kernels are kept.

    Unlike with `up` the weights may not be there yet: the cache stays writable, and nothing is offline.
    """
    container = launch.container
    if container is None:
        return launch
    mounts = tuple(hub_cache if mount.target == HUB_INSIDE else mount for mount in container.mounts)
    env = dict(COMPILE_CACHE_ENV[launch.engine]) if compiled else {}
    if compiled:
        mounts = (*mounts, Mount(compiled, COMPILED_INSIDE))
    return replace(launch, env={**env, **launch.env}, container=replace(container, mounts=mounts))


def listening_on(launch: Launch, address: str, key_variable: str | None) -> Launch:
    """Bound to an address. The engine gets its key by variable: the value is in the secrets file."""
    if launch.container is None:
        launch = replace(launch, flags={**launch.flags, "host": address})
    else:
        bracketed = f"[{address}]" if ":" in address else address
        publish = (port.replace(f"{LOOPBACK}:", f"{bracketed}:", 1) for port in launch.container.publish)
        launch = replace(launch, container=replace(launch.container, publish=tuple(publish)))
    if key_variable:
        launch = replace(launch, env={**launch.env, key_variable: f"${key_variable}"})
    return launch


def with_local_files(
    launch: Launch, hub_cache: str, compiled: str, wheels: str | None = None, revision: str | None = None
) -> Launch:
    """The container as it runs after a pull: offline, with the host's Hub cache and compiled kernels.

    The cache is mounted read-only: a container that runs as root leaves no files there that its owner cannot
    touch. What the recipe says of a variable or a flag stays.
    """
    container = launch.container
    if container is None:
        return launch
    mounts = tuple(
        mount
        for mount in container.mounts
        if mount.target.startswith(ADAPTERS_INSIDE)
        or (mount.target != HUB_INSIDE and not mount.source.startswith(f"{hub_cache}/"))
    )
    env = dict(COMPILE_CACHE_ENV[launch.engine])
    if len(mounts) < len(container.mounts):
        mounts = (*mounts, Mount(hub_cache, HUB_CACHE_INSIDE, read_only=True))
        env |= OFFLINE_ENV[launch.engine]
    mounts = (*mounts, Mount(compiled, COMPILED_INSIDE))
    if wheels:
        env |= _WHEELS_ENV
        mounts = (*mounts, Mount(wheels, WHEELS_INSIDE, read_only=True))
    # A commit that no branch names must be given; llama.cpp knows no revisions.
    pinned = {"revision": revision} if revision and launch.engine != "llamacpp" else {}
    return replace(
        launch,
        model=_in_hub_cache(launch, container, hub_cache),
        flags={**pinned, **launch.flags},
        env={**env, **launch.env},
        container=replace(container, mounts=mounts),
    )


def with_native_files(launch: Launch, hub_cache: str, revision: str | None = None) -> Launch:
    """A program after a pull: offline, with the host's Hub cache.

    What it compiles stays in the user's own caches, which other starts of the same program share.
    """
    env = {"HF_HUB_CACHE": hub_cache, **OFFLINE_ENV[launch.engine]}
    pinned = {"revision": revision} if revision and launch.engine != "llamacpp" else {}
    return replace(launch, flags={**pinned, **launch.flags}, env={**env, **launch.env})


def _in_hub_cache(launch: Launch, container: Container, hub_cache: str) -> str:
    """A file of the cache is a link into another folder of it, so the whole cache is mounted."""
    for mount in container.mounts:
        if mount.source.startswith(f"{hub_cache}/") and launch.model.startswith(mount.target):
            return f"{HUB_CACHE_INSIDE}{mount.source[len(hub_cache) :]}{launch.model[len(mount.target) :]}"
    return launch.model


def supervised(launch: Launch, container: Container) -> Launch:
    """In the foreground as a child of its supervisor; nothing is left to clean up when it ends.

    One that may ask the Hub gets the caller's token, endpoint and proxies by name, where there are any; one
    whose files are all here does not.
    """
    is_offline = OFFLINE_ENV[launch.engine].items() <= launch.env.items()
    return replace(
        launch,
        container=replace(container, options=(*container.options, *_SUPERVISED_OPTIONS)),
        env={**({} if is_offline else {name: f"${name}" for name in DOWNLOAD_ENV}), **launch.env},
    )


def llamacpp_process(launch: Launch, model_path: str, cores: int) -> Launch:
    """The embedded engine or a program. On a CPU llama.cpp's threads wait for each other at every layer: one
    that shares its core slows all, while the others spin and take the core from it."""
    defaults: dict[str, FlagValue] = {"log-verbosity": _LOG_WITH_BUFFERS, **METRICS_FLAGS["llamacpp"]}
    if not launch.uses_gpu:
        defaults["threads"] = str(max(1, cores - 1))
    env = {**openmp_environment(launch), **launch.env}
    return replace(launch, model=model_path, flags={**defaults, **launch.flags}, env=env)


def openmp_environment(launch: Launch) -> dict[str, str]:
    """Of every llama.cpp process, also on other hosts: how often a waiting thread looks before it sleeps, by
    default 300,000 times. The same speed on an idle host, 17 x at a load of 9 (benchmarks/RESULTS.md)."""
    return {} if launch.uses_gpu else {"GOMP_SPINCOUNT": "1000"}
