"""Launches -> Kubernetes: one Service, one volume, and a Deployment for each launch; or a LeaderWorkerSet.

All Deployments carry the Service's label, so clients keep one name while models change behind it. Only one
has a replica; `strategy: Recreate` and the limit of one GPU ensure that two never use the memory at once. The
pod needs nothing that Kubernetes' `baseline` profile refuses, which Talos enforces: shared memory is a sized
`emptyDir` and not the host's IPC namespace, weights are in a claim and not on a host path. Keys come from a
Secret that the manifest names and does not contain. Service links are off: a Service called `vllm` would set
`VLLM_PORT` and the like, which vLLM reads.
`reads.kubernetes` is the inverse.
Seen in https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.32/,
https://docs.siderolabs.com/kubernetes-guides/security/pod-security (Talos enforces `baseline`),
https://docs.siderolabs.com/talos/v1.7/configure-your-talos-cluster/hardware-and-drivers/nvidia-gpu,
https://docs.vllm.ai/en/latest/configuration/env_vars/ (no Service called `vllm`) and
https://tailscale.com/kb/1236/kubernetes-operator/, 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil
from pathlib import PurePosixPath

from firesteel.errors import UsageError
from firesteel.launch import ENGINE_KEY_VARIABLES, LOOPBACK, Container, Launch, Mount
from firesteel.render.docker import container_of, containerized, has_script
from firesteel.render.launch_facts import (
    DOWNLOAD_BYTES_PER_S,
    LaunchFacts,
    heading,
    is_passed_through,
    passed_through,
    pin,
    require_one_spark,
)
from firesteel.render.yaml_text import Explained, argument_list, document, explain
from firesteel.units import GIB, MIB
from firesteel.values import Value, replace

SHM_BYTES = 10 * GIB
"""Replaces the host's IPC namespace."""
COMPILED_BYTES = 10 * GIB
"""What an engine compiles at its first start, with room for the next release."""
UNKNOWN_START_S = 1800
_PERIOD_S = 10
_NAME = "app.kubernetes.io/name"
_INSTANCE = "app.kubernetes.io/instance"
_SGLANG_KEY = "FIRESTEEL_API_KEY"
"""SGLang takes its key only as an argument: `$(NAME)` there is the variable's value in the pod."""
_DOLLAR = re.compile(rf"\$(?=[$(])(?!\((?:LWS_[A-Z_]+|{_SGLANG_KEY})\))")


class Cluster(Value):
    """What depends on the cluster and not on the launch."""

    service: str | None = None
    """The name that clients use; None: that of the model, or `firesteel` for several."""
    on_tailnet: bool = False
    """Expose it under that name through Tailscale's operator."""
    runtime_class: str = "nvidia"


CLUSTER = Cluster()


class PodVariant(Value):
    name: str
    launch: Launch
    facts: LaunchFacts


def kubernetes(launches: Sequence[tuple[Launch, LaunchFacts]], cluster: Cluster = CLUSTER) -> str:
    """Service, claim and Deployments; the first of them runs."""
    service, variants = _variants(launches, cluster)
    parts = [service_manifest(service, cluster), claim_manifest(service, variants)]
    parts += [_deployment(variant, service, cluster, int(n == 0)) for n, variant in enumerate(variants)]
    head = _head(service, variants)
    return "---\n".join(document(part, head if n == 0 else ()) for n, part in enumerate(parts))


def swap_script(launches: Sequence[tuple[Launch, LaunchFacts]], cluster: Cluster = CLUSTER) -> str:
    """A script that stops one variant, waits until its memory is free, and starts another."""
    service, variants = _variants(launches, cluster)
    if len(variants) < 2:
        raise UsageError("there is only one model to swap", next="firesteel render A B --as kubernetes-swap")
    timeout_s = max(_startup_timeout_s(variant.facts) for variant in variants)
    names = " ".join(variant.name for variant in variants)
    return _SWAP.format(service=service, names=names, bars=names.replace(" ", "|"), timeout_s=timeout_s)


