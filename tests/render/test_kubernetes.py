"""Manifests: valid by Kubernetes' own schema, read back to the same launches, swapped one after the other."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount
from firesteel.reads.launches import read
from firesteel.render import Cluster, LaunchFacts, containerized, kubernetes, pin, swap_script
from firesteel.render.kubernetes import CLUSTER, dns_name
from firesteel.units import GIB
from firesteel.values import replace
from tests.render.material import (
    ON_ONE,
    SHIPPED,
    SHOWN,
    check_golden,
    facts_of,
    launch_of,
    objections,
    own_objections,
    read_one,
)

TWO = ("qwen3-coder-next-fp8", "gpt-oss-120b-llamacpp")
KEYS = {"vllm": "VLLM_API_KEY", "llamacpp": "LLAMA_API_KEY", "sglang": "FIRESTEEL_API_KEY"}


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def of_kind(text: str, kind: str) -> list[dict[str, Any]]:
    return [document for document in documents(text) if document["kind"] == kind]


def validate(text: str) -> None:
    for document in documents(text):
        kubernetes_validate.validate(document, "1.32", strict=True)


def both(cluster: Cluster = CLUSTER) -> str:
    return kubernetes([(launch_of(name), facts_of(name)) for name in TWO], cluster)


@pytest.mark.parametrize("name", [name for name in ON_ONE if launch_of(name).engine != "sglang"])
def test_every_recipe_is_read_back(name: str) -> None:
    launch, known = launch_of(name), facts_of(name)
    text = kubernetes([(launch, known)])
    expected = containerized(pin(launch, known))
    container = expected.container
    assert container is not None
    gpu: tuple[tuple[str, str | None], ...] = (("runtime", "nvidia"),) if container.gpus else ()
    cleared = container.entrypoint == ""
    container = replace(
        container,
        gpus="1" if container.gpus else None,
        shm_bytes=10 * GIB if container.ipc else None,
        ipc=None,
        publish=(),
        entrypoint=container.program[0] if cleared else container.entrypoint,
        program=container.program[1:] if cleared else container.program,
        mounts=(Mount(f"{dns_name(name)}-models", container.mounts[0].target),),
        options=(*gpu, ("expose", str(launch.port))),
    )
    key = KEYS[launch.engine]
    if launch.engine == "sglang":  # has no variable for it; the kubelet writes the value there
        expected = replace(expected, flags={**expected.flags, "api-key": f"${key}"})
    expected = replace(expected, env={**expected.env, key: f"${key}"}, container=container)
    found = read_one(text, "manifest.yaml")
    assert found == replace(expected, version=found.version)
    assert objections(text, "manifest.yaml") <= own_objections(launch)


@pytest.mark.parametrize("name", SHOWN)
def test_golden(name: str) -> None:
    text = kubernetes([(launch_of(name), facts_of(name))])
    validate(text)
    check_golden(f"{name}.kubernetes.yaml", text)


def test_two_behind_one_service() -> None:
    text = both(Cluster(service="spark", on_tailnet=True))
    validate(text)
    check_golden("two.kubernetes.yaml", text)
    (service,) = of_kind(text, "Service")
    first, second = of_kind(text, "Deployment")
    selector = service["spec"]["selector"]
    for deployment in (first, second):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert first["spec"]["selector"] != second["spec"]["selector"]
    assert (first["spec"]["replicas"], second["spec"]["replicas"]) == (1, 0)
    assert [port["port"] for port in service["spec"]["ports"]] == [80]
    assert service["metadata"]["annotations"] == {
        "tailscale.com/hostname": "spark",
        "tailscale.com/expose": "true",
    }
    assert {reading.launch.name for reading in read(text, "m.yaml", SHIPPED.images)} == set(TWO)
    (claim,) = of_kind(text, "PersistentVolumeClaim")
    assert claim["metadata"]["name"] == "spark-models"


def test_the_tailnet_is_opt_in() -> None:
    (service,) = of_kind(both(), "Service")
    assert "tailscale.com/expose" not in service["metadata"]["annotations"]
    assert service["spec"].get("type", "ClusterIP") == "ClusterIP"


@pytest.mark.parametrize("start_s", [None, 12.0, 1163.6])
def test_the_startup_probe_outlasts_the_plan(start_s: float | None) -> None:
    launch = launch_of(TWO[0])
    for weights in (None, 85 * 10**9):
        text = kubernetes([(launch, LaunchFacts(start_up_s=start_s, weights_bytes=weights))])
        (deployment,) = of_kind(text, "Deployment")
        probe = deployment["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
        waits = probe["periodSeconds"] * probe["failureThreshold"]
        assert waits >= (start_s or 1800) + (weights or 0) / 25e6
        assert waits < (start_s or 1800) + (weights or 0) / 25e6 + 11
        assert deployment["spec"]["progressDeadlineSeconds"] > waits


def test_the_pod_asks_for_nothing_special() -> None:
    """What Kubernetes' baseline profile refuses, which Talos enforces."""
    for deployment in of_kind(both(), "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert not {"hostIPC", "hostNetwork", "hostPID"} & pod.keys()
        assert all("hostPath" not in volume for volume in pod["volumes"])
        (container,) = pod["containers"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert pod["enableServiceLinks"] is False
        assert all("hostPort" not in port for port in container["ports"])


def test_keys_are_in_a_secret_that_is_not_in_the_manifest() -> None:
    text = both()
    assert not of_kind(text, "Secret")
    for deployment in of_kind(text, "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        by_name = {variable["name"]: variable for variable in container["env"] if "valueFrom" in variable}
        assert by_name.keys() & set(KEYS.values())
        for name, variable in by_name.items():
            assert variable["valueFrom"]["secretKeyRef"] == {"name": "firesteel-keys", "key": name}


def recorded_swap(tmp_path: Path, wanted: str, left: str = "") -> tuple[int, list[str], str]:
    """The script with a fake kubectl that only records its arguments."""
    tools = tmp_path / "bin"
    tools.mkdir()
    log = tmp_path / "log"
    kubectl = tools / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$*" >> {log}\n[ "$1" != get ] || printf "%s" "{left}"\n')
    kubectl.chmod(0o755)
    script = tmp_path / "swap.sh"
    script.write_text(swap_script([(launch_of(name), facts_of(name)) for name in TWO]))
    done = subprocess.run(
        ["sh", str(script), wanted],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={"PATH": f"{tools}:/usr/bin:/bin"},
    )
    calls = log.read_text().splitlines() if log.exists() else []
    return done.returncode, calls, done.stderr


def test_a_swap_stops_the_old_before_it_starts_the_new(tmp_path: Path) -> None:
    old, new = (dns_name(name) for name in TWO)
    code, calls, _ = recorded_swap(tmp_path, new, left=f"pod/{old}-abc")
    assert code == 0
    assert [line.split(" --timeout")[0] for line in calls] == [
        f"scale deployment/{old} --replicas=0",
        f"get pods -l app.kubernetes.io/instance={old} -o name",
        f"wait --for=delete pod -l app.kubernetes.io/instance={old}",
        f"scale deployment/{new} --replicas=1",
        f"rollout status deployment/{new}",
    ]


def test_a_swap_with_nothing_running_does_not_wait(tmp_path: Path) -> None:
    code, calls, _ = recorded_swap(tmp_path, dns_name(TWO[0]))
    assert code == 0 and not any(line.startswith("wait") for line in calls)


def test_a_swap_to_an_unknown_model_changes_nothing(tmp_path: Path) -> None:
    code, calls, complaint = recorded_swap(tmp_path, "nonsense")
    assert code == 2 and calls == [] and "no such model: nonsense" in complaint


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen3.6-35B", "qwen3-6-35b"),
        ("9b", "m-9b"),
        ("--", "model"),
        ("é" * 9, "model"),
        ("a" * 80, "a" * 63),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert dns_name(name) == expected


def test_what_it_refuses() -> None:
    two = [(launch_of(TWO[0]), LaunchFacts()), (launch_of(TWO[0]), LaunchFacts())]
    with pytest.raises(UsageError, match="have the same name"):
        kubernetes(two)
    with pytest.raises(UsageError, match="not a valid name of a Service"):
        kubernetes(two[:1], Cluster(service="My Service"))
    with pytest.raises(UsageError, match="only one model to swap"):
        swap_script(two[:1])
    with pytest.raises(UsageError, match="runs on 2 Sparks"):
        kubernetes([(launch_of("qwen3-235b-gptq-int4-two-sparks"), LaunchFacts())])
    container = Container("x/vllm", options=(("privileged", None),))
    with pytest.raises(UsageError, match="no equivalent of `--privileged`"):
        kubernetes([(Launch("m", "org/m", "vllm", container=container), LaunchFacts())])


def test_models_on_disk_and_dollars() -> None:
    launch = Launch("m", "/models/x", "vllm", "0.28.0", flags={"seed": "$(HOME) $$ $x"})
    text = kubernetes([(launch, LaunchFacts())])
    validate(text)
    found = read_one(text, "m.yaml")
    assert found.flags == launch.flags and found.container is not None
    mount = "type=volume,source=m-models,target=/models/x,volume-subpath=x,readonly"
    assert ("mount", mount) in found.container.options
    assert "copy /models/x into the claim" in text


def test_folders_of_variants_are_apart_in_the_claim() -> None:
    pair = [Launch(name, f"/data/{name}", "vllm", "0.28.0") for name in ("glm", "glm-fp8")]
    text = kubernetes([(launch, LaunchFacts(weights_bytes=GIB)) for launch in pair])
    validate(text)
    containers = [each["spec"]["template"]["spec"]["containers"][0] for each in of_kind(text, "Deployment")]
    assert [container["volumeMounts"][0]["subPath"] for container in containers] == ["glm", "glm-fp8"]
    assert "downloads" not in text
