"""Preflight: real messages of docker and the driver, and all checks with fake programs on PATH.

The last test asks a real docker daemon, on a machine without a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

import firesteel
from firesteel.catalog.catalog import shipped
from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.errors import HostNotReady
from firesteel.facts.host.hardware import Gpu
from firesteel.launch import Ask, EngineProgram
from firesteel.planner.memory.account import MemoryPart
from firesteel.planner.propose import Proposal, propose
from firesteel.run.events import PhaseDone
from firesteel.run.preflight import OWN_DISK_BYTES, driver_problem, gpu_problem, preflight
from firesteel.run.service import ServiceSpec, ServiceState, write_spec, write_state
from firesteel.run.supervise.disk_writer import MAX_LOG_BYTES
from firesteel.units import GIB, TIB, Band
from firesteel.values import replace

SPARK_SAYS = "NVIDIA GB10, 580.95.05, 12.1"


@pytest.mark.parametrize(
    ("code", "output", "what", "next_"),
    [
        # dockerd 20.10.24, asked on a machine without the toolkit.
        (
            125,
            'docker: Error response from daemon: could not select device driver "" '
            "with capabilities: [[gpu]]\n\nRun 'docker run --help' for more information\n",
            "docker cannot give a GPU to a container",
            "nvidia-ctk runtime configure",
        ),
        (
            125,
            "docker: Error response from daemon: Unknown runtime specified nvidia\n",
            "runtime",
            "nvidia-ctk",
        ),
        (
            125,
            "docker: Error response from daemon: unknown or invalid runtime name: nvidia\n",
            "docker does not know the nvidia runtime",
            "nvidia-ctk",
        ),
        # https://github.com/MauriceNino/dashdot/issues/1226, seen 2026-11-15
        (
            125,
            "docker: Error response from daemon: failed to create task for container: failed to create shim "
            "task: OCI runtime create failed: runc create failed: unable to start container process: error "
            "during container init: error running prestart hook #0: exit status 1, stdout: , stderr: "
            "Auto-detected mode as 'legacy'\nnvidia-container-cli: requirement error: unsatisfied condition: "
            "cuda>=12.8, please update your driver to a newer version, or use an earlier cuda container: "
            "unknown\n",
            "the NVIDIA driver is too old for this image, which needs cuda>=12.8",
            "full-upgrade",
        ),
        # https://github.com/NVIDIA/nvidia-container-toolkit/issues/115, seen 2026-11-15
        (
            255,
            "Failed to initialize NVML: Unknown Error\n",
            "cannot use the GPU",
            "systemctl restart docker",
        ),
        (
            18,
            "Failed to initialize NVML: Driver/library version mismatch\n",
            "the old one is still loaded",
            "sudo reboot",
        ),
        # https://github.com/NVIDIA/nvidia-docker/issues/1252, seen 2026-11-15
        (
            125,
            "stderr: nvidia-container-cli: initialization error: driver error: failed to process request",
            "a container cannot use the GPU",
            "systemctl restart docker",
        ),
        (
            125,
            "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
            "loaded",
            "modprobe",
        ),
        (6, "No devices were found\n", "finds no GPU", "sudo reboot"),
        (0, "No devices were found\n", "finds no GPU", "sudo reboot"),
        (
            0,
            "\n",
            "a container does not see the GPU: no output",
            "docker run --rm --gpus all IMAGE nvidia-smi",
        ),
        (
            1,
            "exec /usr/bin/nvidia-smi: exec format error\n",
            "another kind of processor",
            "docker image inspect",
        ),
        (124, "nvidia-smi in a container did not answer within 60 s", "does not answer", "sudo reboot"),
        (
            125,
            "docker: write /var/lib/docker/tmp/x: no space left on device.\n",
            "disk",
            "docker system prune",
        ),
        (
            125,
            "docker: Error response from daemon: something new\n\nRun 'docker run --help' for more "
            "information\n",
            "a container does not see the GPU: docker: Error response from daemon: something new",
            "nvidia-smi",
        ),
    ],
)
def test_gpu_problems(code: int, output: str, what: str, next_: str) -> None:
    problem = gpu_problem(code, output)
    assert problem is not None
    assert what in problem.what and next_ in problem.next


@pytest.mark.parametrize(
    ("code", "output"),
    [
        (0, f"{SPARK_SAYS}\n"),
        # The image has no nvidia-smi: it cannot tell. dockerd 20.10.24, asked.
        (
            127,
            "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc "
            'create failed: unable to start container process: exec: "nvidia-smi": executable file not found '
            "in $PATH: unknown\n\nRun 'docker run --help' for more information\n",
        ),
        (127, "sh: 1: nvidia-smi: not found\n"),
    ],
)
def test_no_gpu_problem(code: int, output: str) -> None:
    assert gpu_problem(code, output) is None


@pytest.mark.parametrize(
    ("driver", "cuda", "is_old"),
    [
        ("580.95.05", "13.0", False),
        ("575.57.08", "13.0", True),
        ("575.57.08", "12.9", False),
        ("520.61", "12.8.1", True),
        ("595.84", "13.4.1", False),
        ("575.57.08", None, False),
        ("unknown", "13.0", False),
        ("575.57.08", "99", False),
    ],
)
def test_the_driver_for_an_images_cuda(driver: str, cuda: str | None, is_old: bool) -> None:
    problem = driver_problem([Gpu("NVIDIA GB10", driver, "12.1")], cuda)
    assert (problem is not None) is is_old
    if problem:
        assert driver in problem.what and "apt" in problem.next


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture(scope="module")
def for_spark() -> Proposal:
    """A recipe for a Spark in its container, that takes no memory of this machine."""
    spark = replace(
        firesteel.host("gb10"), gpus=(Gpu("NVIDIA GB10", "580.95.05", "12.1"),), keep_free_bytes=0
    )
    found = next(
        planned for planned in propose(shipped(), spark, Ask()) if planned.plan.launch.engine == "vllm"
    )
    return replace(found, plan=replace(found.plan, memory=replace(found.plan.memory, parts=())))


@pytest.fixture
def proposal(for_spark: Proposal, free_port: int) -> Proposal:
    plan = for_spark.plan
    return replace(for_spark, plan=replace(plan, launch=replace(plan.launch, port=free_port)))


class Programs:
    """Pretend docker and nvidia-smi, first on PATH; every call is written down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.docker()
        self.smi("")

    def docker(self, gpu: str = f"echo '{SPARK_SAYS}'", image: str = "echo sha256:abc") -> None:
        self._write(
            "docker",
            f'echo "$*" >>"{self.folder}/calls"\ncase "$1" in\nversion) echo 29.0;;\nimage) {image};;\n'
            f"run) {gpu};;\nesac",
        )

    def smi(self, rows: str) -> None:
        self._write("nvidia-smi", f"printf '{rows}'")

    def runs(self) -> list[str]:
        calls = self.folder / "calls"
        return (
            [line for line in calls.read_text().splitlines() if line.startswith("run ")]
            if calls.exists()
            else []
        )

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    found = Programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.folder}:{os.environ['PATH']}")
    return found


