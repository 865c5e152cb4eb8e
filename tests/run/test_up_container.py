"""Containers as on a Spark, with a real docker: a daemon of our own, an image made here.

The image holds no files but links; Python and the engine are this machine's, mounted read-only. What is
left out is only the GPU.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tarfile
import time
from io import BytesIO
from pathlib import Path

import pytest

import firesteel
from firesteel.catalog.image import Image, Images
from firesteel.edge import checkpoints
from firesteel.edge.home import Home
from firesteel.edge.host import process
from firesteel.edge.programs import wheels
from firesteel.errors import HostNotReady
from firesteel.facts.host.hardware import Gpu
from firesteel.launch import Ask, Mount
from firesteel.planner.propose import Proposal, propose_checkpoint
from firesteel.run.down import stop
from firesteel.run.events import PhaseDone, ServiceReady
from firesteel.run.service import ServiceState, all_services
from firesteel.run.start import adopt_all
from firesteel.run.up import bring_up
from firesteel.values import replace

pytestmark = pytest.mark.real
IMAGE = "firesteel-test/llamacpp:1"


@pytest.fixture(scope="module")
def docker(docker_daemon: str) -> str:
    """The daemon's address, with the test image in it."""
    change = 'ENTRYPOINT ["/engine/bin/python", "-I", "/server.py"]'
    argv = ["docker", "-H", docker_daemon, "import", "-c", change, "-", IMAGE]
    subprocess.run(argv, input=_image(), check=True, capture_output=True)
    return docker_daemon