_SWAP = """\
#!/bin/sh
# Switches the model behind the Service `{service}`: ./swap.sh NAME, one of {names}
# Only one of them fits into memory, so the others are stopped first, until their pods are gone.
set -eu
wanted=${{1:?one of {names}}}
case "$wanted" in {bars}) ;; *) echo "no such model: $wanted; there are {names}" >&2; exit 2 ;; esac
for other in {names}; do
  [ "$other" = "$wanted" ] || kubectl scale "deployment/$other" --replicas=0
done
for other in {names}; do
  [ "$other" != "$wanted" ] || continue
  left=$(kubectl get pods -l "app.kubernetes.io/instance=$other" -o name)
  [ -z "$left" ] || kubectl wait --for=delete pod -l "app.kubernetes.io/instance=$other" --timeout=180s
done
kubectl scale "deployment/$wanted" --replicas=1
kubectl rollout status "deployment/$wanted" --timeout={timeout_s}s
"""


def _variants(
    launches: Sequence[tuple[Launch, LaunchFacts]], cluster: Cluster
) -> tuple[str, list[PodVariant]]:
    variants = [
        PodVariant(dns_name(launch.name), for_pod(launch, facts), facts) for launch, facts in launches
    ]
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise UsageError(
            f"two Deployments would have the same name: {', '.join(names)}", next="name each model once"
        )
    service = cluster.service or (names[0] if len(names) == 1 else "firesteel")
    if dns_name(service) != service:
        raise UsageError(
            f"`{service}` is not a valid name of a Service", next=f"--service {dns_name(service)}"
        )
    return service, variants