async def check(proposal: Proposal, home: Home) -> list[str]:
    return [event.text async for event in preflight(proposal, home) if isinstance(event, PhaseDone)]


async def test_a_host_that_is_ready(proposal: Proposal, home: Home, programs: Programs) -> None:
    output = await check(proposal, home)
    assert output[0] == f"a container sees {SPARK_SAYS}"
    container = proposal.plan.launch.container
    assert container is not None
    (run,) = programs.runs()
    assert "--rm" in run and "--gpus all" in run and f"--entrypoint nvidia-smi {container.image}" in run


async def test_the_gpu_is_tried_once_a_boot(proposal: Proposal, home: Home, programs: Programs) -> None:
    await check(proposal, home)
    await check(proposal, home)
    assert len(programs.runs()) == 1
    record = home.root / "gpu_in_container.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "boot": "another"}))
    await check(proposal, home)
    assert len(programs.runs()) == 2
    programs.docker(image="echo sha256:def")
    await check(proposal, home)
    assert len(programs.runs()) == 3, "another image under the same name"
    record.write_text("broken")
    await check(proposal, home)
    assert len(programs.runs()) == 4


async def test_an_image_that_is_not_here_is_not_tried(
    proposal: Proposal, home: Home, programs: Programs
) -> None:
    programs.docker(image="exit 1")
    await check(proposal, home)
    assert programs.runs() == []


async def test_a_container_without_gpu(proposal: Proposal, home: Home, programs: Programs) -> None:
    programs.docker(gpu="echo 'could not select device driver' >&2; exit 125")
    with pytest.raises(HostNotReady, match="cannot give a GPU") as refused:
        await check(proposal, home)
    assert refused.value.exit_code == 5 and "nvidia-ctk" in refused.value.next
    programs.docker()
    assert await check(proposal, home), "a failure is not remembered"


async def test_no_docker(
    proposal: Proposal, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostNotReady, match="docker is not installed"):
        await check(proposal, home)


async def test_a_port_in_use(proposal: Proposal, home: Home, programs: Programs) -> None:
    port = proposal.plan.launch.port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(HostNotReady, match=f"port {port} is in use by .*pid {os.getpid()}") as refused:
            await check(proposal, home)
    assert "--port " in refused.value.next and f"--port {port}" not in refused.value.next


