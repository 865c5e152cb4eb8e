"""Launches -> Kubernetes: a Service, and a claim and a Deployment for each launch; or a LeaderWorkerSet.

All pods carry the Service's label, so clients keep one name while models change behind it. One Deployment
has a replica, and the file says which: a swap edits the file and applies it (`swap_script`, or `render
--active`). An apply of the same file must change nothing, and wherever else the choice were kept, plain
`kubectl apply` would reset it, a server-side one would conflict with it, or the first apply would start all
variants (an absent `replicas` is 1). The scheduler ensures that two never run at once: each pod refuses to
share the cluster with a pod of another variant. So an apply may stop one and start another in any order.

What depends on the set of models is in no field that cannot change: selectors name the variant alone, and a
claim belongs to one variant. The pod needs nothing that Kubernetes' `baseline` profile refuses, which Talos
enforces, and nothing that `restricted` does where the image runs as any user: shared memory is a sized
`emptyDir` and not the host's IPC namespace, weights are in a claim and not on a host path. Keys come from a
Secret that the manifest names and does not contain. Service links are off: a Service called `vllm` would set
`VLLM_PORT` and the like, which vLLM reads. Quantities are written as the server stores them.
`reads.kubernetes` is the inverse; tests/render/cluster has what an API server 1.36 said.
Seen in https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.32/,
https://docs.siderolabs.com/kubernetes-guides/security/pod-security (Talos enforces `baseline`),
https://docs.siderolabs.com/talos/v1.7/configure-your-talos-cluster/hardware-and-drivers/nvidia-gpu,
https://docs.vllm.ai/en/latest/configuration/env_vars/ (no Service called `vllm`),
https://argo-cd.readthedocs.io/en/stable/user-guide/sync-options/,
https://fluxcd.io/flux/components/kustomize/kustomizations/ (both: what is never pruned) and
https://tailscale.com/kb/1236/kubernetes-operator/, 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import PurePosixPath

from firesteel.engines.engine import grammar
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
_APP = {"app.kubernetes.io/name": "firesteel"}
_SERVICE = "app.kubernetes.io/part-of"
_INSTANCE = "app.kubernetes.io/instance"
_KEPT = {
    "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
    "kustomize.toolkit.fluxcd.io/prune": "disabled",
}
_ANY_USER = "ghcr.io/ggml-org/llama.cpp:"
"""Its program and libraries are readable by all and its Dockerfiles name no user (.devops/cpu.Dockerfile and
cuda.Dockerfile, 2026-11-19). Nobody has tried vLLM's and SGLang's as another user than root."""
_USER = 1000
_SIZE = re.compile(r"[1-9][0-9]{0,5}[MGT]i")
_MAX_NAME = 63
_RANKS = "-ranks"
_MAX_SET_NAME = 50
"""A StatefulSet makes a label of a set's name, a dash, an index, a dash and ten letters: 63 at most."""
_SGLANG_KEY = "FIRESTEEL_API_KEY"
"""SGLang takes its key only as an argument: `$(NAME)` there is the variable's value in the pod."""
_DOLLAR = re.compile(rf"\$(?=[$(])(?!\((?:LWS_[A-Z_]+|{_SGLANG_KEY})\))")


class Cluster(Value):
    """What depends on the cluster and not on the launch."""

    service: str | None = None
    """The name that clients use, and a name of each model; None: that of the model, or `firesteel` for
    several."""
    on_tailnet: bool = False
    """Expose it under that name through Tailscale's operator."""
    active: str | None = None
    """The model that runs; None: the first."""
    claim: str | None = None
    """One claim for the weights of all models, in place of one for each. `NAME`: it exists, and the manifest
    does not contain it; `NAME=171Gi`: it does, and the size stays whatever models there are."""
    aliases: Mapping[str, Sequence[str]] = {}
    """Other names that a model answers to, by its name."""
    elsewhere: Sequence[str] = ()
    """Models of the service file that are not in the manifest: other hosts or other programs serve them."""
    runtime_class: str = "nvidia"


CLUSTER = Cluster()


class PodVariant(Value):
    name: str
    launch: Launch
    facts: LaunchFacts


