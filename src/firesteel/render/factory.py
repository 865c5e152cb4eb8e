"""The image factory as a workflow, as a systemd timer, and as the Kubernetes objects of a build runner. Pure.

Each runs `firesteel image watch FILE`, which does what is due and ends. The Kubernetes objects are those of a
Gitea Actions runner on a Spark: the runner with a docker sidecar, and its two secrets from a secret store by
external-secrets. It asks Kubernetes for nothing, so it has no permissions there and no token.
Seen in the docs of GitHub Actions, Gitea Actions, act_runner, systemd.timer(5), 2026-11-16, and the CRDs of
external-secrets (0.10 serves v1alpha1 and v1beta1; v1 from 0.16 on), 2026-11-18.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import join

from firesteel.render.systemd import unit_line
from firesteel.render.yaml_text import document, explain
from firesteel.values import Value

UNIT = "firesteel-images"
RUNNER = "act-runner"
REGISTRY_SECRET, TOKEN_SECRET = "registry-credentials", "act-runner-token"  # names, no secrets
_RUNNER_IMAGE, _DOCKER_IMAGE = "gitea/act_runner:0.2.13", "docker:28-dind"
_HOUR_S, _DAY_S = 3600, 86400
_MINUTES = 720
"""An image with CUDA kernels takes hours on a Spark; a build that hangs is ended."""


class FactoryJob(Value):
    """What to run, and how often."""

    file: str
    """The policy: a path in the repository of a workflow, an absolute one for a timer."""
    images: Sequence[str]
    every_s: int
    """The shortest time between two looks."""


# --- workflow ---


def workflow(job: FactoryJob) -> str:
    """For GitHub and Gitea alike: `.github/workflows/images.yaml`, `.gitea/workflows/images.yaml`."""
    command = join(("firesteel", "image", "watch", job.file))
    # Not on the hour, when most workflows start.
    schedule = "17 3 * * *" if job.every_s >= _DAY_S else "17 * * * *"
    return document(
        {
            "name": "images",
            "on": {
                "schedule": [{"cron": schedule}],
                "workflow_dispatch": {},
            },
            "permissions": explain({"contents": "read"}, "images stay on the runner: nothing is pushed"),
            "concurrency": explain(
                {"group": "images", "cancel-in-progress": False},
                "a build that is cut off is not lost, but its hours are",
            ),
            "jobs": {
                "images": {
                    "runs-on": explain(
                        ["self-hosted", "linux", "ARM64"],
                        "a Spark with docker and firesteel",
                    ),
                    "timeout-minutes": _MINUTES,
                    "steps": [
                        {"name": "Fetch the policy", "uses": "actions/checkout@v4"},
                        explain(
                            {"name": "Build, compare, promote or refuse", "run": command},
                            "exits 1 when a release was rejected, so that the run fails visibly",
                        ),
                        {
                            "name": "Report",
                            "if": "always()",
                            "run": f'{command} --status >> "$GITHUB_STEP_SUMMARY"',
                        },
                    ],
                }
            },
        },
        [
            f"The image factory for {', '.join(job.images)}, on a self-hosted runner.",
            "GitHub: .github/workflows/images.yaml; Gitea: .gitea/workflows/images.yaml",
        ],
    )


# --- timer ---


def timer_units(job: FactoryJob, command: Sequence[str], home: str) -> dict[str, str]:
    """The files of `~/.config/systemd/user`, by name. `command`: how firesteel is started here."""
    argv = (*command, "image", "watch", job.file)
    service = [
        f"# systemctl --user enable --now {UNIT}.timer; loginctl enable-linger, to run without a login",
        "[Unit]",
        f"Description=firesteel: build and compare images ({', '.join(job.images)})",
        "",
        "[Service]",
        "Type=oneshot",
        unit_line("Environment", [(f"FIRESTEEL_HOME={home}",)]),
        unit_line("ExecStart", [argv]),
        "# Engines and people go first.",
        "Nice=10",
        f"TimeoutStartSec={_MINUTES}min",
    ]
    timer = [
        "[Unit]",
        "Description=firesteel: look for new releases of images",
        "",
        "[Timer]",
        f"OnCalendar={'daily' if job.every_s >= _DAY_S else 'hourly'}",
        "RandomizedDelaySec=15min",
        "# A machine that was off looks when it is on again.",
        "Persistent=true",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]
    return {f"{UNIT}.service": "\n".join(service) + "\n", f"{UNIT}.timer": "\n".join(timer) + "\n"}


# --- Kubernetes ---


def runner_manifests(
    job: FactoryJob, instance: str = "https://gitea.example.com", store: str = "secrets"
) -> str:
    """`instance`: the URL of Gitea; `store`: the ClusterSecretStore that has the secrets."""
    head = [
        f"A runner for the workflow that builds {', '.join(job.images)}: firesteel render ... --as workflow",
        "Needs external-secrets 0.16 or later (https://external-secrets.io) for the last two objects, and a"
        " namespace that allows privileged pods, for docker: kubectl label namespace NAME"
        " pod-security.kubernetes.io/enforce=privileged",
        "If no pod appears: kubectl get events --field-selector reason=FailedCreate",
        f"Put your own in place of {instance} and of the ClusterSecretStore `{store}`.",
    ]
    objects = [
        _claim(),
        _runner(instance),
        _external_secret(TOKEN_SECRET, store, None, {"token": "gitea-runner-token"}),
        _external_secret(
            REGISTRY_SECRET,
            store,
            "kubernetes.io/dockerconfigjson",
            {".dockerconfigjson": "registry-config"},
        ),
    ]
    return "---\n".join(document(each, head if index == 0 else ()) for index, each in enumerate(objects))


def _object(version: str, kind: str, name: str, **rest: object) -> dict[str, object]:
    labels = {"app.kubernetes.io/name": RUNNER, "app.kubernetes.io/part-of": "firesteel"}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}, **rest}


def _claim() -> dict[str, object]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "200Gi"}}}
    return _object("v1", "PersistentVolumeClaim", RUNNER, spec=spec)


def _runner(instance: str) -> dict[str, object]:
    socket = {"name": "docker-socket", "mountPath": "/var/run"}
    data = {"name": "data", "mountPath": "/data"}
    token = {"secretKeyRef": {"name": TOKEN_SECRET, "key": "token"}}
    runner = {
        "name": "runner",
        "image": _RUNNER_IMAGE,
        "env": [
            {"name": "GITEA_INSTANCE_URL", "value": instance},
            {"name": "GITEA_RUNNER_REGISTRATION_TOKEN", "valueFrom": token},
            {"name": "GITEA_RUNNER_LABELS", "value": "self-hosted:host,linux:host,ARM64:host"},
            explain(
                {"name": "FIRESTEEL_HOME", "value": "/data/firesteel"},
                "it outlives the pod",
            ),
            {"name": "DOCKER_CONFIG", "value": "/registry"},
        ],
        "volumeMounts": [socket, data, {"name": "registry", "mountPath": "/registry", "readOnly": True}],
    }
    docker = {
        "name": "docker",
        "image": _DOCKER_IMAGE,
        "args": ["--host=unix:///var/run/docker.sock"],
        "securityContext": explain({"privileged": True}, "dockerd needs it; the runner itself does without"),
        "volumeMounts": [socket, {"name": "data", "mountPath": "/var/lib/docker", "subPath": "docker"}],
    }
    registry = {
        "secretName": REGISTRY_SECRET,
        "items": [{"key": ".dockerconfigjson", "path": "config.json"}],
    }
    pod = {
        "automountServiceAccountToken": explain(False, "it asks Kubernetes for nothing: docker builds"),
        "nodeSelector": explain({"kubernetes.io/arch": "arm64"}, "a Spark"),
        "containers": [runner, docker],
        "volumes": [
            {"name": "docker-socket", "emptyDir": {}},
            {"name": "data", "persistentVolumeClaim": {"claimName": RUNNER}},
            {"name": "registry", "secret": registry},
        ],
    }
    labels = {"app.kubernetes.io/name": RUNNER}
    spec = {
        "replicas": 1,
        "strategy": explain({"type": "Recreate"}, "two runners would share one store of images"),
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return _object("apps/v1", "Deployment", RUNNER, spec=spec)


def _external_secret(name: str, store: str, kind: str | None, keys: dict[str, str]) -> dict[str, object]:
    target: dict[str, object] = {"name": name, "creationPolicy": "Owner"}
    if kind:
        target["template"] = {"type": kind}
    spec = {
        "refreshInterval": "1h",
        "secretStoreRef": {"kind": "ClusterSecretStore", "name": store},
        "target": target,
        "data": [{"secretKey": key, "remoteRef": {"key": remote}} for key, remote in keys.items()],
    }
    return _object("external-secrets.io/v1", "ExternalSecret", name, spec=spec)
