"""The dashboard and the alert rules: valid for Prometheus, and about metrics that a gateway really has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from firesteel.gateway.admin.meter import GatewayGauges, Meter, ModelGauges
from firesteel.gateway.admin.prometheus import render
from firesteel.gateway.admin.status import gauge, state_families
from firesteel.gateway.grafana import write_grafana_files
from firesteel.gateway.interfaces import RequestOutcome, Usage
from firesteel.gateway.state import GatewayState, GpuStatus, MemoryStatus, ModelHealth, ModelStatus
from firesteel.units import GIB
from tests.conftest import run_firesteel

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_grafana_files(tmp_path)
    return tmp_path


def promtool(folder: Path, *arguments: str) -> str:
    ran = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def dashboard(folder: Path) -> Any:
    return json.loads((folder / "firesteel-dashboard.json").read_text())


def expressions(folder: Path) -> Iterator[str]:
    """Of the dashboard, with Grafana's own variables replaced, and of the rules."""
    for panel in dashboard(folder)["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5m").replace("$model", ".*")
    yield from (rule["expr"] for rule in rules(folder))


def test_the_command_writes_them(tmp_path: Path) -> None:
    ran = run_firesteel(tmp_path, "serve", "--grafana", str(tmp_path / "out"), "--listen", "10.0.0.5:9999")
    assert ran.code == 0 and len(ran.out.splitlines()) == 3
    assert "10.0.0.5:9999" in (tmp_path / "out" / "prometheus.yaml").read_text()


@needs_promtool
def test_prometheus_takes_the_rules_and_the_configuration(folder: Path) -> None:
    assert "10 rules found" in promtool(folder, "check", "config", "prometheus.yaml")


@needs_promtool
def test_prometheus_takes_every_expression_of_the_dashboard(folder: Path) -> None:
    records = [{"record": f"x:{number}", "expr": expr} for number, expr in enumerate(expressions(folder))]
    text = yaml.safe_dump({"groups": [{"name": "all", "rules": records}]})
    (folder / "expressions.yaml").write_text(text)
    assert f"{len(records)} rules found" in promtool(folder, "check", "rules", "expressions.yaml")


TROUBLES = {
    "FiresteelDown": {'up{job="firesteel"}': "1x5 0x30 1x60"},
    "FiresteelModelUnhealthy": {'firesteel_model_healthy{model="coder"}': "1x5 0x30 1x60"},
    "FiresteelLoadFailed": {'firesteel_load_failures_total{model="coder",reason="crashed"}': "_x20 1x75"},
    "FiresteelGuardStoppedEngine": {'firesteel_guard_stops_total{model="coder"}': "0x20 1x75"},
    "FiresteelRequestsBreak": {
        'firesteel_requests_total{model="coder",how="whole"}': "0+50x100",
        'firesteel_requests_total{model="coder",how="broke"}': "0x5 0+50x30 1500x60",
    },
    "FiresteelQueueLong": {"firesteel_queue_length": "0x5 50x30 0x60"},
    "FiresteelKvCacheFull": {'firesteel_model_kv_used_ratio{model="coder"}': "0.5x5 0.99x30 0.5x60"},
    "FiresteelMemoryLow": {
        "firesteel_memory_available_bytes": f"{60 * GIB}x5 {GIB}x30 {60 * GIB}x60",
        "firesteel_memory_floor_bytes": f"{8 * GIB}x100",
    },
    "FiresteelGpuThrottled": {"firesteel_gpu_throttled": "0x5 1x30 0x60"},
    "FiresteelDiskFills": {
        'firesteel_disk_free_bytes{folder="/srv"}': f"{90 * GIB}x5 {GIB}x60 {900 * GIB}x60",
    },
}
"""What goes wrong after some minutes, and is over half an hour later; a sample a minute."""
FIRES_AT, OVER_AT = {"FiresteelDiskFills": "50m"}, {"FiresteelDiskFills": "110m"}


@needs_promtool
def test_each_rule_fires_and_recovers(folder: Path) -> None:
    """By Prometheus' own evaluation: silent before the trouble, firing in it, silent after it."""
    assert set(TROUBLES) == {rule["alert"] for rule in rules(folder)}
    tests = []
    for rule in rules(folder):
        name, series = rule["alert"], TROUBLES[rule["alert"]]
        labels = {
            label: value
            for label, value in re.findall(r'(\w+)="([\w/]+)"', next(iter(series)))
            if label != "how"
        }
        fires = {
            "exp_labels": {**rule["labels"], **labels},
            "exp_annotations": {"summary": summary(rule, labels)},
        }
        times: tuple[tuple[str, list[object]], ...] = (
            ("3m", []),
            (FIRES_AT.get(name, "25m"), [fires]),
            (OVER_AT.get(name, "90m"), []),
        )
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": one, "values": values} for one, values in series.items()],
                "alert_rule_test": [
                    {"eval_time": at, "alertname": name, "exp_alerts": expected} for at, expected in times
                ],
            }
        )
    document = {"rule_files": ["firesteel-alerts.yaml"], "tests": tests}
    (folder / "test.yaml").write_text(yaml.safe_dump(document))
    promtool(folder, "test", "rules", "test.yaml")


def rules(folder: Path) -> Any:
    return yaml.safe_load((folder / "firesteel-alerts.yaml").read_text())["groups"][0]["rules"]


VALUES = {"FiresteelQueueLong": "50", "FiresteelRequestsBreak": "50%", "FiresteelMemoryLow": "1Gi"}


def summary(rule: Any, labels: dict[str, str]) -> str:
    text = re.sub(r"{{ \$value[^}]*}}", VALUES.get(rule["alert"], ""), rule["annotations"]["summary"])
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda match: labels.get(match[1], ""), text)


def test_panels_lie_side_by_side(folder: Path) -> None:
    document = dashboard(folder)
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) and document["uid"] == "firesteel"
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and panel["title"] and panel["type"] in ("stat", "timeseries")
        assert panel["datasource"]["uid"] == "${datasource}", "whichever Prometheus its reader has"
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


async def test_they_ask_only_for_metrics_that_the_gateway_has(folder: Path) -> None:
    meter = Meter(["coder"])
    counters = meter.counters("coder", "laptop")
    counters.first(0.1)
    counters.gap(0.1)
    counters.finish("chat", RequestOutcome("whole", 200, Usage(1, 1, 1)))
    meter.loaded("coder", 1.0)
    meter.load_failed("coder", "crashed")
    meter.unloaded("coder")
    model = ModelStatus(
        "coder", "ready", health=ModelHealth(True, ""), tokens_per_s=1.0, kv_used=0.5, acceptance=0.5
    )
    memory = MemoryStatus(total_bytes=1, floor_bytes=1)
    state = GatewayState(models=(model,), memory=memory, gpu=GpuStatus(1.0, 1.0, 1.0))
    families = [
        *meter.families(GatewayGauges({"coder": ModelGauges("ready")}, 1, 1)),
        *state_families(state),
        gauge("disk_free_bytes", "", {"/": 1}, "folder"),
        gauge("guard_stops_total", "", {"coder": 1}, "model"),
    ]
    page = (await render(families)).decode()
    known = set(re.findall(r"^(firesteel_\w+)", page, re.MULTILINE))
    asked = {name for expr in expressions(folder) for name in re.findall(r"firesteel_\w+", expr)}
    assert asked <= known, asked - known
