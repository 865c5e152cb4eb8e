"""What real agents were recorded to send (`scripts/record-agents`), and what is said about them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.render.clients import client_names, load_client

ROOT = Path(__file__).resolve().parents[2]
RECORDED: dict[str, dict[str, Any]] = json.loads((ROOT / "tests" / "gateway" / "agents.json").read_text())


@pytest.mark.parametrize("name", RECORDED)
def test_the_data_are_those_of_the_recording(name: str) -> None:
    found, known = RECORDED[name], load_client(name)
    assert known.prompt is not None
    assert found["version"] in known.prompt.versions
    recorded = found["own_characters"]
    assert abs(known.prompt.characters - recorded) <= max(500, recorded // 20)
    given = 1 if name == "llm" else 0  # by the script: it has none of its own
    assert known.prompt.tools == len(found["tools"]) - given
    assert set(found["names"]) <= set(known.asks)


@pytest.mark.parametrize("name", RECORDED)
def test_the_loop_was_completed(name: str) -> None:
    found = RECORDED[name]
    assert set(found["exits"]) == {0}
    assert found["results"] == (5 if found["tools"] else 0)


@pytest.mark.parametrize("name", RECORDED)
def test_how_long_it_waits_is_what_was_seen(name: str) -> None:
    waited, life = RECORDED[name]["waits"], load_client(name).life
    assert life is not None and waited["version"] in life.versions
    assert waited["exit"] == 0 and waited["seconds"] == life.tried == 900


def test_every_agent_that_can_run_here_is_recorded() -> None:
    """Open WebUI is a page: it was run by hand."""
    tried = {name for name in client_names() if not load_client(name).untried}
    assert set(RECORDED) == tried - {"openai", "open-webui"}


def test_sessions_share_their_prompt() -> None:
    """Claude Code with what `--stable-prompt` offers; Continue has its git status before its tools."""
    assert RECORDED["claude-code"]["stable_session_to_session_percent"] >= 90
    others = {name: found["session_to_session_percent"] for name, found in RECORDED.items() if found["tools"]}
    assert {name for name, percent in others.items() if percent < 90} == {"continue", "llm"}, others


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
