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
from firesteel.render.kubernetes import CLUSTER, dns_name, quantity
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
    dropped = (("cap-drop", "ALL"),) if container.image.startswith("ghcr.io/ggml-org/llama.cpp:") else ()
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
        options=(*gpu, ("expose", str(launch.port)), *dropped),
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
    claims = [claim["metadata"]["name"] for claim in of_kind(text, "PersistentVolumeClaim")]
    assert claims == [f"{dns_name(name)}-models" for name in TWO]


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """A label selector with `matchLabels` and `NotIn`."""
    assert all(rule["operator"] == "NotIn" for rule in selector.get("matchExpressions", ()))
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(rule["key"]) not in rule["values"] for rule in selector.get("matchExpressions", ())
    )


def test_pods_of_two_variants_are_never_in_one_cluster() -> None:
    """The term of each matches pods of the other and not its own; its domain is the whole cluster."""
    pods = [deployment["spec"]["template"] for deployment in of_kind(both(), "Deployment")]
    for pod in pods:
        (term,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/os"
        found = [matches(term["labelSelector"], other["metadata"]["labels"]) for other in pods]
        assert found == [other is not pod for other in pods]


def test_another_set_of_models_changes_nothing_that_cannot_change() -> None:
    """Selectors are immutable and a claim cannot shrink: they depend on the variant alone."""
    alone = kubernetes([(launch_of(TWO[0]), facts_of(TWO[0]))])
    for text in (both(), both(Cluster(service="spark"))):
        kept = {
            (part["kind"], part["metadata"]["name"]): part
            for part in documents(text)
            if part["kind"] != "Service"
        }
        for part in documents(alone)[1:]:
            found = kept[part["kind"], part["metadata"]["name"]]["spec"]
            if part["kind"] == "Deployment":
                assert found["selector"] == part["spec"]["selector"]
            else:
                assert found == part["spec"]


def test_a_claim_stays_when_its_model_leaves_the_file() -> None:
    for claim in of_kind(both(), "PersistentVolumeClaim"):
        assert claim["metadata"]["annotations"] == {
            "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
            "kustomize.toolkit.fluxcd.io/prune": "disabled",
        }


def test_a_claim_of_an_older_file_is_used_again() -> None:
    text = both(Cluster(claim="firesteel-models=171Gi"))
    validate(text)
    (claim,) = of_kind(text, "PersistentVolumeClaim")
    assert claim["metadata"]["name"] == "firesteel-models"
    assert claim["spec"]["resources"]["requests"]["storage"] == "171Gi"
    for deployment in of_kind(text, "Deployment"):
        volume = deployment["spec"]["template"]["spec"]["volumes"][0]
        assert volume["persistentVolumeClaim"] == {"claimName": "firesteel-models"}
    assert not of_kind(both(Cluster(claim="firesteel-models")), "PersistentVolumeClaim")


def test_every_variant_answers_to_the_shared_names() -> None:
    aliases = {TWO[0]: ("coder:30b", "coder")}
    first, second = of_kind(both(Cluster(service="spark", aliases=aliases)), "Deployment")
    args = first["spec"]["template"]["spec"]["containers"][0]["args"]
    at = args.index("--served-model-name")
    assert args[at + 1 : at + 5] == [TWO[0], "spark", "coder:30b", "coder"]
    args = second["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--alias") + 1] == TWO[1], "llama.cpp answers to any name"


def test_an_adapter_of_sglang_is_no_alias() -> None:
    pair = [(launch_of("gpt-oss-20b-sglang"), LaunchFacts())]
    text = kubernetes(pair, Cluster(aliases={"gpt-oss-20b-sglang": ("gpt-oss:20b",)}))
    assert "SGLang takes what follows the colon in gpt-oss:20b for an adapter" in text


def test_the_pod_runs_where_the_plan_is_for() -> None:
    known = replace(facts_of(TWO[0]), arch="arm64")
    (deployment,) = of_kind(kubernetes([(launch_of(TWO[0]), known)]), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    (elsewhere,) = of_kind(kubernetes([(launch_of("smollm2"), facts_of("smollm2"))]), "Deployment")
    assert not {"nodeSelector", "tolerations"} & elsewhere["spec"]["template"]["spec"].keys()


@pytest.mark.parametrize("name", ON_ONE)
def test_restricted_where_the_image_allows_it(name: str) -> None:
    (deployment,) = of_kind(kubernetes([(launch_of(name), facts_of(name))]), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    is_restricted = container["image"].startswith("ghcr.io/ggml-org/llama.cpp:")
    assert (pod.get("securityContext", {}).get("runAsNonRoot") is True) == is_restricted
    assert ("capabilities" in container["securityContext"]) == is_restricted


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [(10 * GIB, "10Gi"), (2048 * GIB, "2Ti"), (GIB + 1, "1025Mi"), (1, "1Mi"), (1536 * 2**20, "1536Mi")],
)
def test_quantities_are_as_the_server_stores_them(size_bytes: int, expected: str) -> None:
    assert quantity(size_bytes) == expected


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


def swap(tmp_path: Path, wanted: str, text: str, *options: str) -> tuple[int, str, list[str], str]:
    """The script with a kubectl that only records: exit code, the file, the calls, complaints."""
    log, file, script = tmp_path / "log", tmp_path / "two.yaml", tmp_path / "swap.sh"
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$*" >> {log}\n')
    kubectl.chmod(0o755)
    file.write_text(text)
    script.write_text(swap_script([(launch_of(name), facts_of(name)) for name in TWO]))
    done = subprocess.run(
        ["sh", str(script), wanted, file.name, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={"PATH": "/usr/bin:/bin", "KUBECTL": f"{kubectl} -n models"},
    )
    calls = log.read_text().splitlines() if log.exists() else []
    return done.returncode, file.read_text(), calls, done.stderr


def test_a_swap_edits_the_file_and_applies_it(tmp_path: Path) -> None:
    """As if it were rendered anew; a second swap to the same model changes nothing."""
    old, new = (dns_name(name) for name in TWO)
    code, text, calls, _ = swap(tmp_path, new, both(), "--server-side")
    assert code == 0
    assert documents(text) == documents(both(Cluster(active=TWO[1])))
    assert calls[0] == "-n models apply --server-side -f two.yaml"
    assert calls[1].startswith(f"-n models rollout status deployment/{new} --timeout=")
    assert swap(tmp_path, new, text)[1] == text
    mine = both() + "---\nkind: Deployment\nmetadata:\n  name: mine\nspec:\n  replicas: 3\n"
    assert documents(swap(tmp_path, new, mine)[1])[-1] == documents(mine)[-1], "not of this script"
    assert swap(tmp_path, old, text)[1] == both()


@pytest.mark.parametrize(
    "text", [both(), "kind: Deployment\nmetadata:\n  name: else\nspec:\n  replicas: 1\n"]
)
def test_a_swap_to_an_unknown_model_changes_nothing(tmp_path: Path, text: str) -> None:
    wanted = "nonsense" if text == both() else dns_name(TWO[0])
    code, after, calls, complaint = swap(tmp_path, wanted, text)
    assert code == 2 and calls == [] and after == text
    assert "no such model: nonsense" in complaint or f"no Deployment {wanted}" in complaint


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
    with pytest.raises(UsageError, match="`else` is none of the models of this manifest: qwen3-coder"):
        kubernetes(two[:1], Cluster(active="else"))
    for claim in ("My Claim", "models=171GB"):
        with pytest.raises(UsageError, match="is not a claim"):
            kubernetes(two[:1], Cluster(claim=claim))
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
