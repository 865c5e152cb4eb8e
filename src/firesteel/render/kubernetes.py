"""Launches -> Kubernetes: one Service, one volume, and a Deployment for each way to serve.

All Deployments carry the Service's label, so clients keep one name while models change behind it. Only one
has a replica; `strategy: Recreate` and the limit of one GPU see to it that two never hold the memory at once.
The pod asks for nothing that Kubernetes' `baseline` profile refuses, which Talos enforces: shared memory is a
sized `emptyDir` and not the host's IPC namespace, weights are in a claim and not on a host path. Keys come
from a Secret that the manifest names and does not hold. Service links are off: a Service called `vllm` would
set `VLLM_PORT` and friends, which vLLM reads.
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
from dataclasses import dataclass, replace
from math import ceil

from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount
from firesteel.render.docker import after_image, contained, has_script
from firesteel.render.launch_facts import (
    DOWNLOAD_BYTES_PER_S,
    KEY_VARIABLES,
    LaunchFacts,
    by_name,
    heading,
    is_by_name,
    on_one_spark,
    pinned,
    reasons_by_word,
)
from firesteel.render.yaml_text import Explained, document
from firesteel.units import GIB, MIB

SHM_BYTES = 10 * GIB
"""In place of the host's IPC namespace."""
UNKNOWN_START_S = 1800
_PERIOD_S = 10
_NAME = "app.kubernetes.io/name"
_INSTANCE = "app.kubernetes.io/instance"
_DOLLAR = re.compile(r"\$(?=[$(])")


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster decides and a launch does not."""

    service: str | None = None
    """The name that clients use; None: the model's own, or `firesteel` for several."""
    on_tailnet: bool = False
    """Reached by that name through Tailscale's operator."""
    runtime_class: str = "nvidia"


CLUSTER = Cluster()


@dataclass(frozen=True, slots=True)
class _Variant:
    name: str
    launch: Launch
    known: LaunchFacts


def kubernetes(launches: Sequence[tuple[Launch, LaunchFacts]], cluster: Cluster = CLUSTER) -> str:
    """Service, claim and Deployments; the first of them runs."""
    service, variants = _variants(launches, cluster)
    parts = [_service(service, cluster), _claim(service, variants)]
    parts += [_deployment(each, service, cluster, int(at == 0)) for at, each in enumerate(variants)]
    head = _head(service, variants)
    return "---\n".join(document(part, head if at == 0 else ()) for at, part in enumerate(parts))


def swap_script(launches: Sequence[tuple[Launch, LaunchFacts]], cluster: Cluster = CLUSTER) -> str:
    """A script that lets one variant go, waits until its memory is free, and starts another."""
    service, variants = _variants(launches, cluster)
    if len(variants) < 2:
        raise UsageError(
            "one model has nothing to be swapped with", next="firesteel render A B --as kubernetes-swap"
        )
    patience = max(_patience_s(each.known) for each in variants)
    names = " ".join(each.name for each in variants)
    return _SWAP.format(service=service, names=names, bars=names.replace(" ", "|"), patience=patience)


_SWAP = """\
#!/bin/sh
# Changes which model answers behind the Service `{service}`: ./swap.sh NAME, one of {names}
# The memory holds one of them, so the others go first and their pods are waited for.
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
kubectl rollout status "deployment/$wanted" --timeout={patience}s
"""


def _variants(launches: Sequence[tuple[Launch, LaunchFacts]], cluster: Cluster) -> tuple[str, list[_Variant]]:
    found = [_Variant(dns_name(launch.name), in_pod(launch, known), known) for launch, known in launches]
    names = [each.name for each in found]
    if len(set(names)) < len(names):
        raise UsageError(f"two of these would be called the same: {', '.join(names)}", next="name each once")
    service = cluster.service or (names[0] if len(names) == 1 else "firesteel")
    if dns_name(service) != service:
        raise UsageError(f"`{service}` is no name of a Service", next=f"--service {dns_name(service)}")
    return service, found


