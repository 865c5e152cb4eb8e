"""Checks of the container: what it keeps, what it can reach, its variables, and misplaced arguments.

A container loses everything outside its mounts, and has neither the host's network nor its devices unless
an option gives it access. Where an option cannot be read completely (`$OPTS`, `--volumes-from`), or an
image may use another home folder, these checks report nothing: a false alarm costs more than a miss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

from firesteel.engines.schema.releases import find_schema
from firesteel.engines.schema.symbols import AmbiguousFlag, resolve_flag
from firesteel.launch import Container, Launch, is_hub_model, plain_reference
from firesteel.rules.context import NEWEST_KNOWN, Context, Match, as_number

_ROOT_IMAGES = (
    "vllm/vllm-openai:",
    "nvcr.io/nvidia/vllm:",
    "lmsysorg/sglang:",
    "ghcr.io/ggml-org/llama.cpp:",
)
"""Images that run as root and do not move the cache folder."""
_HF_CACHES = (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "/hub"))
_UNREADABLE = ("volume", "mount", "volumes-from", "tmpfs", "env-file")
_SHELLS = ("bash", "sh", "zsh", "dash")
_TRUE_VALUES = ("1", "true")
_ONE_DEVICE = re.compile(r"=?roce(?:p1|P2p1)s0f[01](?:np[01])?(?::1)?")
_KERNELS_FOR_CACHE = ("f16", "bf16", "f32", "q4_0", "q8_0")
_DEFAULT_CACHE_TYPE = "f16"


def _option(container: Container, name: str) -> list[str | None]:
    return [value for given, value in container.options if given == name]


def _is_on(container: Container, switch: str) -> bool:
    return any(value in (None, "true") for value in _option(container, switch))


def _covers(container: Container, path: str) -> bool:
    """Whether a mount contains this folder or lies inside it."""
    folder = path.rstrip("/") + "/"
    targets = (mount.target.rstrip("/") + "/" for mount in container.mounts)
    return any(folder.startswith(target) or target.startswith(folder) for target in targets)


def _is_readable(container: Container) -> bool:
    """Every mount is known, and no target contains a variable."""
    named = {name for name, _ in container.options}
    return not named & set(_UNREADABLE) and not any("$" in mount.target for mount in container.mounts)


# --- what it keeps ---


def _given_cache(launch: Launch) -> tuple[str, str] | None:
    """The flag or variable that sets the download folder, and the folder."""
    folder = launch.flags.get("download-dir")
    if isinstance(folder, str):
        return "flag:download-dir", folder
    if launch.engine == "llamacpp" and "LLAMA_CACHE" in launch.env:
        return "env:LLAMA_CACHE", launch.env["LLAMA_CACHE"]
    for name, below in _HF_CACHES:
        if launch.env.get(name):
            return f"env:{name}", launch.env[name].rstrip("/") + below
    return None


def _caches(context: Context) -> tuple[str, ...]:
    """The folders where the engine may store downloads; empty when that is not known."""
    container, given = context.launch.container, _given_cache(context.launch)
    if container is None or not _is_readable(container):
        return ()
    if given:
        return () if "$" in given[1] else (given[1],)
    moved = (
        "HOME" in context.launch.env or "XDG_CACHE_HOME" in context.launch.env or _option(container, "user")
    )
    if moved or not plain_reference(container.image).startswith(_ROOT_IMAGES):
        return ()
    cache = f"/{'root'}/.cache"  # inside the container, named after its user
    older = (f"{cache}/llama.cpp",) if context.launch.engine == "llamacpp" else ()
    return (f"{cache}/huggingface/hub", *older)


def _loses_downloads(context: Context) -> bool:
    """The model comes from the Hub, and no mount contains the download folder."""
    container, folders = context.launch.container, _caches(context)
    if container is None or not folders or not is_hub_model(context.launch.model):
        return False
    return not any(_covers(container, folder) for folder in folders)


def downloads_thrown_away(context: Context) -> list[Match]:
    container = context.launch.container
    if container is None or not _is_on(container, "rm") or not _loses_downloads(context):
        return []
    return [Match("option:rm", "--rm", "rm", _caches(context)[0].removesuffix("/hub"))]


def cache_not_where_engine_looks(context: Context) -> list[Match]:
    """A Hub cache is mounted, or a variable sets one, and the engine uses another folder."""
    container, given = context.launch.container, _given_cache(context.launch)
    if container is None or not _loses_downloads(context):
        return []
    folder = _caches(context)[0].removesuffix("/hub")
    if given:
        name = given[0].partition(":")[2]
        return [Match(given[0], f"{name} {folder}", name, folder)]
    return [
        Match("option:volume", f"-v {mount.source}:{mount.target}", "volume", folder)
        for mount in container.mounts
        if "huggingface" in f"{mount.source}:{mount.target}"
    ][:1]


def model_not_mounted(context: Context) -> list[Match]:
    """A path that no mount provides, in an image that contains no model."""
    container, model = context.launch.container, context.launch.model
    if container is None or not model.startswith(("/", "~/")) or "$" in model or not _is_readable(container):
        return []
    if not plain_reference(container.image).startswith(_ROOT_IMAGES) or _covers(container, model):
        return []
    if model.startswith("/mnt/models"):  # KServe puts the model there itself
        return []
    return [Match("model", model, "model", model)]


def removed_and_restarted(context: Context) -> list[Match]:
    container = context.launch.container
    if container is None or not _is_on(container, "rm") or container.restart in (None, "", "no"):
        return []
    return [Match("option:restart", f"--rm --restart {container.restart}", "restart", container.restart)]


# --- shared memory ---


def size_of_hosts_shm(context: Context) -> list[Match]:
    """`--ipc=host` uses the /dev/shm of the host, and the size is ignored."""
    container = context.launch.container
    if container is None or container.ipc != "host" or container.shm_bytes is None:
        return []
    return [
        Match("option:shm-size", "--ipc host --shm-size", "shm-size", f"{container.shm_bytes / 2**30:g}g")
    ]


def small_shm(context: Context) -> list[Match]:
    """Several workers that share docker's default of 64 MB."""
    container = context.launch.container
    sizes = (context.number(name) for name in ("tensor-parallel-size", "data-parallel-size"))
    if (
        container is None
        or container.ipc in ("host", "shareable")
        or container.shm_bytes
        or not any((n or 1) > 1 for n in sizes)
    ):
        return []
    is_provided = (
        _covers(container, "/dev/shm")
        or not _is_readable(container)
        or (container.ipc or "").startswith("container:")
    )
    return [] if is_provided else [Match("image", "no --ipc=host and no --shm-size", "shm-size")]


