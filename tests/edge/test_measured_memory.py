"""`measured_memory.json`: rows that a start wrote are read back; anything else is ignored."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from firesteel.edge.home import Home
from firesteel.edge.measured_memory import read_measured_memory, save_measured_memory
from firesteel.facts.host.memory import MeasuredMemory
from firesteel.values import plain

GOOD = MeasuredMemory("a" * 32, "vllm", "0.24.0", 5 * 2**30, "2026-11-15", 2**30, 2**29, 1000, 2**30, 2**29)
MINIMAL = MeasuredMemory("b" * 32, "llamacpp", None, 2**20, "2026-11-14")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def write(home: Home, text: str) -> None:
    (home.root / "measured_memory.json").write_text(text)


def test_saved_rows_are_read_back(home: Home) -> None:
    assert read_measured_memory(home) == {}
    for row in (GOOD, MINIMAL):
        save_measured_memory(home, row)
    assert read_measured_memory(home) == {GOOD.key: GOOD, MINIMAL.key: MINIMAL}


def test_rows_of_an_earlier_release_are_read(home: Home) -> None:
    old = {
        key: value
        for key, value in plain(MINIMAL).items()
        if key not in ("checkpoint_bytes", "planned_kv_bytes")
    }
    write(home, json.dumps([old]))
    assert read_measured_memory(home) == {MINIMAL.key: MINIMAL}


@pytest.mark.parametrize(
    "wrong",
    [
        {"process_bytes": -1},
        {"process_bytes": 0},
        {"process_bytes": None},
        {"process_bytes": "5"},
        {"process_bytes": True},
        {"process_bytes": 1.5},
        {"process_bytes": float("nan")},
        {"process_bytes": float("inf")},
        {"process_bytes": 2**50 + 1},
        {"process_bytes": [1]},
        {"weights_bytes": -(2**40)},
        {"kv_bytes": {}},
        {"kv_tokens": 10**30},
        {"checkpoint_bytes": "x"},
        {"planned_kv_bytes": False},
        {"seen": "\x1b[2J"},
        {"seen": "2026-13-45"},
        {"seen": "2026-11-15\n"},
        {"seen": 20261115},
        {"key": "x"},
        {"key": ["a"]},
        {"key": "A" * 32},
        {"engine": "trtllm"},
        {"engine": []},
        {"version": "\x1b]0;x\x07"},
        {"version": 1},
        {"more": 1},
    ],
)
def test_one_bad_row_does_not_spoil_the_others(home: Home, wrong: dict[str, object]) -> None:
    write(home, json.dumps([{**plain(GOOD), **wrong}, plain(MINIMAL), "no row", None, [], {}]))
    assert read_measured_memory(home) == {MINIMAL.key: MINIMAL}
    save_measured_memory(home, GOOD)
    assert read_measured_memory(home) == {MINIMAL.key: MINIMAL, GOOD.key: GOOD}


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "5", '{"key": 1}', "[" * 100_000, "[" + " " * 2**20 + "]", "[" + "9" * 5000 + "]"],
)
def test_what_is_not_a_list_of_rows_is_ignored(home: Home, text: str) -> None:
    write(home, text)
    assert read_measured_memory(home) == {}
    save_measured_memory(home, GOOD)
    assert read_measured_memory(home) == {GOOD.key: GOOD}


def test_bytes_that_are_not_text_are_ignored(home: Home) -> None:
    (home.root / "measured_memory.json").write_bytes(b"\xff\xfe[")
    assert read_measured_memory(home) == {}


def test_a_pipe_does_not_block(home: Home) -> None:
    os.mkfifo(home.root / "measured_memory.json")
    assert read_measured_memory(home) == {}


def test_an_endless_file_is_not_read_to_its_end(home: Home) -> None:
    with (home.root / "measured_memory.json").open("wb") as file:
        file.write(json.dumps([plain(GOOD)]).encode())
        file.truncate(2**36)  # sparse: it takes no disk, and would take all memory
    assert read_measured_memory(home) == {}


def test_the_oldest_rows_are_dropped(home: Home) -> None:
    write(home, json.dumps([{**plain(MINIMAL), "key": f"{number:032x}"} for number in range(100)]))
    save_measured_memory(home, GOOD)
    rows = read_measured_memory(home)
    assert len(rows) == 100 and GOOD.key in rows and f"{0:032x}" not in rows
