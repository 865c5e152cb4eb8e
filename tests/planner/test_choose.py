"""`choose`, held against a rubric that was written before it: tests/planner/choose_uses.yaml.

The tables of known guides are reproduced by our plans, or the difference has its reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from firesteel.catalog.catalog import shipped
from firesteel.errors import UsageError
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.planner.choose import Candidate, Choice, GuideClaim, Use, choose, guide_claims
from firesteel.values import replace

USES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("choose_uses.yaml").read_text())
GB10 = idle_host(hardware("gb10"))


def answer(asks: dict[str, Any]) -> Choice:
    use = Use(asks["who"], asks["prompt"], asks["matters"], asks.get("users"), asks.get("takes"))
    return choose(shipped(), GB10, use)


def served(candidate: Candidate) -> dict[str, Any]:
    proposal = candidate.proposal
    assert proposal.recipe and proposal.model
    return {
        "family": proposal.model.family,
        "engine": proposal.plan.launch.engine,
        "modality": proposal.model.modality,
        "tools": proposal.recipe.engine == "llamacpp" or "tool-call-parser" in proposal.recipe.flags,
        "context": proposal.plan.cache.context,
        "users": proposal.plan.cache.users,
        "tokens_per_s": candidate.tokens_per_s,
        "total_tokens_per_s": candidate.total_tokens_per_s,
        "most_gib": proposal.plan.memory.needed.expected / 2**30,
    }


@pytest.mark.parametrize("row", USES, ids=lambda row: str(row["use"]))
def test_the_answer_meets_the_rubric(row: dict[str, Any]) -> None:
    choice = answer(row["asks"])
    got = served(choice.best)
    for what, wanted in row["expects"].items():
        match what:
            case "family":
                assert got[what] in wanted
            case "modality":
                assert wanted in got[what]
            case "engine" | "tools":
                assert got[what] == wanted
            case "most_gib":
                assert got[what] <= wanted
            case _:
                assert got[what] >= wanted, what
    names = {choice.best.name, *(other.name for other in choice.others)}
    assert not names & set(row.get("never", ()))


@pytest.mark.parametrize("row", USES, ids=lambda row: str(row["use"]))
def test_every_figure_has_a_source_and_every_choice_a_reason(row: dict[str, Any]) -> None:
    choice = answer(row["asks"])
    considered = {choice.best.name, *choice.left_out}
    assert len(choice.others) == 2 or len(shipped().recipes) - len(considered) < 2
    for candidate in (choice.best, *choice.others):
        assert candidate.why and candidate.quantization
        assert candidate.proposal.can_run
        assert {figure.what for figure in candidate.figures} >= {"decode", "memory"}
        assert all(figure.source and figure.basis for figure in candidate.figures)


def test_what_cannot_be_served_says_why() -> None:
    with pytest.raises(UsageError, match="nothing in the catalog serves this") as long:
        choose(shipped(), GB10, Use("person", 5_000_000, "speed"))
    assert long.value.next == "ask for shorter prompts or fewer users"
    other = replace(GB10, hardware=None)
    with pytest.raises(UsageError, match="nothing in the catalog serves this") as elsewhere:
        choose(shipped(), other, Use("person", 5_000_000, "speed"))
    assert "`--host gb10`" in elsewhere.value.next


def test_a_model_with_a_safety_note_is_left_out_and_says_so() -> None:
    choice = answer({"who": "person", "prompt": 1000, "matters": "speed"})
    assert choice.left_out["glm-4.7-flash-fp8"].startswith("has a safety note")


@pytest.fixture(scope="module")
def claims() -> tuple[GuideClaim, ...]:
    return guide_claims(shipped(), idle_host(hardware("gb10")))


def test_every_difference_has_its_reason(claims: tuple[GuideClaim, ...]) -> None:
    assert len({claim.guide for claim in claims}) == 2
    assert all(claim.why for claim in claims if not claim.agrees)
    assert not any(claim.why for claim in claims if claim.agrees)


def test_what_agrees_and_what_does_not(claims: tuple[GuideClaim, ...]) -> None:
    verdicts = {claim.says.partition(",")[0]: claim.agrees for claim in claims}
    assert verdicts["vLLM FP8 decodes about 43 tok/s"] is True
    assert verdicts["gpt-oss-120b in vLLM decodes 36 tok/s"] is True
    assert verdicts["llama.cpp Q4 decodes about 33 tok/s"] is False
    assert verdicts["gpt-oss-120b in SGLang decodes 53 tok/s"] is True
    assert verdicts["AWQ is 18 to 32 % faster than NVFP4 in vLLM"] is None
