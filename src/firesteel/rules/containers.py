"""The box around an engine: what it keeps, what it reaches, and the variables that it is given.

A container forgets what no mount holds, and sees neither the host's network nor its devices unless told.
Where an option cannot be read to the end (`$OPTS`, `--volumes-from`), or an image may have a home of its own,
these say nothing: a false alarm costs more than a miss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from firesteel.catalog import plain_reference
from firesteel.launch import Container, Launch
from firesteel.rules.context import Context, Match, as_number
from firesteel.rules.exposure import is_hub_id

_PLAIN_HOMES = (
    "vllm/vllm-openai:",
    "nvcr.io/nvidia/vllm:",
    "lmsysorg/sglang:",
    "ghcr.io/ggml-org/llama.cpp:",
)
"""Images that run as root and set no cache folder of their own."""
_USER = "root"
"""Whom these images run as, and so whose home holds the cache."""
_HF_CACHES = (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "/hub"))
_UNREADABLE = ("volume", "mount", "volumes-from", "tmpfs", "env-file")
_SHELLS = ("bash", "sh", "zsh", "dash")
_ON = ("1", "true")
_TWIN = re.compile(r"=?roce(?:p1|P2p1)s0f[01](?:np[01])?(?::1)?")
_KERNELS_FOR_CACHE = ("f16", "bf16", "f32", "q4_0", "q8_0")
_FP_DEFAULT = "f16"
_MANY_JOBS = 4
_AEON_BATCH = 32768
_MOST_OF_MEMORY = 0.90


def _option(box: Container, name: str) -> list[str | None]:
    return [value for given, value in box.options if given == name]


def _is_on(box: Container, switch: str) -> bool:
    return any(value in (None, "true") for value in _option(box, switch))


def _covers(box: Container, path: str) -> bool:
    """Whether a mount holds this folder, one above it or one below it."""
    folder = path.rstrip("/") + "/"
    targets = (mount.target.rstrip("/") + "/" for mount in box.mounts)
    return any(folder.startswith(target) or target.startswith(folder) for target in targets)


def _is_readable(box: Container) -> bool:
    """Every mount is known, and none has a target that somebody has yet to fill in."""
    named = {name for name, _ in box.options}
    return not named & set(_UNREADABLE) and not any("$" in mount.target for mount in box.mounts)


# --- what it keeps ---


def _said_cache(launch: Launch) -> tuple[str, str] | None:
    """The variable or flag that says where downloads go, and the folder."""
    folder = launch.flags.get("download-dir")
    if isinstance(folder, str):
        return "flag:download-dir", folder
    if launch.engine == "llamacpp" and "LLAMA_CACHE" in launch.env:
        return "env:LLAMA_CACHE", launch.env["LLAMA_CACHE"]
    for name, below in _HF_CACHES:
        if launch.env.get(name):
            return f"env:{name}", launch.env[name].rstrip("/") + below
    return None


def _caches(scene: Context) -> tuple[str, ...]:
    """The folders in which the engine may keep what it downloads; none when that is not known."""
    box, said = scene.launch.container, _said_cache(scene.launch)
    if box is None or not _is_readable(box):
        return ()
    if said:
        return () if "$" in said[1] else (said[1],)
    moved = "HOME" in scene.launch.env or "XDG_CACHE_HOME" in scene.launch.env or _option(box, "user")
    if moved or not plain_reference(box.image).startswith(_PLAIN_HOMES):
        return ()
    older = (f"/{_USER}/.cache/llama.cpp",) if scene.launch.engine == "llamacpp" else ()
    return (f"/{_USER}/.cache/huggingface/hub", *older)


def _is_lost(scene: Context) -> bool:
    """The model comes from the Hub, and no mount holds what is downloaded."""
    box, folders = scene.launch.container, _caches(scene)
    if box is None or not folders or not is_hub_id(scene.launch.model):
        return False
    return not any(_covers(box, folder) for folder in folders)


def downloads_thrown_away(scene: Context) -> list[Match]:
    box = scene.launch.container
    if box is None or not _is_on(box, "rm") or not _is_lost(scene):
        return []
    return [Match("option:rm", "--rm", "rm", _caches(scene)[0].removesuffix("/hub"))]


def cache_not_where_engine_looks(scene: Context) -> list[Match]:
    """A Hub cache is mounted, or a variable names one, and the two do not meet."""
    box, said = scene.launch.container, _said_cache(scene.launch)
    if box is None or not _is_lost(scene):
        return []
    looks = _caches(scene)[0].removesuffix("/hub")
    if said:
        name = said[0].partition(":")[2]
        return [Match(said[0], f"{name} {looks}", name, looks)]
    return [
        Match("option:volume", f"-v {mount.source}:{mount.target}", "volume", looks)
        for mount in box.mounts
        if "huggingface" in f"{mount.source}:{mount.target}"
    ][:1]


def model_not_mounted(scene: Context) -> list[Match]:
    """A path inside the container that no mount brings in, in an image that carries no model."""
    box, model = scene.launch.container, scene.launch.model
    if box is None or not model.startswith(("/", "~/")) or "$" in model or not _is_readable(box):
        return []
    if not plain_reference(box.image).startswith(_PLAIN_HOMES) or _covers(box, model):
        return []
    if model.startswith("/mnt/models"):  # KServe brings the model there by itself
        return []
    return [Match("model", model, "model", model)]


def removed_and_restarted(scene: Context) -> list[Match]:
    box = scene.launch.container
    if box is None or not _is_on(box, "rm") or box.restart in (None, "", "no"):
        return []
    return [Match("option:restart", f"--rm --restart {box.restart}", "restart", box.restart)]


# --- shared memory ---


def size_of_hosts_shm(scene: Context) -> list[Match]:
    """`--ipc=host` brings the host's own /dev/shm, and a size beside it is not looked at."""
    box = scene.launch.container
    if box is None or box.ipc != "host" or box.shm_bytes is None:
        return []
    return [Match("option:shm-size", "--ipc host --shm-size", "shm-size", f"{box.shm_bytes / 2**30:g}g")]


