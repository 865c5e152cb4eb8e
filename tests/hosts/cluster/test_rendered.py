"""A launch over several hosts as files: each is accepted by the tool that it is for."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.conftest import Firesteel

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import Image
from firesteel.catalog.launches import native
from firesteel.edge.home import Home
from firesteel.errors import UsageError
from firesteel.hosts.cluster.rendered import (
    BY_NODE,
    RPC_FORMS,
    render_by_node,
    render_for_kubernetes,
    usual_hosts,
)
from firesteel.launch import Ask, EngineProgram
from firesteel.library.plans import host
from firesteel.planner.propose import Proposal
from firesteel.reads.launches import read
from firesteel.render import Cluster
from firesteel.run.spec import with_user_folders
from firesteel.values import replace
from firesteel.workspace import Workspace

MODEL = "qwen3-235b-gptq-int4-two-sparks"
IMAGES = shipped().images
COMPOSE = shutil.which("docker-compose")
LWS_FIELDS = {"replicas", "startupPolicy", "leaderWorkerTemplate", "rolloutStrategy", "networkConfig"}
GROUP_FIELDS = {
    "size", "restartPolicy", "leaderTemplate", "workerTemplate", "subGroupPolicy", "volumeClaimTemplates"
}  # fmt: skip
"""Of kubernetes-sigs/lws, api/leaderworkerset/v1, 2026-08-21. The whole CRD accepts what is written here."""


@pytest.fixture(scope="module")
def proposal(tmp_path_factory: pytest.TempPathFactory) -> Proposal:
    workspace = Workspace(Home(tmp_path_factory.mktemp("home")))
    return workspace.propose(Ask(MODEL), host("gb10"))[0]


@pytest.mark.parametrize("form", BY_NODE)
def test_each_host_has_its_own_rank(proposal: Proposal, form: str) -> None:
    head, worker = render_by_node(proposal, usual_hosts(2), form, IMAGES)
    assert (head.host, head.rank, worker.host, worker.rank) == ("spark1", 0, "spark2", 1)
    ranks = []
    for file in (head, worker):
        assert file.text.startswith(f"# On {file.host} (")
        (found,) = read(file.text, file.file, IMAGES)
        flags, env = found.launch.flags, found.launch.env
        ranks.append(flags["node-rank"])
        assert flags["master-addr"] == "192.168.100.10" and flags["nnodes"] == "2"
        assert env["VLLM_HOST_IP"] == f"192.168.100.{10 + file.rank}"
        assert env["NCCL_IB_HCA"] == "rocep1s0f1,roceP2p1s0f1" and "NCCL_IB_GID_INDEX" not in env
        assert ("headless" in flags) == bool(file.rank)
        assert "which only you know" not in file.text, "the address is there"
    assert ranks == ["0", "1"]
    assert "/v1/chat/completions" not in worker.text, "a worker answers on no port"
    assert "unless-stopped" not in worker.text and "on-failure" not in worker.text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(proposal: Proposal, tmp_path: Path) -> None:
    for file in render_by_node(proposal, usual_hosts(2), "systemd", IMAGES):
        (tmp_path / file.file).write_text(file.text)
        command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / file.file)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert "Restart=no" in file.text


@pytest.mark.skipif(COMPOSE is None, reason="needs docker compose (Debian: docker-compose)")
def test_compose_accepts_the_files(proposal: Proposal, tmp_path: Path) -> None:
    for file in render_by_node(proposal, usual_hosts(2), "compose", IMAGES):
        (tmp_path / file.file).write_text(file.text)
        command = [str(COMPOSE), "-f", str(tmp_path / file.file), "config", "--quiet"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr


def test_kubernetes_starts_and_restarts_them_as_one(proposal: Proposal) -> None:
    service, group = yaml.safe_load_all(render_for_kubernetes(proposal, usual_hosts(2), IMAGES))
    kubernetes_validate.validate(service, "1.32", strict=True)
    assert group["apiVersion"] == "leaderworkerset.x-k8s.io/v1" and group["kind"] == "LeaderWorkerSet"
    spec: dict[str, Any] = group["spec"]
    template = spec["leaderWorkerTemplate"]
    assert spec.keys() <= LWS_FIELDS and template.keys() <= GROUP_FIELDS
    assert template["size"] == 2 and template["restartPolicy"] == "RecreateGroupOnPodRestart"
    leader, worker = template["leaderTemplate"], template["workerTemplate"]
    (claim,) = template["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"], "each rank has its own"
    for pod in (leader, worker):
        mounted = {mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        declared = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert mounted - declared == {claim["metadata"]["name"]}, "the set adds it"
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **pod["metadata"]}}
        kubernetes_validate.validate({**whole, "spec": pod["spec"]}, "1.32", strict=True)
    args = [pod["spec"]["containers"][0]["args"] for pod in (leader, worker)]
    values = [dict(pairwise(words)) for words in args]
    assert [found["--node-rank"] for found in values] == ["0", "$(LWS_WORKER_INDEX)"]
    assert {found["--master-addr"] for found in values} == {"$(LWS_LEADER_ADDRESS)"}
    assert "--headless" in args[1] and "--headless" not in args[0]
    assert "127.0.0.1" not in args[0], "its Service could not reach it"
    assert service["spec"]["selector"].items() <= leader["metadata"]["labels"].items()
    assert not service["spec"]["selector"].items() <= worker["metadata"]["labels"].items()
    assert "startupProbe" not in worker["spec"]["containers"][0]


@pytest.mark.parametrize("service", [None, "big"])
def test_no_service_of_ours_has_the_name_of_the_set(proposal: Proposal, service: str | None) -> None:
    """The set makes a headless Service of its own name, unless there is one: then no rank finds another."""
    text = render_for_kubernetes(proposal, usual_hosts(2), IMAGES, Cluster(service))
    names = {part["kind"]: part["metadata"]["name"] for part in yaml.safe_load_all(text)}
    assert names == {"Service": service or MODEL, "LeaderWorkerSet": f"{MODEL}-ranks"}


@pytest.mark.parametrize(
    ("cluster", "complaint"),
    [
        (Cluster(f"{MODEL}-ranks"), "LeaderWorkerSet itself makes a Service"),
        (Cluster("1BAD_name"), "not a valid name of a Service"),
        (Cluster(active="else"), "none of the models"),
        (Cluster(claim="models=10Gi"), "made by LeaderWorkerSet"),
    ],
)
def test_what_a_set_refuses(proposal: Proposal, cluster: Cluster, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        render_for_kubernetes(proposal, usual_hosts(2), IMAGES, cluster)


def test_a_long_name_leaves_room_for_the_labels_of_its_pods(proposal: Proposal) -> None:
    launch = replace(proposal.plan.launch, name="a" * 70)
    long = replace(proposal, plan=replace(proposal.plan, launch=launch))
    service, group = yaml.safe_load_all(render_for_kubernetes(long, usual_hosts(2), IMAGES))
    assert len(service["metadata"]["name"]) == 63 and len(group["metadata"]["name"]) == 50


def test_ranks_that_share_a_claim_compile_into_their_own_folders(proposal: Proposal) -> None:
    cached = with_user_folders(proposal, Home(Path("/home")), Path("/hub"), Path("/root"))
    text = render_for_kubernetes(cached, usual_hosts(2), IMAGES, Cluster(claim="shared"))
    _, group = yaml.safe_load_all(text)
    template = group["spec"]["leaderWorkerTemplate"]
    assert "volumeClaimTemplates" not in template
    for pod in (template["leaderTemplate"]["spec"], template["workerTemplate"]["spec"]):
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "shared"}
        paths = {each["mountPath"]: each.get("subPathExpr") for each in pod["containers"][0]["volumeMounts"]}
        assert paths["/compiled"] == "mount-2-rank-$(LWS_WORKER_INDEX)" and paths["/hub"] is None


def test_the_command(firesteel: Firesteel, tmp_path: Path) -> None:
    ran = firesteel("render", MODEL, "--as", "compose", "-o", str(tmp_path / "out"))
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "spark1.compose.yaml", "spark2.compose.yaml",
    ]  # fmt: skip
    both = firesteel("render", MODEL, "--json").json["nodes"]
    assert [row["host"] for row in both] == ["spark1", "spark2"]


@pytest.fixture
def rpc_proposal(tmp_path: Path) -> Proposal:
    """llama.cpp, as a program of this machine."""
    workspace = Workspace(Home(tmp_path))
    found = workspace.propose(Ask("smollm2"), host("gb10"))[0]
    launch = native(found.plan.launch, EngineProgram(("/opt/llama/bin/llama-server",), "11434", False))
    return replace(found, plan=replace(found.plan, launch=replace(launch, sparks=3)))


IMAGE = Image("llamacpp", "11434", "llamacpp-here", "firesteel/llamacpp-here:1", gpu=False,
              entrypoint=("/opt/engine/bin/llama-server",))  # fmt: skip
WITH_RPC = replace(IMAGES, named={**IMAGES.named, "llamacpp-here": IMAGE})
PROGRAM = ".local/share/firesteel/cluster/engines/rpc-1/ggml-rpc-server"


@pytest.mark.parametrize("form", RPC_FORMS)
def test_llamacpp_is_a_head_with_rpc_and_workers(rpc_proposal: Proposal, form: str) -> None:
    head, *workers = render_by_node(rpc_proposal, usual_hosts(3), form, WITH_RPC, PROGRAM)
    assert "192.168.100.11:50052,192.168.100.12:50052" in head.text and "--rpc" in head.text
    for worker in workers:
        assert "ggml-rpc-server" in worker.text and "GOMP_SPINCOUNT" in worker.text
        assert f"192.168.100.{10 + worker.rank}" in worker.text and "50052" in worker.text
    if form == "compose":
        service = yaml.safe_load(workers[0].text)["services"]["firesteel-smollm2-rpc"]
        assert service["entrypoint"] == ["/opt/engine/bin/ggml-rpc-server"]
        assert service["command"] == ["-H", "192.168.100.11", "-p", "50052", "-c"]
    elif form == "systemd":
        assert f"ExecStart=%h/{PROGRAM} -H 192.168.100.11" in workers[0].text
        assert "ExecStart=/opt/llama/bin/llama-server" in head.text
    else:
        assert "docker run" in workers[0].text and str(IMAGE.reference) in head.text


def test_llamacpp_in_containers_needs_an_image_with_rpc(rpc_proposal: Proposal) -> None:
    with pytest.raises(UsageError, match="built without it"):
        render_by_node(rpc_proposal, usual_hosts(3), "docker", IMAGES)
    with pytest.raises(UsageError, match="not written as quadlet"):
        render_by_node(rpc_proposal, usual_hosts(3), "quadlet", WITH_RPC)
    with pytest.raises(UsageError, match="not written for Kubernetes"):
        render_for_kubernetes(rpc_proposal, usual_hosts(3), WITH_RPC)