def dns_name(name: str) -> str:
    """A label of DNS: letters, digits and dashes, a letter first, 63 at most."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"
    return (plain if plain[0].isalpha() else f"m-{plain}")[:63].rstrip("-")


def in_pod(launch: Launch, known: LaunchFacts) -> Launch:
    """The launch as a pod has it: no published port, shared memory of its own, a key that it asks for."""
    on_one_spark(launch, "a Deployment")
    launch = contained(pinned(launch, known))
    box = launch.container
    assert box is not None, "contained() gives one"
    if box.network or box.options:
        said = "--network" if box.network else f"--{box.options[0][0]}"
        raise UsageError(f"the manifest has no word for `{said}`", next="firesteel render --as docker")
    key = KEY_VARIABLES.get(launch.engine)
    if key is None:
        raise UsageError(
            f"{launch.engine} takes its key only as a word of its command, and a cluster can reach a Service",
            next="firesteel render --as compose, which publishes on 127.0.0.1",
        )
    shm = box.shm_bytes or (SHM_BYTES if box.ipc else None)
    pod = replace(box, publish=(), ipc=None, shm_bytes=shm, restart=None)
    return replace(launch, env={**launch.env, key: f"${key}"}, container=pod)


def _head(service: str, variants: Sequence[_Variant]) -> list[str]:
    first = variants[0]
    lines: list[str] = []
    for each in variants:
        lines += heading(each.launch, each.known, with_reasons=has_script(each.launch))
    needed = sorted({name for each in variants for name in by_name(each.launch)})
    lines += [
        f"Secrets first: a file keys.env (chmod 600) with {', '.join(f'{name}=...' for name in needed)}, then"
        f" kubectl create secret generic {service}-keys --from-env-file=keys.env",
        "Talos: the nodes need the extensions nvidia-open-gpu-kernel-modules and nvidia-container-toolkit, a"
        " RuntimeClass `nvidia`, and NVIDIA's device plugin",
        "A Deployment restarts its pod for ever, ever more slowly; one that cannot start is ended by"
        f" kubectl scale deployment/{first.name} --replicas=0",
    ]
    if len(set(KEY_VARIABLES.values()) & set(needed)) > 1:
        lines.append("Each engine reads its key from a variable of its own: give them the same key")
    if len(variants) > 1:
        lines += _swap_lines(variants[0].name, variants[1].name)
    return lines


def _swap_lines(old: str, new: str) -> list[str]:
    return [
        f"To change from {old} to {new} (`firesteel render ... --as kubernetes-swap` writes it as a script):",
        f"  kubectl scale deployment/{old} --replicas=0",
        f"  kubectl wait --for=delete pod -l {_INSTANCE}={old} --timeout=180s",
        f"  kubectl scale deployment/{new} --replicas=1",
    ]


def _service(service: str, cluster: Cluster) -> dict[str, object]:
    notes: dict[str, object] = {
        "tailscale.com/hostname": Explained(service, "its name in MagicDNS, once it is exposed")
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


def _claim(service: str, variants: Sequence[_Variant]) -> dict[str, object]:
    weights = [each.known.weights_bytes for each in variants]
    known = sum(each or 0 for each in weights)
    size = ceil((1.2 * known + 10 * GIB) / GIB) if all(weights) else 200
    why = "the weights and a fifth more" if all(weights) else "the weights' size is not known"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{service}-models", "labels": {_NAME: service}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": Explained(f"{size}Gi", why)}},
        },
    }


def _deployment(variant: _Variant, service: str, cluster: Cluster, replicas: int) -> dict[str, object]:
    labels = {_NAME: service, _INSTANCE: variant.name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": variant.name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "strategy": Explained({"type": "Recreate"}, "the memory holds one of it: the old pod goes first"),
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": _patience_s(variant.known) + 600,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(variant, service, cluster)},
        },
    }


def _pod(variant: _Variant, service: str, cluster: Cluster) -> dict[str, object]:
    box = variant.launch.container
    assert box is not None, "contained() gives one"
    pod: dict[str, object] = {
        "enableServiceLinks": Explained(False, "variables like VLLM_PORT would be read as settings"),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 60,
    }
    if box.gpus is not None:
        pod["runtimeClassName"] = cluster.runtime_class
    pod["containers"] = [_container(variant, box, service)]
    volumes = _volumes(box, service)
    if volumes:
        pod["volumes"] = volumes
    return pod


def _container(variant: _Variant, box: Container, service: str) -> dict[str, object]:
    launch, known = variant.launch, variant.known
    found: dict[str, object] = {"name": "engine", "image": box.image}
    found |= _command(launch, box, known)
    found["env"] = [_variable(name, value, service, known) for name, value in launch.env.items()]
    found["ports"] = [{"name": "http", "containerPort": launch.port}]
    found["resources"] = _resources(box, known)
    found["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    found |= _probes(known)
    mounts = [*_mounts(box)]
    if mounts:
        found["volumeMounts"] = mounts
    return found


def _command(launch: Launch, box: Container, known: LaunchFacts) -> dict[str, object]:
    """`command` takes the place of the image's entrypoint, `args` follow it."""
    reasons = reasons_by_word(launch, known)
    words: list[object] = []
    for group in after_image(launch, box):
        for word in group:
            why = reasons.get(word) if word == group[0] else None
            words.append(Explained(_text(word), why) if why else _text(word))
    if box.entrypoint is None:
        return {"args": words}
    if box.entrypoint == "":
        return {"command": words}
    return {"command": [_text(box.entrypoint)], "args": words}