def small_shm(scene: Context) -> list[Match]:
    """Several workers, and docker's 64 MB between them."""
    box = scene.launch.container
    sizes = (scene.number(name) for name in ("tensor-parallel-size", "data-parallel-size"))
    if (
        box is None
        or box.ipc in ("host", "shareable")
        or box.shm_bytes
        or not any((n or 1) > 1 for n in sizes)
    ):
        return []
    held = _covers(box, "/dev/shm") or not _is_readable(box) or (box.ipc or "").startswith("container:")
    return [] if held else [Match("image", "no --ipc=host and no --shm-size", "shm-size")]


# --- ports and networks ---


def publishes_on_hosts_network(scene: Context) -> list[Match]:
    box = scene.launch.container
    if box is None or box.network != "host" or not box.publish:
        return []
    return [Match("option:publish", f"--network host -p {box.publish[0]}", "publish", box.publish[0])]


def publishes_another_port(scene: Context) -> list[Match]:
    """The engine was told a port, and every published one leads elsewhere."""
    box, port = scene.launch.container, scene.launch.port
    if box is None or box.network == "host" or not box.publish or not scene.launch.model:
        return []
    if any("PORT" in name for name in scene.launch.env):
        return []
    inside = [published.rsplit(":", 1)[-1].removesuffix("/tcp") for published in box.publish]
    if not all(each.isdecimal() for each in inside) or str(port) in inside:
        return []
    return [Match("option:publish", f"-p {box.publish[0]}", inside[0], str(port))]


def _nodes(scene: Context) -> float:
    return scene.number("nnodes") or 1


def _uses_ray(scene: Context) -> bool:
    return str(scene.flags.get("distributed-executor-backend", "")).lower() == "ray"