# --- ports and networks ---


def publishes_on_hosts_network(context: Context) -> list[Match]:
    container = context.launch.container
    if container is None or container.network != "host" or not container.publish:
        return []
    return [
        Match("option:publish", f"--network host -p {container.publish[0]}", "publish", container.publish[0])
    ]


def publishes_another_port(context: Context) -> list[Match]:
    """Every published port leads to another port than the engine's."""
    container, port = context.launch.container, context.launch.port
    if container is None or container.network == "host" or not container.publish or not context.launch.model:
        return []
    if any("PORT" in name for name in context.launch.env):
        return []
    inside = [published.rsplit(":", 1)[-1].removesuffix("/tcp") for published in container.publish]
    if not all(number.isdecimal() for number in inside) or str(port) in inside:
        return []
    return [Match("option:publish", f"-p {container.publish[0]}", inside[0], str(port))]


def spans_nodes(context: Context) -> list[Match]:
    nodes, backend = context.number("nnodes") or 1, "distributed-executor-backend"
    if nodes > 1:
        return [Match("flag:nnodes", f"--nnodes {nodes:g}", "nnodes", f"{nodes:g}")]
    uses_ray = str(context.flags.get(backend, "")).lower() == "ray"
    return [Match(f"flag:{backend}", f"--{backend} ray", backend, "ray")] if uses_ray else []


def cluster_behind_bridge(context: Context) -> list[Match]:
    """Several nodes, and a container on docker's bridge network, which other nodes cannot reach."""
    container = context.launch.container
    return spans_nodes(context) if container and container.network in (None, "bridge", "default") else []


def cluster_without_rdma(context: Context) -> list[Match]:
    container = context.launch.container
    if container is None or _is_on(container, "privileged") or not _is_readable(container):
        return []
    devices = [value or "" for value in _option(container, "device")] + [
        mount.source for mount in container.mounts
    ]
    has_rdma = any("infiniband" in path or path in ("/dev", "/dev/") or "$" in path for path in devices)
    return [] if has_rdma else spans_nodes(context)


def beyond_one_gpu(context: Context) -> list[Match]:
    """More ranks than nodes, each of which has one GPU."""
    backend = str(context.flags.get("distributed-executor-backend", ""))
    sizes = [context.flags.get(name) for name in ("tensor-parallel-size", "pipeline-parallel-size", "nnodes")]
    if backend in ("ray", "external_launcher") or any(size and as_number(size) is None for size in sizes):
        return []
    tensor, pipeline, nodes = (as_number(size) or 1 for size in sizes)
    if tensor * pipeline <= nodes:
        return []
    name = "tensor-parallel-size" if tensor > 1 else "pipeline-parallel-size"
    return [Match(f"flag:{name}", f"--{name} {max(tensor, pipeline):g}", name, f"{tensor * pipeline:g}")]