def _image() -> bytes:
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("lib", "lib64", "bin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
    return packed.getvalue()


@pytest.fixture
def proposal(docker: str, engine_home: Home, free_port: int, monkeypatch: pytest.MonkeyPatch) -> Proposal:
    """The real model in the test image, on a host that says it has a GB10."""
    monkeypatch.setenv("DOCKER_HOST", docker)
    return _proposal(engine_home, free_port)


@pytest.fixture
def quick_proposal(
    docker: str, quick_home: Home, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> Proposal:
    """The same with `tests/quick_engine.py`, where only containers and processes matter."""
    monkeypatch.setenv("DOCKER_HOST", docker)
    return _proposal(quick_home, free_port, sys.prefix, str(Path(__file__).parents[2]))


def _proposal(home: Home, port: int, *folders: str) -> Proposal:
    """`folders` of this machine are mounted as well."""
    spark = replace(firesteel.host("gb10"), gpus=(Gpu("NVIDIA GB10", "580.95.05", "12.1"),))
    # The supervisor's guard looks at the real host, which is smaller than what a Spark keeps free.
    spark = replace(spark, keep_free_bytes=0)
    weights = next(home.weights.rglob("*.gguf"))
    image = Image("llamacpp", "11549", name="test", reference=IMAGE, entrypoint=("llama-server",), gpu=False)
    found = propose_checkpoint(
        checkpoints.open_path(str(weights)),
        Images({"test": image}),
        spark,
        Ask("x", context=512, port=port),
    )
    launch = found.plan.launch
    assert launch.container is not None
    engine = next(home.engines.glob("*/bin/python")).parent.parent
    ours = {"/usr": "/usr", sys.base_prefix: sys.base_prefix, str(engine.resolve()): "/engine"}
    ours |= {folder: folder for folder in folders}
    mounts = [Mount(source, target, read_only=True) for source, target in ours.items()]
    mounts.append(Mount(str(wheels.SERVER), "/server.py", read_only=True))
    container = replace(launch.container, mounts=(*launch.container.mounts, *mounts))
    flags = {**launch.flags, "threads": "1", "log-verbosity": "4"}
    # Nor is this machine as fast as a Spark: no speed is promised.
    plan = replace(found.plan, launch=replace(launch, container=container, flags=flags), speed=None)
    return replace(found, plan=plan)


def containers(address: str) -> list[str]:
    argv = ["docker", "-H", address, "ps", "--all", "--format", "{{.Names}} {{.Labels}}"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split("\n")[:-1]


async def test_a_container_from_up_to_down(proposal: Proposal, docker: str, engine_home: Home) -> None:
    events = [event async for event in bring_up(proposal, engine_home)]
    ready = events[-1]
    assert isinstance(ready, ServiceReady) and ready.report.is_verified
    assert containers(docker) == [f"firesteel-{proposal.name} firesteel={proposal.name}"]
    compared = {row.what: row for row in ready.report.compared}
    assert compared["KV cache"].is_within and compared["weights"].is_within
    stopped = [event async for event in stop(all_services(engine_home)[0])][-1]
    # Other tests start engines meanwhile: the host's memory alone does not tell whether this one's is back.
    assert isinstance(stopped, PhaseDone) and "MiB" in stopped.text and "free" in stopped.text, stopped
    assert containers(docker) == [] and all_services(engine_home) == []


async def test_a_container_whose_supervisor_was_killed_is_adopted(
    quick_proposal: Proposal, docker: str, quick_home: Home
) -> None:
    async for _ in bring_up(quick_proposal, quick_home):
        pass
    before = kill_supervisor(quick_home)
    assert len(containers(docker)) == 1
    adopt_all(quick_home)
    after = all_services(quick_home)[0]
    assert after.phase == "ready" and after.state is not None
    assert after.state.supervisor != before.supervisor and after.state.started_at == before.started_at
    again = [event async for event in bring_up(quick_proposal, quick_home)][-1]
    assert isinstance(again, ServiceReady) and again.already
    argv = ["docker", "-H", docker, "kill", f"firesteel-{quick_proposal.name}"]
    subprocess.run(argv, check=True, capture_output=True)
    for _ in range(100):
        state = all_services(quick_home)[0].state
        if state is not None and state.restarts:
            break
        time.sleep(0.05)
    assert state is not None and state.restarts == 1 and "exited with code 137" in (state.why or "")
    async for _ in stop(all_services(quick_home)[0]):
        pass
    assert containers(docker) == [] and all_services(quick_home) == []


async def test_a_container_whose_supervisor_was_killed_can_be_stopped(
    quick_proposal: Proposal, docker: str, quick_home: Home
) -> None:
    async for _ in bring_up(quick_proposal, quick_home):
        pass
    kill_supervisor(quick_home)
    async for _ in stop(all_services(quick_home)[0]):
        pass
    assert containers(docker) == [] and all_services(quick_home) == []


def kill_supervisor(home: Home) -> ServiceState:
    state = all_services(home)[0].state
    assert state is not None
    process.send(state.supervisor, signal.SIGKILL)
    for _ in range(100):
        if all_services(home)[0].phase == "unkept":
            return state
        time.sleep(0.05)
    raise AssertionError("the container did not run on")


async def test_docker_without_the_nvidia_toolkit(proposal: Proposal, engine_home: Home) -> None:
    launch = proposal.plan.launch
    assert launch.container is not None
    with_gpu = replace(launch, container=replace(launch.container, gpus="all"))
    with pytest.raises(HostNotReady, match="docker cannot give a GPU to a container") as refused:
        async for _ in bring_up(replace(proposal, plan=replace(proposal.plan, launch=with_gpu)), engine_home):
            pass
    assert "nvidia-ctk" in refused.value.next
    assert all_services(engine_home) == []


async def test_an_unknown_image(proposal: Proposal, engine_home: Home) -> None:
    launch = proposal.plan.launch
    assert launch.container is not None
    gone = replace(launch, container=replace(launch.container, image="127.0.0.1:1/none:1"))
    with pytest.raises(firesteel.FiresteelError, match=r"docker could not pull 127\.0\.0\.1:1/none:1"):
        async for _ in bring_up(replace(proposal, plan=replace(proposal.plan, launch=gone)), engine_home):
            pass


async def test_docker_that_does_not_answer(
    proposal: Proposal, engine_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    with pytest.raises(HostNotReady, match="docker does not answer") as refused:
        async for _ in bring_up(proposal, engine_home):
            pass
    assert refused.value.next == "sudo systemctl start docker"
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HostNotReady, match="docker is not installed"):
        async for _ in bring_up(proposal, engine_home):
            pass
