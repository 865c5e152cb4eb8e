"""The container around an engine: each look at it, with what it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.launch import Container, EngineName, FlagValue, Launch, Mount
from firesteel.reads.launches import read
from firesteel.rules import containers
from firesteel.rules.checker import check
from firesteel.rules.context import Context, Match

VLLM = "vllm/vllm-openai:v0.28.0"
LLAMA = "ghcr.io/ggml-org/llama.cpp:server-cuda13"
USER = "root"
CACHE = Mount("~/.cache/huggingface", f"/{USER}/.cache/huggingface")
GIB = 2**30


def context(
    *,
    model: str = "org/m",
    flags: dict[str, FlagValue] | None = None,
    env: dict[str, str] | None = None,
    engine: EngineName = "vllm",
    port: int = 8000,
    image: str = VLLM,
    **container: Any,
) -> Context:
    launch = Launch(
        "m",
        model,
        engine,
        flags=flags or {},
        env=env or {},
        port=port,
        container=Container(image, **container),
    )
    return Context(launch, "gb10", None)


def bare(flags: dict[str, FlagValue], env: dict[str, str] | None = None) -> Context:
    return Context(Launch("m", "org/m", "vllm", flags=flags, env=env or {}), "gb10", None)


RM = (("rm", None),)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"options": RM}, f"/{USER}/.cache/huggingface"),
        ({"options": RM, "env": {"HF_HUB_CACHE": "/c"}}, "/c"),
        ({"options": RM, "env": {"HF_HOME": "/models/"}}, "/models"),
        ({"options": RM, "flags": {"download-dir": "/d"}, "mounts": (CACHE,)}, "/d"),
        ({"options": RM, "mounts": (CACHE,)}, None),
        ({"options": RM, "mounts": (Mount("x", "/root"),)}, None),
        ({"options": RM, "mounts": (Mount("x", "/rootless"),)}, f"/{USER}/.cache/huggingface"),
        ({"options": RM, "mounts": (Mount("x", f"/{USER}/.cache/huggingface/hub/models--org--m"),)}, None),
        ({"options": RM, "mounts": (Mount("x", "$TARGET"),)}, None),
        ({"options": (*RM, ("volume", f"/{USER}/.cache/huggingface"))}, None),
        ({"options": (*RM, ("user", "1000"))}, None),
        ({"options": RM, "env": {"HOME": "/tmp"}}, None),
        ({"options": RM, "env": {"HF_HOME": "$HF_HOME"}}, None),
        ({"options": RM, "image": "my/vllm:1"}, None),
        ({"options": RM, "model": "/model"}, None),
        ({"options": RM, "model": ""}, None),
        ({"options": (("rm", "false"),)}, None),
        ({}, None),
    ],
)
def test_downloads_thrown_away(given: dict[str, Any], expected: str | None) -> None:
    found = containers.downloads_thrown_away(context(**given))
    assert [match.value for match in found] == [expected][: bool(expected)]


def test_llamacpp_keeps_downloads_in_one_of_two_places() -> None:
    for target in (f"/{USER}/.cache/llama.cpp", f"/{USER}/.cache/huggingface"):
        kept = context(engine="llamacpp", image=LLAMA, options=RM, mounts=(Mount("x", target),))
        assert containers.downloads_thrown_away(kept) == []
    said = context(engine="llamacpp", image=LLAMA, options=RM, mounts=(CACHE,), env={"LLAMA_CACHE": "/c"})
    assert [match.value for match in containers.downloads_thrown_away(said)] == ["/c"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mounts": (Mount("~/.cache/huggingface", "/models"),)}, "-v ~/.cache/huggingface:/models"),
        ({"mounts": (Mount("~/models", "/models"),)}, None),
        ({"mounts": (CACHE,)}, None),
        ({"mounts": (CACHE,), "env": {"HF_HOME": "/models"}}, "HF_HOME /models"),
        ({"env": {"HF_HOME": "/models"}, "mounts": (Mount("~/vllm", "/models"),)}, None),
        ({"mounts": (Mount("~/.cache/huggingface", "/models"),), "model": "/models/m"}, None),
    ],
)
def test_cache_not_where_engine_looks(given: dict[str, Any], expected: str | None) -> None:
    found = containers.cache_not_where_engine_looks(context(**given))
    assert [match.shown for match in found] == [expected][: bool(expected)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"model": "/models/m"}, True),
        ({"model": "~/models/m"}, True),
        ({"model": "/models", "mounts": (Mount("x", "/models-old"),)}, True),
        ({"model": "/models/m", "mounts": (Mount("x", "/models"),)}, False),
        ({"model": "/models", "mounts": (Mount("x", "/models/m"),)}, False),
        ({"model": "/models/$NAME"}, False),
        ({"model": "/model", "image": "my/baked:1"}, False),
        ({"model": "org/m"}, False),
    ],
)
def test_model_not_mounted(given: dict[str, Any], expected: bool) -> None:
    assert bool(containers.model_not_mounted(context(**given))) is expected


@pytest.mark.parametrize(
    ("look", "given", "expected"),
    [
        (containers.removed_and_restarted, {"options": RM, "restart": "on-failure:3"}, True),
        (containers.removed_and_restarted, {"options": RM, "restart": "no"}, False),
        (containers.removed_and_restarted, {"restart": "always"}, False),
        (containers.size_of_hosts_shm, {"ipc": "host", "shm_bytes": GIB}, True),
        (containers.size_of_hosts_shm, {"ipc": "private", "shm_bytes": GIB}, False),
        (containers.size_of_hosts_shm, {"ipc": "host"}, False),
        (containers.small_shm, {"flags": {"tensor-parallel-size": "2"}}, True),
        (containers.small_shm, {"flags": {"tensor-parallel-size": "2"}, "ipc": "host"}, False),
        (containers.small_shm, {"flags": {"tensor-parallel-size": "2"}, "ipc": "container:x"}, False),
        (containers.small_shm, {"flags": {"tensor-parallel-size": "2"}, "shm_bytes": GIB}, False),
        (containers.small_shm, {}, False),
        (containers.publishes_on_hosts_network, {"network": "host", "publish": ("8000:8000",)}, True),
        (containers.publishes_on_hosts_network, {"network": "host"}, False),
        (containers.publishes_another_port, {"publish": ("8000:8000",), "port": 9000}, True),
        (containers.publishes_another_port, {"publish": ("8000:8000", "1:9000/tcp"), "port": 9000}, False),
        (containers.publishes_another_port, {"publish": ("8000-8010:8000-8010",), "port": 8005}, False),
        (containers.publishes_another_port, {"publish": ("8000:$PORT",), "port": 9000}, False),
        (containers.publishes_another_port, {"publish": ("80:80",), "env": {"LLAMA_ARG_PORT": "80"}}, False),
        (containers.publishes_another_port, {"publish": ("80:80",), "model": ""}, False),
        (containers.cluster_behind_bridge, {"flags": {"nnodes": "2"}}, True),
        (containers.cluster_behind_bridge, {"flags": {"nnodes": "2"}, "network": "host"}, False),
        (containers.cluster_behind_bridge, {"flags": {"nnodes": "$N"}}, False),
        (containers.cluster_without_rdma, {"flags": {"nnodes": "2"}}, True),
        (
            containers.cluster_without_rdma,
            {"flags": {"nnodes": "2"}, "options": (("device", "$DEV"),)},
            False,
        ),
        (
            containers.cluster_without_rdma,
            {"flags": {"nnodes": "2"}, "options": (("privileged", None),)},
            False,
        ),
        (
            containers.cluster_without_rdma,
            {"flags": {"nnodes": "2"}, "mounts": (Mount("/dev", "/dev"),)},
            False,
        ),
        (containers.another_architecture, {"options": (("platform", "linux/amd64"),)}, True),
        (containers.another_architecture, {"options": (("platform", "linux/arm64/v8"),)}, False),
        (containers.another_architecture, {"image": "vllm/vllm-openai:v0.28.0-x86_64"}, True),
        (containers.another_architecture, {"image": "my/amd64-tools:1"}, False),
        (containers.asks_for_gpu, {"gpus": "all"}, True),
        (containers.asks_for_gpu, {"options": (("runtime", "nvidia"),)}, True),
        (containers.asks_for_gpu, {"flags": {"n-gpu-layers": "all"}}, True),
        (containers.asks_for_gpu, {"flags": {"n-gpu-layers": "0"}}, False),
        (
            containers.runs_script_first,
            {"entrypoint": "/bin/bash", "program": ("-c", "pip install ray")},
            True,
        ),
        (containers.runs_script_first, {"program": ("bash", "-lc", "vllm serve")}, True),
        (containers.runs_script_first, {"program": ("/start.sh",)}, True),
        (containers.runs_script_first, {"program": ("vllm", "serve")}, False),
        (containers.runs_script_first, {}, False),
    ],
)
def test_looks(look: Callable[[Context], list[Match]], given: dict[str, Any], expected: bool) -> None:
    assert bool(look(context(**given))) is expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"tensor-parallel-size": "2"}, "2"),
        ({"tensor-parallel-size": "2", "pipeline-parallel-size": "2", "nnodes": "2"}, "4"),
        ({"pipeline-parallel-size": "3"}, "3"),
        ({"tensor-parallel-size": "2", "nnodes": "2"}, None),
        ({"tensor-parallel-size": "2", "distributed-executor-backend": "ray"}, None),
        ({"tensor-parallel-size": "$TP"}, None),
        ({"tensor-parallel-size": "2", "nnodes": "$N"}, None),
        ({}, None),
    ],
)
def test_beyond_one_gpu(flags: dict[str, FlagValue], expected: str | None) -> None:
    found = containers.beyond_one_gpu(bare(flags))
    assert [match.value for match in found] == [expected][: bool(expected)]


@pytest.mark.parametrize(
    ("look", "env", "expected"),
    [
        (containers.pinned_gid, {"NCCL_IB_GID_INDEX": "3"}, True),
        (containers.pinned_gid, {"NCCL_IB_GID_INDEX": "-1"}, False),
        (containers.pinned_gid, {"NCCL_IB_GID_INDEX": "$GID"}, False),
        (containers.empty_gid, {"NCCL_IB_GID_INDEX": ""}, True),
        (containers.empty_gid, {"NCCL_IB_GID_INDEX": "0"}, False),
        (containers.one_rail, {"NCCL_IB_HCA": "rocep1s0f1"}, True),
        (containers.one_rail, {"NCCL_IB_HCA": "=roceP2p1s0f0:1"}, True),
        (containers.one_rail, {"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1"}, False),
        (containers.one_rail, {"NCCL_IB_HCA": "mlx5_0"}, False),
        (containers.expandable_segments, {"PYTORCH_ALLOC_CONF": "a:1, expandable_segments : True"}, True),
        (containers.expandable_segments, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, False),
        (containers.many_jit_jobs, {"MAX_JOBS": "16"}, True),
        (containers.many_jit_jobs, {"MAX_JOBS": "$(nproc)"}, False),
        (containers.large_aeon_batch, {"MAX_NUM_BATCHED_TOKENS": "32768"}, False),
        (containers.variable_takes_all_memory, {"GPU_MEMORY_UTILIZATION": "0.95"}, True),
        (containers.variable_takes_all_memory, {"GPU_MEMORY_UTILIZATION": "0.9"}, False),
    ],
)
def test_variables(look: Callable[[Context], list[Match]], env: dict[str, str], expected: bool) -> None:
    assert bool(look(bare({}, env))) is expected


def test_rdma_matters_between_nodes_only() -> None:
    off = {"NCCL_IB_DISABLE": "1"}
    assert containers.rdma_switched_off(bare({}, off)) == []
    assert len(containers.rdma_switched_off(bare({"nnodes": "2"}, off))) == 1
    assert len(containers.rdma_switched_off(bare({"distributed-executor-backend": "ray"}, off))) == 1


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"max-num-seqs": "16", "max-cudagraph-capture-size": "8"}, "8"),
        ({"max-num-seqs": "16", "compilation-config": {"cudagraph_capture_sizes": [1, 2, 4]}}, "4"),
        ({"max-num-seqs": "16", "cudagraph-capture-sizes": ["1", "16"]}, None),
        ({"max-num-seqs": "8", "max-cudagraph-capture-size": "8"}, None),
        ({"max-cudagraph-capture-size": "8"}, None),
        ({"max-num-seqs": "16", "compilation-config": {"mode": 3}}, None),
        ({"max-num-seqs": "16", "compilation-config": "3"}, None),
    ],
)
def test_graphs_below_users(flags: dict[str, FlagValue], expected: str | None) -> None:
    found = containers.graphs_below_users(bare(flags))
    assert [match.value for match in found] == [expected][: bool(expected)]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("q8_0", "q8_0", False),
        ("bf16", "bf16", False),
        ("q8_0", "q4_0", True),
        ("q8_0", None, True),
        (None, "q4_0", True),
        ("q5_1", "q5_1", True),
        ("$K", "q8_0", False),
        (None, None, False),
    ],
)
def test_cache_types(key: str | None, value: str | None, expected: bool) -> None:
    given = {"cache-type-k": key, "cache-type-v": value}
    flags: dict[str, FlagValue] = {name: text for name, text in given.items() if text}
    assert bool(containers.cache_types_without_kernels(bare(flags))) is expected


HEALTHY = [
    f"docker run --gpus all --ipc host -p 127.0.0.1:8000:8000 -v ~/.cache/huggingface:{CACHE.target}"
    " vllm/vllm-openai:v0.28.0 org/model --gpu-memory-utilization 0.7 --api-key $KEY",
    f"docker run --rm --gpus all -p 127.0.0.1:8080:8080 -v ~/.cache/llama.cpp:/{USER}/.cache/llama.cpp"
    " ghcr.io/ggml-org/llama.cpp:server-cuda13-b11000 -hf ggml-org/gpt-oss-120b-GGUF"
    " --host 0.0.0.0 --port 8080",
    "docker run --network host --gpus all --ipc host --device /dev/infiniband"
    " -e NCCL_SOCKET_IFNAME=enp1s0f1np1 -e GLOO_SOCKET_IFNAME=enp1s0f1np1"
    f" -v ~/.cache/huggingface:/{USER}/.cache/huggingface vllm/vllm-openai:v0.28.0"
    " org/model --gpu-memory-utilization 0.7 --api-key $KEY -tp 2 --nnodes 2 --node-rank 1 --headless"
    " --master-addr 10.0.0.1",
    "vllm serve org/model --gpu-memory-utilization 0.7 --host 127.0.0.1",
]


@pytest.mark.parametrize("line", HEALTHY)
def test_healthy_launches_get_notes_at_most(line: str) -> None:
    (reading,) = read(line, "run.sh", shipped().images)
    found = check(reading.launch, hardware="gb10", locations=reading.locations)
    assert [finding.rule for finding in found if finding.level != "note"] == []