# --- variables ---


def _variable(context: Context, name: str) -> Match:
    value = context.launch.env[name]
    shown = f"{name}={value}"
    return Match(f"env:{name}", f"-e {shown}" if context.launch.container else shown, name, value)


def _variable_above(context: Context, name: str, limit: float) -> list[Match]:
    number = as_number(context.launch.env.get(name))
    return [_variable(context, name)] if number is not None and number > limit else []


pinned_gid = partial(_variable_above, name="NCCL_IB_GID_INDEX", limit=-1)
many_jit_jobs = partial(_variable_above, name="MAX_JOBS", limit=4)
large_aeon_batch = partial(_variable_above, name="MAX_NUM_BATCHED_TOKENS", limit=32768)
variable_takes_all_memory = partial(_variable_above, name="GPU_MEMORY_UTILIZATION", limit=0.90)


def empty_gid(context: Context) -> list[Match]:
    name = "NCCL_IB_GID_INDEX"
    return [_variable(context, name)] if context.launch.env.get(name) == "" else []


def one_rail(context: Context) -> list[Match]:
    """Only one of the two devices as which a single port of a Spark appears."""
    device = context.launch.env.get("NCCL_IB_HCA", "")
    return [_variable(context, "NCCL_IB_HCA")] if _ONE_DEVICE.fullmatch(device) else []


def rdma_switched_off(context: Context) -> list[Match]:
    is_off = context.launch.env.get("NCCL_IB_DISABLE", "").lower() in _TRUE_VALUES
    return [_variable(context, "NCCL_IB_DISABLE")] if is_off and spans_nodes(context) else []


def expandable_segments(context: Context) -> list[Match]:
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    given = ((name, context.launch.env.get(name, "").lower().replace(" ", "")) for name in names)
    return [_variable(context, name) for name, value in given if "expandable_segments:true" in value]


# --- image and program ---


def another_architecture(context: Context) -> list[Match]:
    """An image for x86-64, by its tag or by `--platform`."""
    container = context.launch.container
    if container is None:
        return []
    platforms = [value or "" for value in _option(container, "platform")]
    if any(value.startswith(("linux/amd64", "linux/x86_64")) for value in platforms):
        return [Match("option:platform", f"--platform {platforms[-1]}", "platform", platforms[-1])]
    tag = container.image.partition("@")[0]
    if tag.endswith(("-x86_64", "-amd64")):
        return [Match("image", container.image, "image", container.image)]
    return []


def cluster_needs_runtime(context: Context) -> list[Match]:
    """In a manifest alone: docker's `--runtime nvidia` fails at once where there is none."""
    return [Match("option:runtime", "runtimeClassName", "runtime", "nvidia")] if context.is_gpu_pod else []


def asks_for_gpu(context: Context) -> list[Match]:
    container, layers = context.launch.container, context.launch.flags.get("n-gpu-layers", "0")
    if container and (container.gpus or "nvidia" in _option(container, "runtime")):
        return [Match("option:gpus", "--gpus", "gpus", container.gpus or "nvidia")]
    return (
        [] if layers in ("0", "auto") else [Match("flag:n-gpu-layers", "-ngl", "n-gpu-layers", str(layers))]
    )


def _program(context: Context) -> str:
    container = context.launch.container
    return " ".join((container.entrypoint or "", *container.program)) if container else ""


def runs_script_first(context: Context) -> list[Match]:
    """A shell or script starts the engine, and may install things first."""
    program = _program(context).split()
    is_script = any(
        argument.rpartition("/")[2] in _SHELLS or argument.endswith((".sh", ".py"))
        for argument in program[:2]
    )
    return [Match("program", program[0], program[0])] if is_script else []


def installs_scipy(context: Context) -> list[Match]:
    return [Match("program", "scipy", "scipy")] if "scipy" in _program(context) else []


def hides_worker_logs(context: Context) -> list[Match]:
    hidden = re.search(r"--include-log-monitor[= ]false", _program(context), re.IGNORECASE)
    return [Match("program", hidden[0], "include-log-monitor", "false")] if hidden else []


# --- sizes that must agree ---


def graphs_below_users(context: Context) -> list[Match]:
    """The largest captured batch is smaller than the number of users."""
    users, largest = context.number("max-num-seqs"), max(_captured(context), default=None)
    if users is None or largest is None or largest >= users:
        return []
    shown = f"CUDA graphs up to {largest:g}, --max-num-seqs {users:g}"
    return [Match("flag:max-num-seqs", shown, "max-num-seqs", f"{largest:g}")]