def dns_name(name: str) -> str:
    """A DNS label: at most 63 letters, digits and dashes, beginning with a letter."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"
    return (plain if plain[0].isalpha() else f"m-{plain}")[:63].rstrip("-")


def for_pod(launch: Launch, facts: LaunchFacts) -> Launch:
    """The launch as a pod runs it: no published port, its own shared memory, an API key."""
    require_one_spark(launch, "a Deployment")
    launch = containerized(pin(launch, facts))
    container = container_of(launch)
    # Kubernetes runs its own probes and never the image's health check.
    others = [name for name, _ in container.options if not name.startswith("health-")]
    if container.network or others:
        option = "network" if container.network else others[0]
        raise UsageError(f"a manifest has no equivalent of `--{option}`", next="firesteel render --as docker")
    key = ENGINE_KEY_VARIABLES.get(launch.engine, _SGLANG_KEY)
    if launch.engine not in ENGINE_KEY_VARIABLES:
        launch = replace(launch, flags={**launch.flags, "api-key": f"$({key})"})
    shm = container.shm_bytes or (SHM_BYTES if container.ipc else None)
    pod = replace(container, publish=(), ipc=None, shm_bytes=shm, restart=None, options=())
    return replace(launch, env={**launch.env, key: f"${key}"}, container=pod)


def _head(service: str, variants: Sequence[PodVariant]) -> list[str]:
    first = variants[0]
    lines: list[str] = []
    for variant in variants:
        lines += heading(variant.launch, variant.facts, with_reasons=has_script(variant.launch))
    needed = sorted({name for variant in variants for name in passed_through(variant.launch)})
    lines += [
        f"Secrets first: a file keys.env (chmod 600) with {', '.join(f'{name}=...' for name in needed)}, then"
        f" kubectl create secret generic {service}-keys --from-env-file=keys.env",
        "A Deployment restarts its pod for ever, at growing intervals; to stop one that cannot start:"
        f" kubectl scale deployment/{first.name} --replicas=0",
    ]
    if _on_gpu(variants):
        lines += [
            "Talos: nodes need the extensions nvidia-open-gpu-kernel-modules and nvidia-container-toolkit, a"
            " RuntimeClass `nvidia`, and NVIDIA's device plugin",
            "The first request compiles kernels, which takes about a minute: send one before users do",
        ]
    if len({*ENGINE_KEY_VARIABLES.values(), _SGLANG_KEY} & set(needed)) > 1:
        lines.append("Each engine reads its key from its own variable: set all of them to the same key")
    if len(variants) > 1:
        lines += _swap_lines(variants[0].name, variants[1].name)
    return lines


def _on_gpu(variants: Sequence[PodVariant]) -> bool:
    return any(container_of(variant.launch).gpus for variant in variants)


def _swap_lines(old: str, new: str) -> list[str]:
    return [
        f"To change from {old} to {new} (`firesteel render ... --as kubernetes-swap` writes it as a script):",
        f"  kubectl scale deployment/{old} --replicas=0",
        f"  kubectl wait --for=delete pod -l {_INSTANCE}={old} --timeout=180s",
        f"  kubectl scale deployment/{new} --replicas=1",
    ]


def service_manifest(service: str, cluster: Cluster) -> dict[str, object]:
    notes: dict[str, object] = {
        "tailscale.com/hostname": Explained(service, "its name in MagicDNS once exposed")
    }
    if cluster.on_tailnet:
        notes["tailscale.com/expose"] = Explained(
            "true", f"http://{service}/ on the tailnet, by Tailscale's operator"
        )
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service, "labels": {_NAME: service}, "annotations": notes},
        "spec": {
            "selector": Explained({_NAME: service}, "whichever variant has a replica"),
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def claim_manifest(
    service: str, variants: Sequence[PodVariant], access: str = "ReadWriteOnce"
) -> dict[str, object]:
    weights = [variant.facts.weights_bytes for variant in variants]
    total_bytes = sum(size or 0 for size in weights)
    compiled_bytes = COMPILED_BYTES if _on_gpu(variants) else 0
    size_gib = ceil((1.2 * total_bytes + compiled_bytes) / GIB) if all(weights) else 200
    why = "the weights and a fifth more" if all(weights) else "the size of the weights is unknown"
    if all(weights) and compiled_bytes:
        why += f", and {compiled_bytes // GIB} GiB for compiled kernels"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{service}-models", "labels": {_NAME: service}},
        "spec": {
            "accessModes": [access],
            "resources": {"requests": {"storage": Explained(f"{size_gib}Gi", why)}},
        },
    }


def _deployment(variant: PodVariant, service: str, cluster: Cluster, replicas: int) -> dict[str, object]:
    labels = {_NAME: service, _INSTANCE: variant.name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": variant.name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "strategy": Explained(
                {"type": "Recreate"}, "two do not fit into memory: the old pod stops first"
            ),
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": _startup_timeout_s(variant.facts) + 600,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec(variant, service, cluster)},
        },
    }


def pod_spec(variant: PodVariant, service: str, cluster: Cluster) -> dict[str, object]:
    container = variant.launch.container
    assert container is not None, "contained() gives one"
    pod: dict[str, object] = {
        "enableServiceLinks": Explained(False, "vLLM would read variables like VLLM_PORT as settings"),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 60,
    }
    if container.gpus is not None:
        pod["runtimeClassName"] = cluster.runtime_class
    pod["containers"] = [_container(variant, container, service)]
    volumes = _volumes(container, service)
    if volumes:
        pod["volumes"] = volumes
    return pod


def _container(variant: PodVariant, container: Container, service: str) -> dict[str, object]:
    launch, facts = variant.launch, variant.facts
    spec: dict[str, object] = {"name": "engine", "image": container.image}
    spec |= _command(launch, container, facts)
    spec["env"] = [_variable(name, value, service, facts) for name, value in launch.env.items()]
    spec["ports"] = [{"name": "http", "containerPort": launch.port}]
    spec["resources"] = _resources(container, facts)
    spec["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec |= _probes(facts)
    mounts = _mounts(container)
    if mounts:
        spec["volumeMounts"] = mounts
    return spec


def _command(launch: Launch, container: Container, facts: LaunchFacts) -> dict[str, object]:
    """`command` replaces the image's entrypoint, `args` follow it."""
    arguments = argument_list(launch, facts, _text)
    if container.entrypoint is None:
        return {"args": arguments}
    if container.entrypoint == "":
        return {"command": arguments}
    return {"command": [_text(container.entrypoint)], "args": arguments}


def _text(word: str) -> str:
    """Kubernetes expands `$(NAME)`, of which only those of a LeaderWorkerSet and a key are meant, and reads a
    doubled dollar as one."""
    return _DOLLAR.sub("$$", word)


def _variable(name: str, value: str, service: str, facts: LaunchFacts) -> dict[str, object]:
    explained = explain(name, facts.env_reasons.get(name))
    if not is_passed_through(name, value):
        return {"name": explained, "value": _text(value)}
    return {"name": explained, "valueFrom": {"secretKeyRef": {"name": f"{service}-keys", "key": name}}}


