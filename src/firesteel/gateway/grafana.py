"""Files for those who have a Grafana: a dashboard, alert rules for Prometheus, and how to ask the gateway."""

from __future__ import annotations

from pathlib import Path

from firesteel.edge.home import writable_folder
from firesteel.shipped_data import read_text

_ADDRESS = "127.0.0.1:8080"
FILES = {
    "firesteel-dashboard.json": "grafana/dashboard.json",
    "firesteel-alerts.yaml": "grafana/alerts.yaml",
    "prometheus.yaml": "grafana/prometheus.yaml",
}
"""By the name that they get: where they are in the package's data."""


def write_grafana_files(folder: Path, listen: str | None = None) -> list[Path]:
    """Replaces files of these names. `listen`: where Prometheus finds the gateway."""
    written = []
    with writable_folder(folder):
        for name, source in FILES.items():
            path = folder / name
            path.write_text(read_text(source).replace(_ADDRESS, listen or _ADDRESS), "utf-8")
            written.append(path)
    return written