def _captured(context: Context) -> Iterator[float]:
    config = context.flags.get("compilation-config")
    options = config if isinstance(config, dict) else {}
    sizes = options.get("cudagraph_capture_sizes") or context.flags.get("cudagraph-capture-sizes")
    largest = options.get("max_cudagraph_capture_size", context.flags.get("max-cudagraph-capture-size"))
    for size in (*(sizes if isinstance(sizes, list) else ()), largest):
        if (number := as_number(size)) is not None:
            yield number


def cache_types_without_kernels(context: Context) -> list[Match]:
    """A default build of llama.cpp has kernels only for equal types, and for few of them."""
    flags = context.launch.flags
    key, value = (str(flags.get(f"cache-type-{which}", _DEFAULT_CACHE_TYPE)).lower() for which in "kv")
    if "$" in key + value or (key == value and key in _KERNELS_FOR_CACHE):
        return []
    name = "cache-type-v" if "cache-type-v" in flags else "cache-type-k"
    return [Match(f"flag:{name}", f"-ctk {key} -ctv {value}", name, f"{key} and {value}")]


# --- arguments in the wrong place ---

_DOCKER_ONLY = frozenset({
    "d", "e", "env", "gpus", "ipc", "it", "name", "network", "p", "publish", "restart", "rm", "shm-size", "v",
    "volume",
})  # fmt: skip
"""Options of docker that no engine has; each is checked against the newest releases too."""
_GPU_OPTIONS = ("runtime", "device", "privileged")


def docker_options_after_image(context: Context) -> list[Match]:
    """`IMAGE model -p 8000:8000`: docker hands the option to the engine, which does not know it."""
    engine = context.launch.engine
    given = [name for name in context.launch.flags if name in _DOCKER_ONLY]
    options = {name: f"-{name}" if len(name) == 1 or name == "it" else f"--{name}" for name in given}
    if context.launch.container is None or not options or engine == "llamacpp":
        return []  # llama.cpp has short flags too: `-p` is a prompt
    newest = find_schema(engine, NEWEST_KNOWN[engine])
    if newest is None:
        return []
    return [
        Match(f"flag:{name}", typed, typed, name)
        for name, typed in options.items()
        if isinstance(found := resolve_flag(newest, typed), AmbiguousFlag) or found is None
    ]


def model_for_program(context: Context) -> list[Match]:
    """The image runs the command it is given, and that begins with a model or a flag."""
    container, image = context.launch.container, context.image
    if container is None or image is None or container.program or container.entrypoint is not None:
        return []
    if image.entrypoint != () or image.configured_by == "env" or "partial" in context.flaws:
        return []
    first = context.launch.model or "its flags"
    return [Match("image", f"{container.image} {first}", first, container.image)]


def no_gpu_asked_for(context: Context) -> list[Match]:
    """An image for a GPU, without an option that gives it one."""
    container, image = context.launch.container, context.image
    if container is None or image is None or not image.gpu or container.gpus or not context.launch.model:
        return []
    given = {name for name, _ in container.options}
    if given & set(_GPU_OPTIONS) or "NVIDIA_VISIBLE_DEVICES" in context.launch.env:
        return []
    return [Match("image", f"{container.image} without --gpus", container.image, container.image)]


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "downloads-thrown-away": downloads_thrown_away,
    "cache-not-where-engine-looks": cache_not_where_engine_looks,
    "model-not-mounted": model_not_mounted,
    "removed-and-restarted": removed_and_restarted,
    "size-of-hosts-shm": size_of_hosts_shm,
    "small-shm": small_shm,
    "publishes-on-hosts-network": publishes_on_hosts_network,
    "publishes-another-port": publishes_another_port,
    "spans-nodes": spans_nodes,
    "cluster-behind-bridge": cluster_behind_bridge,
    "cluster-without-rdma": cluster_without_rdma,
    "beyond-one-gpu": beyond_one_gpu,
    "pinned-gid": pinned_gid,
    "empty-gid": empty_gid,
    "one-rail": one_rail,
    "rdma-switched-off": rdma_switched_off,
    "expandable-segments": expandable_segments,
    "many-jit-jobs": many_jit_jobs,
    "large-aeon-batch": large_aeon_batch,
    "variable-takes-all-memory": variable_takes_all_memory,
    "another-architecture": another_architecture,
    "asks-for-gpu": asks_for_gpu,
    "cluster-needs-runtime": cluster_needs_runtime,
    "runs-script-first": runs_script_first,
    "installs-scipy": installs_scipy,
    "hides-worker-logs": hides_worker_logs,
    "graphs-below-users": graphs_below_users,
    "cache-types-without-kernels": cache_types_without_kernels,
    "docker-words-after-image": docker_options_after_image,
    "model-for-program": model_for_program,
    "no-gpu-asked-for": no_gpu_asked_for,
}
