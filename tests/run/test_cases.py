"""66 numbered faults that engines have had, and what is harmless: what `verify` says in each of its modes.

Behind each fault is a server that is honest otherwise, which says that it is vLLM, or llama.cpp with eight
billion parameters. A fault is named where a check does not pass that passes without it.
"""

from __future__ import annotations

import html
from typing import Literal

import pytest
from tests.run.adversary.cases import CASES, HARMLESS, MODES, SPEAKERS, VOLCANO, Case, Mode, at_once
from tests.run.adversary.change import Change, text
from tests.run.adversary.speaker import Speaker
from tests.run.adversary.trial import Trial, named, tried

Flavour = Literal["vllm", "llamacpp"]
HONEST = Trial({}, frozenset(), 0, 0)
PROMISED: dict[Mode, int] = {"start": 48, "verify": 58, "deep": 62}


def test_there_are_66_of_them() -> None:
    assert [case.number for case in CASES] == list(range(1, 67))
    for mode, least in PROMISED.items():
        seen = [case for case in CASES if MODES.index(case.cost) <= MODES.index(mode)]
        assert len(seen) >= (least if mode != "start" else 40)


@pytest.mark.parametrize("flavour", ["vllm", "llamacpp"])
@pytest.mark.parametrize("mode", MODES)
async def test_an_honest_server_passes(flavour: Flavour, mode: Mode) -> None:
    for task in ("chat", "embeddings"):
        assert (await tried(Speaker(flavour), Change(), mode, task=task)).failed == {}
    assert (await tried(Speaker(flavour), Change(), mode, reasoning=True)).failed == {}


@pytest.mark.parametrize("flavour", ["vllm", "llamacpp"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.number}")
async def test_each_case_is_named_where_it_can_be_seen(case: Case, flavour: Flavour) -> None:
    assert await named(Speaker(flavour), case, case.cost, HONEST), f"{case.group}: {case.what}"


@pytest.mark.parametrize(("flavour", "mode"), [("llamacpp", "start"), ("vllm", "deep")])
@pytest.mark.parametrize("name", HARMLESS)
async def test_what_is_harmless_is_left_alone(name: str, flavour: Flavour, mode: Mode) -> None:
    assert (await tried(Speaker(flavour), HARMLESS[name], mode)).failed == {}


@pytest.mark.parametrize(("flavour", "mode"), [("llamacpp", "start"), ("vllm", "deep")])
@pytest.mark.parametrize("name", SPEAKERS)
async def test_so_is_a_model_with_its_own_way_to_speak(name: str, flavour: Flavour, mode: Mode) -> None:
    assert (await tried(Speaker(flavour, **SPEAKERS[name]), Change(), mode)).failed == {}


FURTHER = {
    "text escaped for HTML": (text(html.escape), "JSON"),
    "`<` and `&` alone": (text(lambda said: said.replace("&", "&amp;").replace("<", "&lt;")), "JSON"),
    "spaces collapsed": (text(lambda said: " ".join(said.split())), "JSON"),
    "one answer to all who ask at once": (at_once(1, text(lambda _: VOLCANO)), "parallel requests"),
}
"""Not among the 66."""


@pytest.mark.parametrize("flavour", ["vllm", "llamacpp"])
@pytest.mark.parametrize("name", FURTHER)
async def test_further_faults_are_named_at_the_start(name: str, flavour: Flavour) -> None:
    change, check = FURTHER[name]
    trial = await tried(Speaker(flavour), change, "start")
    assert check in trial.failed and (check == "JSON" or check in trial.gates)