def spans_nodes(scene: Context) -> list[Match]:
    if _nodes(scene) > 1:
        return [Match("flag:nnodes", f"--nnodes {_nodes(scene):g}", "nnodes", f"{_nodes(scene):g}")]
    if _uses_ray(scene):
        name = "distributed-executor-backend"
        return [Match(f"flag:{name}", f"--{name} ray", name, "ray")]
    return []


def cluster_behind_bridge(scene: Context) -> list[Match]:
    """Several nodes, and a container on docker's own bridge, which the other nodes cannot reach."""
    box = scene.launch.container
    return spans_nodes(scene) if box and box.network in (None, "bridge", "default") else []


def cluster_without_rdma(scene: Context) -> list[Match]:
    box = scene.launch.container
    if box is None or _is_on(box, "privileged") or not _is_readable(box):
        return []
    devices = [value or "" for value in _option(box, "device")] + [mount.source for mount in box.mounts]
    has_it = any("infiniband" in each or each in ("/dev", "/dev/") or "$" in each for each in devices)
    return [] if has_it else spans_nodes(scene)


def beyond_one_gpu(scene: Context) -> list[Match]:
    """More ranks than nodes, with one GPU in each: nobody said that there are others."""
    backend = str(scene.flags.get("distributed-executor-backend", ""))
    sizes = [scene.flags.get(name) for name in ("tensor-parallel-size", "pipeline-parallel-size", "nnodes")]
    if backend in ("ray", "external_launcher") or any(each and as_number(each) is None for each in sizes):
        return []
    tensor, pipeline, nodes = (as_number(each) or 1 for each in sizes)
    if tensor * pipeline <= nodes:
        return []
    name = "tensor-parallel-size" if tensor > 1 else "pipeline-parallel-size"
    return [Match(f"flag:{name}", f"--{name} {max(tensor, pipeline):g}", name, f"{tensor * pipeline:g}")]


# --- variables ---


def _variable(scene: Context, name: str) -> Match:
    value = scene.launch.env[name]
    typed = f"{name}={value}"
    return Match(f"env:{name}", f"-e {typed}" if scene.launch.container else typed, name, value)


def _numbered(scene: Context, name: str, above: float) -> list[Match]:
    number = as_number(scene.launch.env.get(name))
    return [_variable(scene, name)] if number is not None and number > above else []


def pinned_gid(scene: Context) -> list[Match]:
    return _numbered(scene, "NCCL_IB_GID_INDEX", -1)


def empty_gid(scene: Context) -> list[Match]:
    name = "NCCL_IB_GID_INDEX"
    return [_variable(scene, name)] if scene.launch.env.get(name) == "" else []


def one_rail(scene: Context) -> list[Match]:
    """One of the two devices that a single port of a Spark shows as."""
    named = scene.launch.env.get("NCCL_IB_HCA", "")
    return [_variable(scene, "NCCL_IB_HCA")] if _TWIN.fullmatch(named) else []


def rdma_switched_off(scene: Context) -> list[Match]:
    off = scene.launch.env.get("NCCL_IB_DISABLE", "").lower() in _ON
    return [_variable(scene, "NCCL_IB_DISABLE")] if off and spans_nodes(scene) else []


def expandable_segments(scene: Context) -> list[Match]:
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    given = ((name, scene.launch.env.get(name, "").lower().replace(" ", "")) for name in names)
    return [_variable(scene, name) for name, value in given if "expandable_segments:true" in value]


def many_jit_jobs(scene: Context) -> list[Match]:
    return _numbered(scene, "MAX_JOBS", _MANY_JOBS)


def large_aeon_batch(scene: Context) -> list[Match]:
    return _numbered(scene, "MAX_NUM_BATCHED_TOKENS", _AEON_BATCH)


def variable_takes_all_memory(scene: Context) -> list[Match]:
    return _numbered(scene, "GPU_MEMORY_UTILIZATION", _MOST_OF_MEMORY)


