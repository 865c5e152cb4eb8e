"""What `--json` prints, command by command: a change of a key or of a type shows in `tests/golden/json`.

After a change on purpose, renew the files and read their difference:

    RENEW_GOLDEN=1 .venv-dev/bin/python -m pytest tests/cli/test_golden_json.py

Paths, times, ports, digests and keys are replaced. Where a host, a clock or a measurement decides the values,
the type of each takes its place. A list keeps its first two items and those with other keys or types.
"""

from __future__ import annotations

import json
import math
import os
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.home import Home
from firesteel.library.documents.all import schemas
from tests.conftest import Ran, find_free_port, run_firesteel
from tests.workshop.audit_checkpoints import GOOD
from tests.workshop.damaged_checkpoints import DAMAGED
from tests.workshop.images.made_images import VLLM_CONFIG, layer, vllm_files, write_layout
from tests.workshop.made_checkpoints import LLAMA, llama, write_checkpoint

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "json"
LINE = "docker run --gpus all vllm/vllm-openai:v0.24.0 vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4"
LOG = "ValueError: No available memory for the cache blocks.\n"
SIM = "--sim idle"

DATA = {
    "plan": "plan gpt-oss-120b --host gb10",
    "plan-compare": "plan --compare gpt-oss-120b gpt-oss-20b --host gb10",
    "models": "models --host gb10",
    "choose": "choose --who agent --prompt 30k --matters speed --host gb10",
    "check": f"check --json {LINE}",
    "check-explain": "check --explain vllm-entrypoint-twice",
    "facts": "check --facts",
    "facts-table": "check --facts hardware",
    "render": "render gpt-oss-120b --host gb10",
    "render-kubernetes": "render gpt-oss-120b --as kubernetes --host gb10",
    "recipe-list": "recipe list",
    "recipe-new": "recipe new mine --from gpt-oss-20b",
    "recipe-test": "recipe test gpt-oss-20b --host gb10",
    "recipe-share": "recipe share gpt-oss-20b --to {folder}/shared",
    "learn-list": "engine learn --list vllm",
    "bench-shapes": "bench --shape list",
    "image-recipes": "image build --list",
    "scenarios": "--sim list",
    "version": "--version",
    "client": "client opencode gpt-oss-20b --url http://127.0.0.1:9/v1",
    "diagnose": "logs - --why --engine vllm",
    "engine-list": "engine list",
    "history": "bench list",
    "cluster-list": "cluster list",
    "key-list": "serve key list",
    "pull-prune": "pull --prune --yes",
    "down": "down --all",
    "error": "plan nonsense",
    "error-option": "plan gpt-oss-20b --context many",
    "error-no-service": "verify nothing",
    "error-not-pulled": "upgrade nothing",
}
"""The shipped data and the words decide every value."""
MADE = {
    "audit": "audit {sound}",
    "audit-damaged": "audit {damaged}",
    "quantize-plan": "quantize {plain} --to nvfp4 --host gb10 --dry-run",
    "quantize": "quantize {plain} --to fp8-dynamic --out {folder}/fp8 --host gb10",
    "repair": "audit {damaged} --fix --scales --in-place",
    "repair-undo": "audit {damaged} --undo",
    "image-inspect": "image inspect {image}",
    "image-compare": "image inspect {image} --compare {other_image}",
}
"""Of files that the test makes, in this order."""
HOST = {
    "overview": SIM,
    "ps": f"{SIM} ps",
    "usage": "serve usage",
    "key-add": "serve key add editor",
    "key-revoke": "serve key revoke editor",
    "doctor": f"{SIM} doctor",
    "doctor-bundle": f"{SIM} doctor --bundle {{folder}}/bundle.json",
    "doctor-watch": f"{SIM} doctor --watch --count 1",
    "doctor-fix": f"{SIM} doctor --fix --yes --root {{folder}}",
    "doctor-undo": f"{SIM} doctor --undo --yes --root {{folder}}",
    "up-dry-run": f"{SIM} up gpt-oss-20b --dry-run",
    "tune-dry-run": f"{SIM} tune gpt-oss-20b --dry-run",
}
"""Of this host, a simulated one, or a clock: their types."""
SERVICE = {
    "pull": "pull smollm2",
    "up": "up smollm2 --port {port}",
    "ps-service": "ps",
    "verify": "verify smollm2",
    "logs": "logs smollm2",
    "client-service": "client openai",
    "bench": "bench smollm2 --users 1 --budget 1m --precision 90% --depth 40 --answer 8",
    "history-bench": "bench list",
    "compare-plan": "bench compare --plan last",
    "history-delete": "bench delete {run}",
    "down-service": "down smollm2",
}
"""Of a service that runs, in this order: their types."""
ELSEWHERE = {
    "choose-guides", "cluster-add", "cluster-check", "cluster-remove", "cluster-stage", "compare",
    "compare-published", "compare-quality", "doctor-cluster", "doctor-measure", "history-import",
    "engine-install", "engine-remove", "history-chart", "image-build", "image-prune", "image-watch", "learn",
    "learn-image", "learn-recipes",
    "quantize-calibrate", "quantize-gguf", "recipe-adopt", "serve", "top", "tune", "up-file", "upgrade",
}  # fmt: skip
"""Documents that need other hosts, docker, minutes or a second release: the tests of their commands."""