def _resources(container: Container, facts: LaunchFacts) -> dict[str, object]:
    limits: dict[str, object] = {}
    if container.gpus is not None:
        limits["nvidia.com/gpu"] = Explained(
            _gpus(container.gpus), "a Spark has one, so two variants cannot run at once"
        )
    resources: dict[str, object] = {"limits": limits} if limits else {}
    if facts.needed_bytes:
        size = f"{ceil(facts.needed_bytes / MIB)}Mi"
        why = "as planned"
        if container.gpus is not None:
            why += "; there is no limit, since a limit does not count CUDA's memory"
        resources["requests"] = {"memory": Explained(size, why)}
    return resources


def _gpus(gpus: str) -> str:
    if gpus.isdecimal():
        return gpus
    return "1" if gpus == "all" else str(len(gpus.strip('"').removeprefix("device=").split(",")))


def _startup_timeout_s(facts: LaunchFacts) -> int:
    """The slow end of the planned start-up, and the time to download the weights."""
    start = facts.start_up_s or UNKNOWN_START_S
    return ceil(start + (facts.weights_bytes or 0) / DOWNLOAD_BYTES_PER_S)


def _probes(facts: LaunchFacts) -> dict[str, object]:
    health: dict[str, object] = {"path": "/health", "port": "http"}
    tries = ceil(_startup_timeout_s(facts) / _PERIOD_S)
    download = ", and for the weights at 25 MB/s" if facts.weights_bytes else ""
    planned = f"{facts.start_up_s:.0f} s, the slow end of the plan" if facts.start_up_s else "half an hour"
    return {
        "startupProbe": Explained(
            {"httpGet": health, "periodSeconds": _PERIOD_S, "timeoutSeconds": 5, "failureThreshold": tries},
            f"waits for {planned}{download}",
        ),
        "readinessProbe": {"httpGet": health, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": Explained(
            {"httpGet": health, "periodSeconds": 30, "timeoutSeconds": 15, "failureThreshold": 5},
            "slow, since a restart costs the whole start-up",
        ),
    }


def _mounts(container: Container) -> list[dict[str, object]]:
    mounts = [_mount(mount, index) for index, mount in enumerate(container.mounts)]
    if container.shm_bytes is not None:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    return mounts


def _mount(mount: Mount, index: int) -> dict[str, object]:
    """All mounts use the one claim: the user's files under their names, so that variants do not share them,
    and each other but the first in a folder of its own."""
    spec: dict[str, object] = {"name": "models", "mountPath": mount.target}
    if mount.read_only:
        spec["subPath"] = PurePosixPath(mount.source).name
        spec["readOnly"] = Explained(True, f"copy {mount.source} into the claim")
    elif index:
        spec["subPath"] = f"mount-{index + 1}"
    return spec


def _volumes(container: Container, service: str) -> list[dict[str, object]]:
    volumes: list[dict[str, object]] = []
    if container.mounts:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": f"{service}-models"}})
    if container.shm_bytes is not None:
        size = f"{ceil(container.shm_bytes / MIB)}Mi"
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    return volumes


LEADER_ADDRESS, WORKER_INDEX = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
"""LeaderWorkerSet gives these variables to every container, and Kubernetes puts them into arguments."""
_ROLE = "app.kubernetes.io/component"
_OF_THE_HOST = ("device", "ulimit", "cap-add")
"""Options of `docker run` that a privileged pod needs no equivalent of."""