def kubernetes(launches: Sequence[tuple[Launch, LaunchFacts]], cluster: Cluster = CLUSTER) -> str:
    """Service, claims and Deployments, one of which runs."""
    service, variants = _variants(launches, cluster)
    active = _active(variants, cluster)
    parts = [service_manifest(service, cluster)]
    parts += _claims(variants, service, cluster)
    parts += [_deployment(variant, service, cluster, int(variant is active)) for variant in variants]
    head = _head(service, variants, active, cluster)
    return "---\n".join(document(part, head if n == 0 else ()) for n, part in enumerate(parts))


def swap_script(launches: Sequence[tuple[Launch, LaunchFacts]], cluster: Cluster = CLUSTER) -> str:
    """A script that changes in a manifest which variant runs, and applies it."""
    service, variants = _variants(launches, cluster)
    if len(variants) < 2:
        raise UsageError("there is only one model to swap", next="firesteel render A B --as kubernetes-swap")
    # As in `progressDeadlineSeconds`: the first start may have to pull the image.
    timeout_s = max(_startup_timeout_s(variant.facts) for variant in variants) + 600
    names = " ".join(variant.name for variant in variants)
    return _SWAP.format(service=service, names=names, bars=names.replace(" ", "|"), timeout_s=timeout_s)


_SWAP = """\
#!/bin/sh
# Switches the model behind the Service `{service}`: ./swap.sh NAME FILE, NAME one of {names}
# FILE: what `firesteel render --as kubernetes` wrote. The script changes in it which model has a replica,
# and applies it; the scheduler starts the new pod when the old one is gone. Options for `kubectl apply`
# follow FILE (--server-side); KUBECTL is the command (default: kubectl; or `kubectl -n models`).
# Argo CD, Flux: KUBECTL=true ./swap.sh NAME FILE changes only the file; commit it.
set -eu
wanted=${{1:?one of {names}}}
file=${{2:?the manifest: what firesteel render --as kubernetes wrote}}
shift 2
kubectl=${{KUBECTL:-kubectl}}
case "$wanted" in {bars}) ;; *) echo "no such model: $wanted; there are {names}" >&2; exit 2 ;; esac
awk -v wanted="$wanted" '
  /^---/ {{ kind = name = "" }}
  /^kind: / {{ kind = $2 }}
  /^  name: / && name == "" {{ name = $2; gsub(/"/, "", name) }}
  kind == "Deployment" && name ~ /^({bars})$/ && /^  replicas: / {{
    $0 = "  replicas: " (name == wanted)
    found += name == wanted
  }}
  {{ print }}
  END {{ exit found != 1 }}' "$file" > "$file.new" ||
  {{ rm -f "$file.new"; echo "$file: no Deployment $wanted with replicas" >&2; exit 2; }}
mv "$file.new" "$file"
$kubectl apply "$@" -f "$file"
$kubectl rollout status "deployment/$wanted" --timeout={timeout_s}s
"""


def _variants(
    launches: Sequence[tuple[Launch, LaunchFacts]], cluster: Cluster
) -> tuple[str, list[PodVariant]]:
    names = [dns_name(launch.name) for launch, _ in launches]
    if len(set(names)) < len(names):
        raise UsageError(
            f"two Deployments would have the same name: {', '.join(names)}", next="name each model once"
        )
    service = _service_name(cluster, names[0] if len(names) == 1 else "firesteel")
    variants = [
        PodVariant(name, served_as(for_pod(launch, facts), service, cluster), facts)
        for name, (launch, facts) in zip(names, launches, strict=True)
    ]
    return service, variants


def _service_name(cluster: Cluster, default: str) -> str:
    name, (claim, size) = cluster.service or default, _shared_claim(cluster)
    if dns_name(name) != name:
        raise UsageError(f"`{name}` is not a valid name of a Service", next=f"--service {dns_name(name)}")
    if (claim and dns_name(claim) != claim) or (size and not _SIZE.fullmatch(size)):
        raise UsageError(
            f"`{cluster.claim}` is not a claim",
            next="--claim NAME, or --claim NAME=171Gi; see kubectl get pvc",
        )
    return name


def _shared_claim(cluster: Cluster) -> tuple[str, str]:
    name, _, size = (cluster.claim or "").partition("=")
    return name, size


def _active(variants: Sequence[PodVariant], cluster: Cluster) -> PodVariant:
    named = {name: variant for variant in variants for name in (variant.launch.name, variant.name)}
    wanted = cluster.active or variants[0].name
    if wanted not in named:
        names = [variant.name for variant in variants]
        raise UsageError(
            f"`{wanted[:63]}` is none of the models of this manifest: {', '.join(names)}",
            next=f"--active {names[0]}",
        )
    return named[wanted]


