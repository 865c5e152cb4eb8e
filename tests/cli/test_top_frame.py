"""The lines of `top`: every state fits its terminal, and says what it shows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.cli.top.app import end_of_day, keys
from firesteel.cli.top.client import (
    Curve,
    Curves,
    LoggedRequest,
    Snapshot,
)
from firesteel.cli.top.frame import (
    ASCII,
    PANELS,
    UNICODE,
    Panel,
    Selection,
    frame,
    load_question,
    memory_bar,
    once,
    sparkline,
)
from firesteel.gateway.state import (
    GatewayState,
    GpuStatus,
    MemoryStatus,
    ModelHealth,
    ModelStatus,
    WaitingRequest,
)
from firesteel.units import GIB
from firesteel.values import replace

NOW = 1_800_000_000.0
CODER = ModelStatus(
    "coder", "ready", 2, 0, 30 * GIB, 31 * GIB, health=ModelHealth(False, "slower than planned: a lot"),
    tokens_per_s=62.24, kv_used=0.31, acceptance=0.62, pinned=True,
)  # fmt: skip
BIG = ModelStatus(
    "big", "off", planned_bytes=65 * GIB, health=ModelHealth(True, "not loaded"), evicts=("coder",)
)
MEMORY = MemoryStatus(100 * GIB, 31 * GIB, 80 * GIB, 121 * GIB, 8 * GIB)
REQUESTS = (
    LoggedRequest(3, NOW - 5, "coder", 200, "whole", 20.0, "laptop", "", 10.0, 15.0, 100, 200, 0),
    LoggedRequest(2, NOW - 90000, "coder", 502, "broke", 1.0, why="the engine closed the connection"),
)
FULL = Snapshot(
    "http://spark:8080",
    NOW,
    GatewayState(
        "", (CODER, BIG), MEMORY, GpuStatus(92.0, 60.0, 900.0, "hardware thermal slowdown"), 3,
        (WaitingRequest("big", "laptop", NOW - 42, "big: waiting until coder is idle"),),
    ),
    Curves(5, 0, (Curve("tokens_per_s", "coder", (None, 10.0, 62.2)), Curve("power_w", None, (60.0,)))),
    REQUESTS,
    ("one", "two"),
    "coder",
)  # fmt: skip
HOSTILE = "\x1b[2J<img onerror>\u202e" + "x" * 200


def text(snapshot: Snapshot, chosen: Selection, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in frame(snapshot, chosen, width, height))


def test_everything_of_now_is_there_in_text_at_80_by_24() -> None:
    shown = text(FULL, Selection("coder"))
    for part in (
        "http://spark:8080", "waiting 3", "92 °C 60 W 900 MHz SLOWED", "guard", "free", "models up",
        "ready*", "31.0", "62.2", "31%", "62%", "NOT OK", "coder: slower than planned: a lot", "max 62.2",
        "log of coder", "two", "q quit",
    ):  # fmt: skip
        assert part in shown.replace("\u00a0", " "), part
    assert "…" not in shown.replace("log/requests", ""), "nothing is cut"


def test_panels() -> None:
    shown = text(FULL, Selection("coder", "requests"))
    assert "502" in shown and "after 1.0 s: the engine closed the" in shown
    assert "10.0 s   5.0 s  20.0 s    100   200" in shown, "waited, prompt, in all; tokens in and out"
    assert "▓ prompt ▒ answer" in shown
    shown = text(FULL, Selection("coder", "queue"))
    assert "42 s  big" in shown and "waiting until coder is idle" in shown
    assert "a day back" in text(FULL, Selection("coder", shows_help=True))
    old = Selection("coder", "requests", slower_s=10, days_back=1)
    assert "from 10 s on until yesterday" in text(FULL, old)


def test_an_answer_in_one_piece_has_its_own_part() -> None:
    """Its prompt and its answer cannot be told apart, so no part of it is called prompt."""
    plain = replace(REQUESTS[0], is_stream=False, first_s=19.9)
    shown = text(replace(FULL, requests=(plain,)), Selection("coder", "requests"), width=100)
    (line,) = [line for line in shown.splitlines() if "100   200" in line]
    assert "10.0 s       -  20.0 s    100   200" in line
    assert "\u2591" in line and "\u2593" not in line and "\u2592" not in line
    assert "\u2591 both in one piece" in shown


def test_why_a_prompt_was_read_again_stands_below_its_request() -> None:
    said = "This new conversation read 980 of 1,079 tokens again, 25 s: the attribution line changed"
    row = replace(FULL.requests[0], cache=said)
    shown = text(replace(FULL, requests=(row,)), Selection("coder", "requests"), width=70)
    assert said in " ".join(shown.split())


def test_a_broken_service_file_and_notes_are_shown() -> None:
    noted = replace(CODER, note="its measured memory is above the plan")
    state = replace(FULL.state, models=(noted, BIG), problem="x.yaml:3: there is no key `mdoels`")
    shown = text(replace(FULL, state=state), Selection("coder"), height=30)
    assert "the service file has a mistake" in shown and "x.yaml:3: there is no key `mdoels`" in shown
    assert "coder: its measured memory is above the plan" in shown
    lines = "\n".join(line.plain for line in once(replace(FULL, state=state), 80))
    assert "there is no key `mdoels`" in lines and "coder: its measured memory is above the plan" in lines


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (200, 60), (79, 23), (20, 3), (1, 1)])
@pytest.mark.parametrize("panel", PANELS)
def test_a_frame_has_the_size_of_its_terminal(size: tuple[int, int], panel: Panel) -> None:
    width, height = size
    many = tuple(replace(CODER, name=f"model-{number}", waiting=200) for number in range(40))
    names = (replace(CODER, name=HOSTILE, health=ModelHealth(False, HOSTILE)),)
    snapshots = (
        FULL,
        Snapshot("http://x", NOW),
        replace(FULL, state=replace(FULL.state, models=many)),
        replace(FULL, state=replace(FULL.state, models=names), log=(HOSTILE,) * 50, log_of=HOSTILE),
        replace(FULL, problem="no answer from http://x"),
    )
    for snapshot in snapshots:
        for message in ("", "load big? " * 40):
            for glyphs in (UNICODE, ASCII):
                first = snapshot.state.models[0].name if snapshot.state.models else ""
                chosen = Selection(first, panel, message=message)
                lines = frame(snapshot, chosen, width, height, glyphs)
                assert len(lines) == height and all(line.cell_len <= width for line in lines)
                assert all(line.plain.replace("\u00a0", " ").isprintable() for line in lines)


def test_the_selected_one_of_many_is_visible() -> None:
    many = tuple(replace(CODER, name=f"model-{number}") for number in range(40))
    snapshot = replace(FULL, state=replace(FULL.state, models=many))
    for name in ("model-0", "model-20", "model-39"):
        assert f"▸ {name} " in text(snapshot, Selection(name))
    assert "of 40" in text(snapshot, Selection("model-20"))


def test_without_colour_or_blocks_it_says_the_same() -> None:
    lines = frame(FULL, Selection("coder"), 80, 24, ASCII)
    ascii_text = "\n".join(line.plain for line in lines).replace("\u00a0", " ").replace("°", "")
    assert ascii_text.isascii() and "NOT OK" in ascii_text


def test_a_lost_gateway_is_named_and_its_last_state_stays() -> None:
    shown = text(replace(FULL, problem="no answer from http://spark:8080"), Selection("coder"))
    assert "no answer from http://spark:8080; trying again" in shown and "ready*" in shown


def test_once_says_everything_about_every_model() -> None:
    shown = "\n".join(line.plain for line in once(FULL, 80))
    assert "coder: slower than planned: a lot" in shown and "big: not loaded" in shown


def test_what_a_load_would_do_is_asked_first() -> None:
    assert "coder would be unloaded first" in load_question(BIG, 100 * GIB, 31 * GIB)
    assert load_question(replace(BIG, evicts=()), 100 * GIB, 31 * GIB) == ""
    older = replace(BIG, evicts=None)
    assert "35.0 GiB are left" in load_question(older, 66 * GIB, 31 * GIB)
    assert load_question(older, 100 * GIB, 31 * GIB) == "" and load_question(older, None, 0) == ""


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=400), st.integers(0, 60))
@settings(max_examples=50)
def test_a_sparkline_has_its_width(values: list[float | None], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == (width if values else 0)
    if values and width and values[-1] is not None:
        assert line[-1] != " "


def test_a_sparkline_shows_peaks() -> None:
    assert sparkline([0.0, 1.0, 4.0, None, 8.0], 5) == "▁▂▅ █"
    assert sparkline([0.0] * 99 + [5.0] + [0.0] * 100, 20).count("█") == 1, (
        "also where many values share a cell"
    )


def test_the_bar_shows_the_models_the_rest_and_the_guard() -> None:
    bar = memory_bar(MEMORY, (CODER, BIG), 121).plain
    assert (bar.count("█"), bar.count("▚"), bar.index("│")) == (31, 10, 112)
    assert memory_bar(MemoryStatus(), (), 50).plain == ""


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOA", ["up"]),
        (b"\x1b[5~l", ["page up", "l"]),
        (b"\x1b[1;5Cq", ["q"]),
        (b"\x1b", ["escape"]),
        (b"jk\t", ["down", "up", "tab"]),
        (b"\x1b[99", []),
    ],
)
def test_keys(data: bytes, names: list[str]) -> None:
    assert list(keys(data)) == names


def test_a_day_back_ends_at_midnight() -> None:
    yesterday = end_of_day(NOW, 1)
    assert NOW - 86400 <= yesterday < NOW and end_of_day(NOW, 0) >= NOW
    assert 23 * 3600 <= yesterday - end_of_day(NOW, 2) <= 25 * 3600


def test_what_a_load_needs_is_said_before_anybody_asks() -> None:
    shown = " ".join(text(FULL, Selection("big")).split())
    assert "It needs 65.0 GiB, 69.0 GiB are free for models: coder would have to go" in shown
    stuck = replace(BIG, why_not="`big` needs 65 GiB; beside `coder`, which stays, 40 are left")
    snapshot = replace(FULL, state=replace(FULL.state, models=(CODER, stuck)))
    assert "A load is impossible: `big` needs 65 GiB" in text(snapshot, Selection("big"))