TYPES = {str: "text", bool: "yes or no", int: "number", float: "number", type(None): "null"}
OF_THIS_HOST = {"beside", "gpu", "gpus", "host", "notes"}
"""In a document of types: keys whose parts depend on the machine of the tests, or on how busy it is."""
MEASURED = {
    "acceptance", "accepted_per_step", "bandwidth_share", "cached_share", "clock_mhz", "decode_tokens_per_s",
    "figures", "first_token_ms", "goodput_per_s", "joules_per_token", "kv_usage", "kv_used", "power_w",
    "preemptions", "prefill_tokens_per_s", "pressure_percent", "temperature_c", "total_tokens_per_s",
    "ttft_mean_ms", "use_percent",
}  # fmt: skip
"""In a document of types: keys that are `null` if the machine was too busy, or lacks the sensor."""


def run(home: Path, words: str, places: dict[str, str]) -> Ran:
    arguments = words.format(**places).split()
    return run_firesteel(home, *arguments, *({"--json"} - set(arguments)), stdin=LOG)


def normal(value: Any, places: dict[str, str], types_only: bool) -> Any:
    if isinstance(value, dict):
        return {key: normal_of_key(key, each, places, types_only) for key, each in value.items()}
    if isinstance(value, list):
        kept: list[Any] = []
        for each in value:
            item = normal(each, places, types_only)
            if (len(kept) < 2 and not types_only) or shape(item) not in map(shape, kept):
                kept.append(item)
        return kept
    if types_only:
        return shape(value)
    if isinstance(value, str):
        for name, place in places.items():
            value = value.replace(place, f"<{name}>")
        value = value.replace(str(ROOT), "<repository>")
        value = value.replace(f"{Path.home()}/", "<user>/")
        value = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[\d:.]*(Z|\+[\d:]+)?", "<time>", value)
        value = re.sub(r"\b[0-9a-f]{40,64}\b", "<digest>", value)
    return value