def leader_worker_set(
    leader: Launch, worker: Launch, facts: LaunchFacts, size: int, cluster: Cluster = CLUSTER
) -> str:
    """Service, claim and LeaderWorkerSet, for a launch over several hosts. The launches are those of rank 0
    and of any other rank.

    The pods of a set are started and restarted as one. The leader is rank 0 and has the Service; every worker
    has the rank that the set gives it. The pods use the host's network and its RDMA devices, which
    Kubernetes' `baseline` profile refuses: the namespace has to allow `privileged` ones. A rank that is lost
    ends the whole group: a rank that starts alone waits for ever.
    Seen in https://github.com/kubernetes-sigs/lws, api/leaderworkerset/v1 and docs/examples/sglang,
    2026-08-21.
    """
    name = dns_name(leader.name)
    service = cluster.service or name
    head, other = (PodVariant(name, _in_pod(launch, facts), facts) for launch in (leader, worker))
    parts = [
        _leaders_only(service_manifest(service, cluster), service),
        claim_manifest(service, [head], "ReadWriteMany"),
        _set(name, service, (_template(head, service, cluster, "leader"),
                             _template(other, service, cluster, "worker")), size),
    ]  # fmt: skip
    texts = [document(part, _set_head(service, head) if n == 0 else ()) for n, part in enumerate(parts)]
    return "---\n".join(texts)


def _in_pod(launch: Launch, facts: LaunchFacts) -> Launch:
    launch = containerized(launch)
    container = container_of(launch)
    options = tuple(option for option in container.options if option[0] not in _OF_THE_HOST)
    flags = {name: value for name, value in launch.flags.items() if (name, value) != ("host", LOOPBACK)}
    container = replace(container, network=None, options=options)
    return for_pod(replace(launch, sparks=1, flags=flags, container=container), facts)


def _set_head(service: str, leader: PodVariant) -> list[str]:
    needed = ", ".join(f"{name}=..." for name in passed_through(leader.launch))
    return [
        *heading(leader.launch, leader.facts, with_reasons=has_script(leader.launch)),
        "Needs LeaderWorkerSet (https://lws.sigs.k8s.io/docs/installation/), and a namespace that allows it:"
        " kubectl label namespace NAME pod-security.kubernetes.io/enforce=privileged",
        f"Secrets first: a file keys.env (chmod 600) with {needed}, then"
        f" kubectl create secret generic {service}-keys --from-env-file=keys.env",
    ]


def _leaders_only(service: dict[str, object], name: str) -> dict[str, object]:
    spec = service["spec"]
    assert isinstance(spec, dict)
    selector = Explained({_NAME: name, _ROLE: "leader"}, "workers have no port")
    return {**service, "spec": {**spec, "selector": selector}}


def _set(name: str, service: str, templates: tuple[object, object], size: int) -> dict[str, object]:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "labels": {_NAME: service}},
        "spec": {
            "replicas": 1,
            "startupPolicy": Explained("LeaderCreated", "ranks wait for each other: all at once"),
            "leaderWorkerTemplate": {
                "size": size,
                "restartPolicy": Explained("RecreateGroupOnPodRestart", "all or none"),
                "leaderTemplate": templates[0],
                "workerTemplate": templates[1],
            },
        },
    }


def _template(variant: PodVariant, service: str, cluster: Cluster, role: str) -> dict[str, object]:
    pod = pod_spec(variant, service, cluster)
    containers, volumes = pod.pop("containers"), pod.pop("volumes", [])
    assert isinstance(containers, list) and isinstance(volumes, list)
    return {
        "metadata": {"labels": {_NAME: service, _ROLE: role}},
        "spec": {
            **pod,
            "hostNetwork": Explained(
                True, "ranks reach each other at ports of their own choice, by the rails"
            ),
            "dnsPolicy": "ClusterFirstWithHostNet",
            "containers": [_set_container(containers[0], role)],
            "volumes": [*volumes, {"name": "infiniband", "hostPath": {"path": "/dev/infiniband"}}],
        },
    }


def _set_container(container: dict[str, object], role: str) -> dict[str, object]:
    env, mounts = container["env"], container.get("volumeMounts", [])
    assert isinstance(env, list) and isinstance(mounts, list)
    changed = {
        **container,
        "env": [_own_address(variable) for variable in env],
        "securityContext": {"privileged": Explained(True, "RDMA: its devices, and memory that stays locked")},
        "volumeMounts": [*mounts, {"name": "infiniband", "mountPath": "/dev/infiniband"}],
    }
    if role == "worker":  # it answers on no port
        changed = {key: value for key, value in changed.items() if key != "ports" and "Probe" not in key}
    return changed


def _own_address(variable: dict[str, object]) -> dict[str, object]:
    if variable["name"] != "VLLM_HOST_IP":
        return variable
    return {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