async def test_an_old_driver(proposal: Proposal, home: Home, programs: Programs) -> None:
    host = replace(proposal.plan.host, gpus=(Gpu("NVIDIA GB10", "470.1", "12.1"),))
    assert proposal.image is not None and proposal.image.cuda is not None
    with pytest.raises(HostNotReady, match=r"this host has 470\.1"):
        await check(replace(proposal, plan=replace(proposal.plan, host=host)), home)


async def test_too_little_memory_now(proposal: Proposal, home: Home, programs: Programs) -> None:
    part = MemoryPart("weights", Band.exactly(TIB), "counted", "")
    large = replace(proposal.plan, memory=replace(proposal.plan.memory, parts=(part,)))
    with pytest.raises(HostNotReady, match=r"it takes 1.0 TiB at its peak") as refused:
        await check(replace(proposal, plan=large), home)
    assert refused.value.next.startswith("free ")


async def test_others_on_the_gpu_are_named_and_ours_are_not(
    proposal: Proposal, home: Home, programs: Programs
) -> None:
    with subprocess.Popen(["sleep", "60"]) as other, subprocess.Popen(["sleep", "60"]) as ours:
        try:
            pid = process.find(ours.pid)
            folder = home.services / "one"
            write_spec(folder, ServiceSpec("one", "http://127.0.0.1:9", "one", ("x",)))
            write_state(folder, ServiceState(pid or process.this_process(), None, 0.0))
            programs.smi(f"{other.pid}, ollama, 5120 MiB\\n{ours.pid}, vllm, [N/A]\\n")
            output = [words for words in await check(proposal, home) if "also uses the GPU" in words]
        finally:
            other.kill()
            ours.kill()
    assert output == [
        f"ollama (pid {other.pid}) also uses the GPU and holds 5.0 GiB: kill {other.pid}, if it is not needed"
    ]


@pytest.mark.usefixtures("pulled")  # which skips where the engine cannot run
async def test_the_embedded_engine_needs_no_docker(
    home: Home, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = propose(shipped(), firesteel.host("local"), Ask("smollm2", port=free_port))[0]
    host = replace(found.plan.host, keep_free_bytes=GIB // 2)
    assert await check(replace(found, plan=replace(found.plan, host=host)), home) == []


@pytest.fixture
def daemon(docker_daemon: str) -> str:
    """The daemon's address, with an empty image in it."""
    empty = subprocess.run(["tar", "-c", "-T", "/dev/null"], check=True, capture_output=True).stdout
    words = ["docker", "-H", docker_daemon, "import", "-", "empty:1"]
    subprocess.run(words, input=empty, check=True, capture_output=True)
    return docker_daemon


@pytest.mark.real
@pytest.mark.skipif(shutil.which("nvidia-ctk") is not None, reason="this machine's docker has GPUs")
async def test_a_real_docker_without_gpus(
    proposal: Proposal, home: Home, daemon: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", daemon)
    launch = proposal.plan.launch
    assert launch.container is not None
    plan = replace(
        proposal.plan, launch=replace(launch, container=replace(launch.container, image="empty:1"))
    )
    with pytest.raises(HostNotReady, match="docker cannot give a GPU to a container"):
        await check(replace(proposal, plan=plan), home)


def test_the_disk_that_is_asked_for_holds_two_logs_and_little_more() -> None:
    """A gibibyte for a model of 92 MiB surprised people; a log is rotated once, at 64 MiB."""
    assert 2 * MAX_LOG_BYTES < OWN_DISK_BYTES <= 4 * MAX_LOG_BYTES


@pytest.mark.usefixtures("pulled")  # skips where the embedded engine cannot run
async def test_variables_that_a_native_engine_does_not_get_are_named(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VLLM_USE_DEEP_GEMM", "LLAMA_ARG_FLASH_ATTN", "OMP_NUM_THREADS", "LLAMA_API_KEY"):
        monkeypatch.setenv(name, "1")
    proposal = firesteel.propose(Ask("smollm2", port=free_port), firesteel.host("local"))[0]
    program = EngineProgram(("/opt/llama.cpp/llama-server",), "11434", False, "PATH")
    launch = replace(proposal.plan.launch, program=program, env={"OMP_NUM_THREADS": "4"})
    native = replace(proposal, plan=replace(proposal.plan, launch=launch))
    said = [event.text async for event in preflight(native, Home(tmp_path)) if isinstance(event, PhaseDone)]
    assert any(text.startswith("the engine does not get LLAMA_ARG_FLASH_ATTN: ") for text in said)
    said = [event.text async for event in preflight(proposal, Home(tmp_path)) if isinstance(event, PhaseDone)]
    assert not any("does not get" in text for text in said), "the embedded engine reads none"