def served_as(launch: Launch, service: str, cluster: Cluster) -> Launch:
    """The launch under all its names: the model's own first, then those that stay when models change.

    Only vLLM refuses a name that it was not given, and takes several. llama.cpp and SGLang answer to any
    name, but SGLang reads `a:b` as the adapter b of a (`_parse_model_parameter`, serving_base.py, 0.5.23).
    """
    shared = () if service == dns_name(launch.name) else (service,)
    names = list(dict.fromkeys((launch.name, *shared, *cluster.aliases.get(launch.name, ()))))
    flag = grammar(launch.engine).name_flag
    if launch.engine != "vllm" or len(names) == 1 or flag in launch.flags:
        return launch
    return replace(launch, flags={flag: names, **launch.flags})


def dns_name(name: str, limit: int = _MAX_NAME) -> str:
    """A DNS label: at most 63 letters, digits and dashes, beginning with a letter."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"
    return (plain if plain[0].isalpha() else f"m-{plain}")[:limit].rstrip("-")


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


def _head(service: str, variants: Sequence[PodVariant], active: PodVariant, cluster: Cluster) -> list[str]:
    lines: list[str] = []
    for variant in variants:
        lines += heading(variant.launch, variant.facts, with_reasons=has_script(variant.launch))
    needed = sorted({name for variant in variants for name in passed_through(variant.launch)})
    deployments = " ".join(variant.name for variant in variants)
    lines += [
        *_secrets_first(service, needed),
        "A Deployment restarts its pod for ever, at growing intervals; to stop one that cannot start:"
        f" kubectl scale deployment/{active.name} --replicas=0",
        *_refusals(variants),
        *_what_delete_removes(service, cluster),
        "`spec.selector: field is immutable` (a file of an older firesteel):"
        f" kubectl delete deployment {deployments}; then apply again. The claims stay; an older one for all"
        " models is used again with --claim NAME=SIZE, both as `kubectl get pvc` shows them",
    ]
    if _on_gpu(variants):
        lines.append(
            "The first request compiles kernels, which takes about a minute: send one before users do"
        )
    if len({*ENGINE_KEY_VARIABLES.values(), _SGLANG_KEY} & set(needed)) > 1:
        lines.append("Each engine reads its key from its own variable: set all of them to the same key")
    if cluster.elsewhere:
        lines.append(f"Not in this file: {', '.join(cluster.elsewhere)} (other hosts or programs serve them)")
    lines += _names_lines(service, variants, cluster)
    if len(variants) > 1:
        lines += [
            f"This file says which model runs, now {active.name}: the one with a replica. To change it:"
            " ./swap.sh NAME FILE (`firesteel render ... --as kubernetes-swap -o swap.sh`) edits and applies"
            " this file, or `firesteel render ... --active NAME` writes it again. After `kubectl scale`, the"
            " next apply swaps back, or ends with a conflict"
        ]
    return lines


def _secrets_first(service: str, needed: Sequence[str]) -> list[str]:
    if not needed:
        return []
    return [
        f"Secrets first: a file keys.env (chmod 600) with {', '.join(f'{name}=...' for name in needed)}, then"
        f" kubectl create secret generic {service}-keys --from-env-file=keys.env"
    ]


def _refusals(variants: Sequence[PodVariant], profile: str = "") -> list[str]:
    """What an apply does not say: it takes the Deployment, and the pods are refused later."""
    is_any_user = all(_runs_as_any_user(variant) for variant in variants)
    profile = profile or ("restricted" if is_any_user else "baseline")
    lines = []
    if _on_gpu(variants):
        lines.append(
            "GPU: needs a RuntimeClass `nvidia` and NVIDIA's device plugin (Talos: the extensions"
            " nvidia-open-gpu-kernel-modules and nvidia-container-toolkit, too)"
        )
    runtime = "by a missing RuntimeClass, " if lines else ""
    limits = "a quota on limits.memory, limits.cpu or requests.cpu"
    return [
        *lines,
        "If no pod appears: kubectl get events --field-selector reason=FailedCreate. An apply does not show"
        f" that pods are refused: {runtime}by {limits}, or by Pod Security stricter than `{profile}`",
    ]


def _what_delete_removes(service: str, cluster: Cluster) -> list[str]:
    if cluster.claim and not _shared_claim(cluster)[1]:
        return [f"kubectl delete -f leaves the claim {cluster.claim}, which is not in this file"]
    return [
        "kubectl delete -f removes the claims, too, and with the reclaim policy Delete the downloaded"
        f" weights. To keep them: kubectl delete deployment,service -l {_SERVICE}={service}"
    ]


def _names_lines(service: str, variants: Sequence[PodVariant], cluster: Cluster) -> list[str]:
    lines = []
    if len(variants) > 1:
        lines.append(f"Clients ask for the model `{service}`, which every variant answers to")
    for variant in variants:
        adapters = [name for name in cluster.aliases.get(variant.launch.name, ()) if ":" in name]
        if adapters and variant.launch.engine == "sglang":
            lines.append(
                f"{variant.name}: SGLang takes what follows the colon in {adapters[0]} for an adapter"
            )
    return lines


def _runs_as_any_user(variant: PodVariant) -> bool:
    return container_of(variant.launch).image.startswith(_ANY_USER)


def _on_gpu(variants: Sequence[PodVariant]) -> bool:
    return any(container_of(variant.launch).gpus for variant in variants)


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
        "metadata": {"name": service, "labels": {**_APP, _SERVICE: service}, "annotations": notes},
        "spec": {
            "selector": Explained({**_APP, _SERVICE: service}, "whichever variant has a replica"),
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }


def _claims(variants: Sequence[PodVariant], service: str, cluster: Cluster) -> list[dict[str, object]]:
    """One for each variant, so that no size changes when another model comes or goes: a claim cannot shrink,
    and few classes let it grow."""
    name, size = _shared_claim(cluster)
    if name:
        explained = Explained(size, "as it is: a claim cannot shrink")
        return [_claim(name, {_SERVICE: service}, _claim_spec(explained))] if size else []
    return [
        _claim(
            f"{variant.name}-models",
            {_SERVICE: service, _INSTANCE: variant.name},
            _claim_spec(_claim_size(variant)),
        )
        for variant in variants
    ]


def _claim(name: str, labels: Mapping[str, str], spec: Mapping[str, object]) -> dict[str, object]:
    kept = Explained(_KEPT, "Argo CD and Flux keep the weights when this leaves the file")
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": {**_APP, **labels}, "annotations": kept},
        "spec": spec,
    }


def _claim_spec(size: Explained) -> dict[str, object]:
    return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}


def _claim_size(variant: PodVariant) -> Explained:
    weights_bytes = variant.facts.weights_bytes
    compiled_bytes = COMPILED_BYTES if _on_gpu([variant]) else 0
    size_gib = ceil((1.2 * weights_bytes + compiled_bytes) / GIB) if weights_bytes else 200
    why = "the weights and a fifth more" if weights_bytes else "the size of the weights is unknown"
    if weights_bytes and compiled_bytes:
        why += f", and {compiled_bytes // GIB} GiB for compiled kernels"
    return Explained(quantity(size_gib * GIB), why)


def quantity(size_bytes: int) -> str:
    """As the server stores it, or each apply would be a change: in the largest unit that divides it, at least
    MiB (rounded up)."""
    size, unit = ceil(size_bytes / MIB), "Mi"
    for larger in ("Gi", "Ti"):
        if size % 1024 == 0:
            size, unit = size // 1024, larger
        else:
            break
    return f"{size}{unit}"


def _deployment(variant: PodVariant, service: str, cluster: Cluster, replicas: int) -> dict[str, object]:
    selector = {**_APP, _INSTANCE: variant.name}
    labels = {**selector, _SERVICE: service}
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
            "selector": Explained({"matchLabels": selector}, "can never change, so the Service is not in it"),
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "affinity": _apart_from_others(variant, service),
                    **pod_spec(variant, service, cluster),
                },
            },
        },
    }


def _apart_from_others(variant: PodVariant, service: str) -> object:
    """No node will do as long as any node has a pod of another variant, running or terminating."""
    others = {"key": _INSTANCE, "operator": "NotIn", "values": [variant.name]}
    term = {
        "topologyKey": Explained("kubernetes.io/os", "the same on all nodes: the whole cluster"),
        "labelSelector": {"matchLabels": {**_APP, _SERVICE: service}, "matchExpressions": [others]},
    }
    return Explained(
        {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        "waits until the pods of all other variants are gone",
    )


def pod_spec(variant: PodVariant, service: str, cluster: Cluster) -> dict[str, object]:
    container = variant.launch.container
    assert container is not None, "contained() gives one"
    pod: dict[str, object] = {
        "enableServiceLinks": Explained(False, "vLLM would read variables like VLLM_PORT as settings"),
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 60,
    }
    if variant.facts.arch:
        pod["nodeSelector"] = Explained({"kubernetes.io/arch": variant.facts.arch}, "as the plan's machine")
    if container.gpus is not None:
        pod["runtimeClassName"] = cluster.runtime_class
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    if _runs_as_any_user(variant):
        pod["securityContext"] = Explained(
            {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "fsGroupChangePolicy": "OnRootMismatch",
            },
            "the image runs as any user; the claim is made writable for this one",
        )
    pod["containers"] = [_container(variant, container, service)]
    volumes = _volumes(container, _shared_claim(cluster)[0] or f"{variant.name}-models")
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
        **({"capabilities": {"drop": ["ALL"]}} if _runs_as_any_user(variant) else {}),
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
        limits["nvidia.com/gpu"] = Explained(_gpus(container.gpus), "a Spark has one")
    resources: dict[str, object] = {"limits": limits} if limits else {}
    if facts.needed_bytes:
        why = "as planned"
        if container.gpus is not None:
            why += "; there is no limit, since a limit does not count CUDA's memory"
        resources["requests"] = {"memory": Explained(quantity(facts.needed_bytes), why)}
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


def _volumes(container: Container, claim: str) -> list[dict[str, object]]:
    volumes: list[dict[str, object]] = []
    if container.mounts:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": claim}})
    if container.shm_bytes is not None:
        size = quantity(container.shm_bytes)
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
    """Service and LeaderWorkerSet, for a launch over several hosts. The launches are those of rank 0 and of
    any other rank.

    The set makes a headless Service of its own name, in which ranks are found before they are ready, but
    only if no Service has that name: the one for clients must have another. Each rank has a claim of its own,
    since most classes serve one node, and ranks that download into one folder get in each other's way.

    The pods of a set are started and restarted as one. The leader is rank 0 and has the Service; every worker
    has the rank that the set gives it. The pods use the host's network and its RDMA devices, which
    Kubernetes' `baseline` profile refuses: the namespace has to allow `privileged` ones. A rank that is lost
    ends the whole group: a rank that starts alone waits for ever.
    Seen in https://github.com/kubernetes-sigs/lws, v0.8.0 (the first with claims) to v0.10.0, 2026-11-19.
    """
    name = dns_name(leader.name, _MAX_SET_NAME - len(_RANKS))
    set_name, service = f"{name}{_RANKS}", _service_name(cluster, dns_name(leader.name))
    if service == set_name:
        raise UsageError(
            f"LeaderWorkerSet itself makes a Service `{set_name}`, by which the ranks find each other",
            next=f"--service {name}",
        )
    head, other = (
        PodVariant(name, served_as(_in_pod(launch, facts), service, cluster), facts)
        for launch in (leader, worker)
    )
    _active([head], cluster)
    if _shared_claim(cluster)[1]:
        raise UsageError(
            "the claims of the ranks are made by LeaderWorkerSet", next="--claim NAME, a ReadWriteMany one"
        )
    templates = (_template(head, service, cluster, "leader"), _template(other, service, cluster, "worker"))
    parts = [
        _leaders_only(service_manifest(service, cluster)),
        _set(set_name, service, templates, size, None if cluster.claim else _claim_spec(_claim_size(head))),
    ]
    lines = _set_head(service, head, cluster)
    texts = [document(part, lines if n == 0 else ()) for n, part in enumerate(parts)]
    return "---\n".join(texts)


def _in_pod(launch: Launch, facts: LaunchFacts) -> Launch:
    launch = containerized(launch)
    container = container_of(launch)
    options = tuple(option for option in container.options if option[0] not in _OF_THE_HOST)
    flags = {name: value for name, value in launch.flags.items() if (name, value) != ("host", LOOPBACK)}
    container = replace(container, network=None, options=options)
    return for_pod(replace(launch, sparks=1, flags=flags, container=container), facts)


def _set_head(service: str, leader: PodVariant, cluster: Cluster) -> list[str]:
    kept = f"the claim {cluster.claim}" if cluster.claim else "the claims of the ranks and their weights"
    return [
        *heading(leader.launch, leader.facts, with_reasons=has_script(leader.launch)),
        "Needs LeaderWorkerSet 0.8 or later (https://lws.sigs.k8s.io/docs/installation/), and a namespace"
        " that allows it: kubectl label namespace NAME pod-security.kubernetes.io/enforce=privileged",
        *_secrets_first(service, passed_through(leader.launch)),
        *_refusals([leader], "privileged"),
        f"kubectl delete -f leaves {kept}",
    ]


def _leaders_only(service: dict[str, object]) -> dict[str, object]:
    spec = service["spec"]
    assert isinstance(spec, dict)
    selector = Explained({**spec["selector"].value, _ROLE: "leader"}, "workers have no port")
    return {**service, "spec": {**spec, "selector": selector}}


def _set(
    name: str,
    service: str,
    templates: tuple[object, object],
    size: int,
    claim_spec: Mapping[str, object] | None,
) -> dict[str, object]:
    group: dict[str, object] = {
        "size": size,
        "restartPolicy": Explained("RecreateGroupOnPodRestart", "all or none"),
        "leaderTemplate": templates[0],
        "workerTemplate": templates[1],
    }
    if claim_spec:
        status = Explained({}, "as it is stored; without it the next apply would change the set")
        claims = [{"metadata": {"name": "models"}, "spec": claim_spec, "status": status}]
        group["volumeClaimTemplates"] = Explained(claims, "for each rank, which keeps it")
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "labels": {**_APP, _SERVICE: service}},
        "spec": {
            "replicas": 1,
            "startupPolicy": Explained("LeaderCreated", "ranks wait for each other: all at once"),
            "leaderWorkerTemplate": group,
        },
    }


def _template(variant: PodVariant, service: str, cluster: Cluster, role: str) -> dict[str, object]:
    pod = pod_spec(variant, service, cluster)
    containers, volumes = pod.pop("containers"), pod.pop("volumes", [])
    assert isinstance(containers, list) and isinstance(volumes, list)
    if not cluster.claim:  # the set gives each rank its own, by the same name
        volumes = [volume for volume in volumes if volume["name"] != "models"]
    pod.pop("securityContext", None)  # RDMA's devices are root's
    return {
        "metadata": {"labels": {**_APP, _SERVICE: service, _ROLE: role}},
        "spec": {
            **pod,
            "hostNetwork": Explained(
                True, "ranks reach each other at ports of their own choice, by the rails"
            ),
            "dnsPolicy": "ClusterFirstWithHostNet",
            "containers": [_set_container(containers[0], role, is_shared=bool(cluster.claim))],
            "volumes": [*volumes, {"name": "infiniband", "hostPath": {"path": "/dev/infiniband"}}],
        },
    }


def _set_container(container: dict[str, object], role: str, *, is_shared: bool) -> dict[str, object]:
    env, mounts, ports = container["env"], container.get("volumeMounts", []), container["ports"]
    assert isinstance(env, list) and isinstance(mounts, list) and isinstance(ports, list)
    on_host = {**ports[0], "hostPort": ports[0]["containerPort"]}
    changed = {
        **container,
        "env": [_own_address(variable) for variable in env],
        "ports": [Explained(on_host, "the host's own, so no second set runs on this node")],
        "securityContext": {"privileged": Explained(True, "RDMA: its devices, and memory that stays locked")},
        "volumeMounts": [
            *(_by_rank(mount) if is_shared else mount for mount in mounts),
            {"name": "infiniband", "mountPath": "/dev/infiniband"},
        ],
    }
    if role == "worker":  # it answers on no port
        changed = {key: value for key, value in changed.items() if key != "ports" and "Probe" not in key}
    return changed


def _by_rank(mount: Mapping[str, object]) -> dict[str, object]:
    """In a claim that the ranks share, each compiles into a folder of its own."""
    own = {key: value for key, value in mount.items() if key != "subPath"}
    if "subPath" not in mount or "readOnly" in mount:
        return dict(mount)
    return {**own, "subPathExpr": f"{mount['subPath']}-rank-{WORKER_INDEX}"}


def _own_address(variable: dict[str, object]) -> dict[str, object]:
    if variable["name"] != "VLLM_HOST_IP":
        return variable
    return {"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
