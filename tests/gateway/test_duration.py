"""How long a load takes, warm-up and proof included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firesteel.edge.home import Home
from firesteel.gateway.loader.duration import LoadClock, LoadTime
from firesteel.gateway.loader.process import LoadProgress, ProcessLoader
from firesteel.gateway.service_config import RunningModel
from firesteel.run.events import PhaseDone, PhaseProgress
from firesteel.run.service import forget_proof
from firesteel.run.start import StartTimes, last_verified, record_start, record_verified

KNOWN = LoadTime(launch_s=30, proof_s=20, whole_s=55)


@pytest.mark.parametrize(
    ("took", "events", "left_s"),
    [
        (KNOWN, [(1, PhaseDone("check", "well"))], 55),
        (KNOWN, [(5, PhaseProgress("launch", "starting"))], 50),
        (
            KNOWN,
            [(5, PhaseProgress("launch", "starting")), (15, PhaseProgress("launch", "half way", 12.0))],
            32,
        ),
        (KNOWN, [(5, PhaseProgress("launch", "starting")), (15, PhaseProgress("launch", "half way"))], 40),
        (KNOWN, [(5, PhaseProgress("launch", "starting")), (36, PhaseProgress("launch", "late"))], None),
        (KNOWN, [(35, PhaseDone("launch", "answers"))], 20),
        (KNOWN, [(35, PhaseDone("launch", "answers")), (38, PhaseProgress("warm", "32 tokens"))], 17),
        (KNOWN, [(35, PhaseProgress("warm", "32 tokens")), (45, PhaseProgress("verify", "asks"))], 10),
        (KNOWN, [(35, PhaseProgress("warm", "32 tokens")), (56, PhaseProgress("verify", "late"))], None),
        (KNOWN, [(5, PhaseProgress("pull", "fetching"))], None),
        (LoadTime(30), [(5, PhaseProgress("launch", "half way", 12.0))], 12),
        (LoadTime(30), [(35, PhaseProgress("warm", "32 tokens"))], None),
        (LoadTime(None), [(5, PhaseProgress("launch", "starting"))], None),
    ],
)
def test_how_long_it_will_still_be(
    took: LoadTime, events: list[tuple[float, PhaseProgress | PhaseDone]], left_s: float | None
) -> None:
    clock = LoadClock(took, 0)
    said = [clock.left_s(event, now_s) for now_s, event in events]
    assert said[-1] == left_s


def test_what_was_fetched_is_no_part_of_a_load(tmp_path: Path) -> None:
    home, clock = Home(tmp_path), LoadClock(LoadTime(None), 100)
    record_start(home, "m", StartTimes("vllm", "0.32.0", {"weights": 30.0}))
    times: list[tuple[float, PhaseProgress | PhaseDone]] = [
        (102, PhaseProgress("pull", "a")),
        (700, PhaseProgress("pull", "b")),
    ]
    times += [(1000, PhaseProgress("launch", "starting")), (1040, PhaseDone("launch", "answers"))]
    for now_s, event in times:
        clock.left_s(event, now_s)
    assert clock.keep("m", home, 1055) == 57
    kept = last_verified(home, "m", "vllm", "0.32.0")
    assert kept and (kept.proof_s, kept.whole_s, kept.seconds) == (15, 57, {"weights": 30})
    record_start(home, "m", StartTimes("vllm", "0.32.0", {"weights": 31.0}))
    assert last_verified(home, "m", "vllm", "0.32.0") == kept, (
        "a start that was not proved says nothing of it"
    )
    assert last_verified(home, "m", "vllm", "0.33.0") is None


def test_a_brief_proof_says_nothing_about_a_full_one(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for proof_s, is_brief in ((20.0, False), (0.5, True)):
        record_start(home, "m", StartTimes("vllm", "0.32.0", {"weights": 30.0}))
        record_verified(home, "m", proof_s, 30 + proof_s, is_brief=is_brief)
    brief = last_verified(home, "m", "vllm", "0.32.0", is_brief=True)
    full = last_verified(home, "m", "vllm", "0.32.0")
    assert brief and full and (brief.proof_s, full.proof_s) == (0.5, 20.0)


@pytest.mark.real
async def test_a_second_load_says_how_long_the_whole_takes(
    quick_home: Home, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(quick_home.root))
    file = tmp_path / "service.yaml"
    file.write_text(f"models:\n  one: {{recipe: smollm2, context: 1024, port: {free_port}}}\n")
    hands = ProcessLoader()

    async def loaded() -> tuple[list[LoadProgress], RunningModel]:
        model = (await hands.read(str(file))).models[0]
        said = [each async for each in hands.load(model)]
        assert isinstance(said[-1], RunningModel)
        return [each for each in said if isinstance(each, LoadProgress)], said[-1]

    _, first = await loaded()
    assert first.load_s
    assert [each async for each in hands.unload("one")]
    forget_proof(quick_home, "one")  # so that the second is proved in full, too
    assert (await hands.read(str(file))).models[0].load_s == pytest.approx(first.load_s, abs=0.1)
    said, second = await loaded()
    assert second.load_s
    kept = json.loads((quick_home.root / "starts" / "one.json").read_text())[0]
    launch = [each.eta_s for each in said if each.phase == "launch" and each.eta_s is not None]
    assert launch and max(launch) >= kept["proof_s"], "the proof is part of what is left"
    assert next(each.eta_s for each in said if each.phase == "warm"), "and has its own time"
