"""What real agents were recorded to send (`scripts/record-agents`), and what is said about them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.render.clients import load_client

ROOT = Path(__file__).resolve().parents[2]
RECORDED: dict[str, dict[str, Any]] = json.loads((ROOT / "tests" / "gateway" / "agents.json").read_text())


@pytest.mark.parametrize("name", RECORDED)
def test_the_data_are_those_of_the_recording(name: str) -> None:
    found, known = RECORDED[name], load_client(name)
    assert known.prompt is not None
    assert found["version"] in known.prompt.versions
    recorded = found["system_characters"] + found["tool_characters"]
    assert abs(known.prompt.characters - recorded) <= max(1000, recorded // 10)
    assert known.prompt.tools == len(found["tools"])
    assert set(found["names"]) <= set(known.asks)


@pytest.mark.parametrize("name", RECORDED)
def test_the_loop_was_completed(name: str) -> None:
    found = RECORDED[name]
    assert found["exits"] == [0, 0]
    assert found["results"] == (5 if found["tools"] else 0)


def test_a_fixture_that_has_a_part_of_a_recording_is_refused(tmp_path: Path) -> None:
    path = str(ROOT / "scripts" / "record-agents")
    loader = importlib.machinery.SourceFileLoader("record_agents", path)
    spec = importlib.util.spec_from_loader("record_agents", loader)
    assert spec is not None
    script = importlib.util.module_from_spec(spec)
    loader.exec_module(script)
    (tmp_path / "one.0").write_text('{"content": "' + "abcdefghij" * 5 + '"}\n')
    script.check_is_not_copied(json.dumps({"tools": ["abcdefghij" * 3]}), tmp_path)
    with pytest.raises(SystemExit, match="shares 40 characters"):
        script.check_is_not_copied(json.dumps({"tools": ["abcdefghij" * 4]}), tmp_path)
