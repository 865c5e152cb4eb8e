"""`realised.json`: what a start wrote is read again; what somebody else wrote is not believed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from firesteel.edge.files.home import Home
from firesteel.edge.files.measured_memory import read_measured_memory, save_measured_memory
from firesteel.planner import MeasuredMemory

GOOD = MeasuredMemory("a" * 32, "vllm", "0.24.0", 5 * 2**30, "2026-11-15", 2**30, 2**29, 1000, 2**30, 2**29)
BARE = MeasuredMemory("b" * 32, "llamacpp", None, 2**20, "2026-11-14")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def write(home: Home, text: str) -> None:
    (home.root / "realised.json").write_text(text)


def test_what_is_remembered_is_read_again(home: Home) -> None:
    assert read_measured_memory(home) == {}
    for each in (GOOD, BARE):
        save_measured_memory(home, each)
    assert read_measured_memory(home) == {GOOD.key: GOOD, BARE.key: BARE}


def test_rows_of_an_earlier_release_are_read(home: Home) -> None:
    old = {
        key: value
        for key, value in asdict(BARE).items()
        if key not in ("checkpoint_bytes", "planned_kv_bytes")
    }
    write(home, json.dumps([old]))
    assert read_measured_memory(home) == {BARE.key: BARE}


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
def test_one_bad_row_takes_no_other_with_it(home: Home, wrong: dict[str, object]) -> None:
    write(home, json.dumps([{**asdict(GOOD), **wrong}, asdict(BARE), "no row", None, [], {}]))
    assert read_measured_memory(home) == {BARE.key: BARE}
    save_measured_memory(home, GOOD)
    assert read_measured_memory(home) == {BARE.key: BARE, GOOD.key: GOOD}


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "5", '{"key": 1}', "[" * 100_000, "[" + " " * 2**20 + "]", "[" + "9" * 5000 + "]"],
)
def test_what_is_no_list_of_rows_is_none(home: Home, text: str) -> None:
    write(home, text)
    assert read_measured_memory(home) == {}
    save_measured_memory(home, GOOD)
    assert read_measured_memory(home) == {GOOD.key: GOOD}


def test_bytes_that_are_no_text_are_none(home: Home) -> None:
    (home.root / "realised.json").write_bytes(b"\xff\xfe[")
    assert read_measured_memory(home) == {}


def test_a_pipe_holds_nobody_up(home: Home) -> None:
    os.mkfifo(home.root / "realised.json")
    assert read_measured_memory(home) == {}


def test_an_endless_file_is_not_read_to_its_end(home: Home) -> None:
    with (home.root / "realised.json").open("wb") as file:
        file.write(json.dumps([asdict(GOOD)]).encode())
        file.truncate(2**36)  # sparse: it takes no disk, and would take all memory
    assert read_measured_memory(home) == {}


def test_the_oldest_are_forgotten(home: Home) -> None:
    write(home, json.dumps([{**asdict(BARE), "key": f"{number:032x}"} for number in range(100)]))
    save_measured_memory(home, GOOD)
    found = read_measured_memory(home)
    assert len(found) == 100 and GOOD.key in found and f"{0:032x}" not in found
