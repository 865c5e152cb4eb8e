"""A launch over several hosts -> Kubernetes: a LeaderWorkerSet, whose pods are started and restarted as one.

The leader is rank 0 and has the Service; every worker has the rank that the set gives it. The pods use
the host's network and its RDMA devices, which Kubernetes' `baseline` profile refuses: the namespace has to
allow `privileged` ones. A rank that is lost ends the whole group: a rank that starts alone waits for ever.
Seen in https://github.com/kubernetes-sigs/lws, api/leaderworkerset/v1 and docs/examples/sglang, 2026-08-21.
"""

from __future__ import annotations

from firesteel.launch import LOOPBACK, Launch
from firesteel.render.docker import container_of, containerized, has_script
from firesteel.render.kubernetes import (
    CLUSTER,
    Cluster,
    PodVariant,
    claim_manifest,
    dns_name,
    for_pod,
    pod_spec,
    service_manifest,
)
from firesteel.render.launch_facts import LaunchFacts, heading, passed_through
from firesteel.render.yaml_text import Explained, document
from firesteel.values import replace

LEADER_ADDRESS, WORKER_INDEX = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
"""LeaderWorkerSet gives these variables to every container, and Kubernetes puts them into arguments."""
_NAME, _ROLE = "app.kubernetes.io/name", "app.kubernetes.io/component"
_OF_THE_HOST = ("device", "ulimit", "cap-add")
"""Options of `docker run` that a privileged pod needs no equivalent of."""


def leader_worker_set(
    leader: Launch, worker: Launch, facts: LaunchFacts, size: int, cluster: Cluster = CLUSTER
) -> str:
    """Service, claim and LeaderWorkerSet. The launches are those of rank 0 and of any other rank."""
    name = dns_name(leader.name)
    service = cluster.service or name
    head, other = (PodVariant(name, _in_pod(launch, facts), facts) for launch in (leader, worker))
    parts = [
        _leaders_only(service_manifest(service, cluster), service),
        claim_manifest(service, [head], "ReadWriteMany"),
        _set(name, service, (_template(head, service, cluster, "leader"),
                             _template(other, service, cluster, "worker")), size),
    ]  # fmt: skip
    texts = [document(part, _head(service, head) if n == 0 else ()) for n, part in enumerate(parts)]
    return "---\n".join(texts)


def _in_pod(launch: Launch, facts: LaunchFacts) -> Launch:
    launch = containerized(launch)
    container = container_of(launch)
    options = tuple(option for option in container.options if option[0] not in _OF_THE_HOST)
    flags = {name: value for name, value in launch.flags.items() if (name, value) != ("host", LOOPBACK)}
    container = replace(container, network=None, options=options)
    return for_pod(replace(launch, sparks=1, flags=flags, container=container), facts)


def _head(service: str, leader: PodVariant) -> list[str]:
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
            "containers": [_container(containers[0], role)],
            "volumes": [*volumes, {"name": "infiniband", "hostPath": {"path": "/dev/infiniband"}}],
        },
    }


def _container(container: dict[str, object], role: str) -> dict[str, object]:
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