def merged(one: Any, other: Any) -> Any:
    """The type of a row, some of whose fields only the other one has."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: merged(one.get(key, "null"), other.get(key, "null")) for key in one | other}
    return other if one == "null" else one


def normal_of_key(key: str, value: Any, places: dict[str, str], types_only: bool) -> Any:
    if types_only and key == "figures" and isinstance(value, list):
        return [reduce(merged, (normal(row, places, types_only) for row in value))] if value else []
    if key in ("seconds", "kernel_bytes_per_s", "on") or (types_only and key in OF_THIS_HOST):
        return "of this machine"
    return normal(value, places, types_only and key != "document")


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    return [shape(each) for each in value] if isinstance(value, list) else TYPES[type(value)]


def compare(name: str, ran: Ran, places: dict[str, str], types_only: bool = False) -> None:
    assert ran.out, (name, ran.code, ran.err)
    found = {"exit": ran.code, "json": normal(json.loads(ran.out), places, types_only)}
    text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=types_only) + "\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("RENEW_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    same = text == path.read_text() or nearly_equal(json.loads(text), json.loads(path.read_text()))
    assert same or text == path.read_text(), f"{name}: see the first lines of this file"


def nearly_equal(one: Any, other: Any, key: str = "") -> bool:
    """From Python 3.12 on `sum` rounds floats once, so their last digits differ. What a machine was too busy
    to measure is "null" in a document of types, under the keys of `MEASURED` only."""
    if "null" in (one, other) and key in MEASURED:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(nearly_equal(one[key], other[key], key) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(nearly_equal, one, other))
    if type(one) in (int, float) and type(other) in (int, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)


def test_null_stands_for_measured_values_only() -> None:
    """Every other key that is missing, at any depth, is a change of the document."""
    found: Any = {"services": [{"name": "text", "figures": {"kv_used": "number"}}]}
    assert nearly_equal(found, {"services": [{"name": "text", "figures": {"kv_used": "null"}}]})
    assert nearly_equal(found, {"services": [{"name": "text", "figures": "null"}]})
    assert not nearly_equal(found, {"services": [{"name": "null", "figures": {"kv_used": "number"}}]})
    assert not nearly_equal(found, {"services": "null"})


@pytest.mark.parametrize("name", DATA)
def test_a_document_of_shipped_data(name: str, tmp_path: Path) -> None:
    places = {"folder": str(tmp_path)}
    compare(name, run(tmp_path / "home", DATA[name], places), places)


def test_documents_of_made_files(tmp_path: Path) -> None:
    image = write_layout(tmp_path / "image", [layer(vllm_files())], **VLLM_CONFIG)
    other = write_layout(tmp_path / "other", [layer(vllm_files(torch="2.10.0"))], **VLLM_CONFIG)
    places = {
        "sound": str(GOOD["nvfp4-modelopt"]().write(tmp_path / "sound")),
        "damaged": str(DAMAGED["gate-up-scales-differ"].make().write(tmp_path / "damaged")),
        "plain": str(write_checkpoint(tmp_path / "plain", LLAMA, llama())),
        "image": str(image), "other_image": str(other), "folder": str(tmp_path),
    }  # fmt: skip
    for name, words in MADE.items():
        compare(name, run(tmp_path / "home", words, places), places, types_only=name == "quantize")


def test_documents_of_a_host(tmp_path: Path) -> None:
    places = {"folder": str(tmp_path)}
    for name, words in HOST.items():
        compare(name, run(tmp_path / "home", words, places), places, types_only=True)


def test_documents_of_a_service(quick_home: Home) -> None:
    places = {"port": str(find_free_port())}
    for name, words in SERVICE.items():
        ran = run(quick_home.root, words, places)
        compare(name, ran, places, types_only=True)
        if name == "bench":
            places["run"] = ran.json["id"]


def test_every_document_is_here_or_needs_more_than_this() -> None:
    stored = [json.loads(path.read_text())["json"]["document"] for path in GOLDEN.glob("*.json")]
    elsewhere = {f"firesteel.{name}/1" for name in ELSEWHERE}
    assert elsewhere.isdisjoint(stored)
    missing = set(schemas()) - {*stored, *elsewhere}
    assert not missing, (
        f"{missing}: give a command that prints it to DATA, MADE, HOST or SERVICE, and renew the files"
    )
    names = {*DATA, *MADE, *HOST, *SERVICE}
    assert {path.stem for path in GOLDEN.glob("*.json")} == names