def _text(word: str) -> str:
    """`$(NAME)` is Kubernetes' own; a doubled dollar is one."""
    return _DOLLAR.sub("$$", word)


def _variable(name: str, value: str, service: str, known: LaunchFacts) -> dict[str, object]:
    said: object = Explained(name, known.env_reasons[name]) if name in known.env_reasons else name
    if not is_by_name(name, value):
        return {"name": said, "value": _text(value)}
    return {"name": said, "valueFrom": {"secretKeyRef": {"name": f"{service}-keys", "key": name}}}


def _resources(box: Container, known: LaunchFacts) -> dict[str, object]:
    limits: dict[str, object] = {}
    if box.gpus is not None:
        limits["nvidia.com/gpu"] = Explained(
            _gpus(box.gpus), "a Spark has one, so two variants cannot run at once"
        )
    found: dict[str, object] = {"limits": limits} if limits else {}
    if known.needed_bytes:
        size = f"{ceil(known.needed_bytes / MIB)}Mi"
        found["requests"] = {
            "memory": Explained(size, "as planned; CUDA's memory is not counted by a limit, so there is none")
        }
    return found


def _gpus(gpus: str) -> str:
    if gpus.isdecimal():
        return gpus
    return "1" if gpus == "all" else str(len(gpus.strip('"').removeprefix("device=").split(",")))


def _patience_s(known: LaunchFacts) -> int:
    """The slow end of the planned start, and the time to fetch the weights the first time."""
    start = known.start_up_s or UNKNOWN_START_S
    return ceil(start + (known.weights_bytes or 0) / DOWNLOAD_BYTES_PER_S)


def _probes(known: LaunchFacts) -> dict[str, object]:
    health: dict[str, object] = {"path": "/health", "port": "http"}
    tries = ceil(_patience_s(known) / _PERIOD_S)
    fetch = ", and for the weights at 25 MB/s" if known.weights_bytes else ""
    planned = f"{known.start_up_s:.0f} s, the slow end of the plan" if known.start_up_s else "half an hour"
    return {
        "startupProbe": Explained(
            {"httpGet": health, "periodSeconds": _PERIOD_S, "timeoutSeconds": 5, "failureThreshold": tries},
            f"waits for {planned}{fetch}",
        ),
        "readinessProbe": {"httpGet": health, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": Explained(
            {"httpGet": health, "periodSeconds": 30, "timeoutSeconds": 15, "failureThreshold": 5},
            "slow to judge: a restart costs the whole start-up",
        ),
    }


def _mounts(box: Container) -> list[dict[str, object]]:
    found = [_mount(mount, at) for at, mount in enumerate(box.mounts)]
    if box.shm_bytes is not None:
        found.append({"name": "shm", "mountPath": "/dev/shm"})
    return found


def _mount(mount: Mount, at: int) -> dict[str, object]:
    """All from the one claim, each but the first in a folder of its own."""
    found: dict[str, object] = {"name": "models", "mountPath": mount.target}
    if at:
        found["subPath"] = f"mount-{at + 1}"
    if mount.read_only:
        found["readOnly"] = Explained(True, f"put into the claim what is in {mount.source}")
    return found


def _volumes(box: Container, service: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    if box.mounts:
        found.append({"name": "models", "persistentVolumeClaim": {"claimName": f"{service}-models"}})
    if box.shm_bytes is not None:
        found.append(
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{ceil(box.shm_bytes / MIB)}Mi"}}
        )
    return found