# --- image and program ---


def another_architecture(scene: Context) -> list[Match]:
    """An image for x86-64: by its tag, or because docker is told to fetch that one."""
    box = scene.launch.container
    if box is None:
        return []
    asked = [value or "" for value in _option(box, "platform")]
    if any(value.startswith(("linux/amd64", "linux/x86_64")) for value in asked):
        return [Match("option:platform", f"--platform {asked[-1]}", "platform", asked[-1])]
    tag = box.image.partition("@")[0]
    return [Match("image", box.image, "image", box.image)] if tag.endswith(("-x86_64", "-amd64")) else []


def asks_for_gpu(scene: Context) -> list[Match]:
    box, layers = scene.launch.container, scene.launch.flags.get("n-gpu-layers", "0")
    if box and (box.gpus or "nvidia" in _option(box, "runtime")):
        return [Match("option:gpus", "--gpus", "gpus", box.gpus or "nvidia")]
    return (
        [] if layers in ("0", "auto") else [Match("flag:n-gpu-layers", "-ngl", "n-gpu-layers", str(layers))]
    )


def _program(scene: Context) -> str:
    box = scene.launch.container
    return " ".join((box.entrypoint or "", *box.program)) if box else ""


def runs_script_first(scene: Context) -> list[Match]:
    """A shell starts the engine, and may install things before it does."""
    words = _program(scene).split()
    is_script = any(word.rpartition("/")[2] in _SHELLS or word.endswith((".sh", ".py")) for word in words[:2])
    return [Match("program", words[0], words[0])] if is_script else []


def installs_scipy(scene: Context) -> list[Match]:
    return [Match("program", "scipy", "scipy")] if "scipy" in _program(scene) else []


def hides_worker_logs(scene: Context) -> list[Match]:
    hidden = re.search(r"--include-log-monitor[= ]false", _program(scene), re.IGNORECASE)
    return [Match("program", hidden[0], "include-log-monitor", "false")] if hidden else []


# --- sizes that must agree ---


def graphs_below_users(scene: Context) -> list[Match]:
    """The largest captured batch is smaller than the number of users."""
    users, largest = scene.number("max-num-seqs"), max(_captured(scene), default=None)
    if users is None or largest is None or largest >= users:
        return []
    saw = f"CUDA graphs up to {largest:g}, --max-num-seqs {users:g}"
    return [Match("flag:max-num-seqs", saw, "max-num-seqs", f"{largest:g}")]


def _captured(scene: Context) -> Iterator[float]:
    config = scene.flags.get("compilation-config")
    inside = config if isinstance(config, dict) else {}
    sizes = inside.get("cudagraph_capture_sizes") or scene.flags.get("cudagraph-capture-sizes")
    largest = inside.get("max_cudagraph_capture_size", scene.flags.get("max-cudagraph-capture-size"))
    for each in (*(sizes if isinstance(sizes, list) else ()), largest):
        if (number := as_number(each)) is not None:
            yield number


def cache_types_without_kernels(scene: Context) -> list[Match]:
    """llama.cpp as it is built by default has kernels for equal types, and for few of them."""
    flags = scene.launch.flags
    key, value = (str(flags.get(f"cache-type-{which}", _FP_DEFAULT)).lower() for which in "kv")
    if "$" in key + value or (key == value and key in _KERNELS_FOR_CACHE):
        return []
    name = "cache-type-v" if "cache-type-v" in flags else "cache-type-k"
    return [Match(f"flag:{name}", f"-ctk {key} -ctv {value}", name, f"{key} and {value}")]


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
    "runs-script-first": runs_script_first,
    "installs-scipy": installs_scipy,
    "hides-worker-logs": hides_worker_logs,
    "graphs-below-users": graphs_below_users,
    "cache-types-without-kernels": cache_types_without_kernels,
}
