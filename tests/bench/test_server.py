"""A service as a bench's subject: with its plan made again, or with what its start stored."""

from __future__ import annotations

from pathlib import Path

import pytest

import firesteel as library
from firesteel.bench.load.server import of_service
from firesteel.edge.home import Home
from firesteel.planner.plan import PlanSummary
from firesteel.run.service import Service
from firesteel.run.spec import RunOptions, make_spec
from firesteel.run.verify.expected import Expected, expected, stored_expected, write_expected
from firesteel.units import Band
from firesteel.values import replace

MODELS = ("gpt-oss-120b", "qwen3.6-27b-nvfp4-unsloth-mtp", "smollm2")


@pytest.mark.parametrize("model", MODELS)
def test_the_stored_plan_gives_what_the_plan_itself_gives(model: str, tmp_path: Path) -> None:
    host = library.host("gb10")
    proposal = library.plan(model, host_name="gb10", users=2)[0]
    service = Service(model, tmp_path, make_spec(proposal, Home(tmp_path), RunOptions()), None, "ready", None)
    write_expected(tmp_path, expected(proposal))
    stored = stored_expected(tmp_path)
    planned = of_service(service, stored, proposal.plan, host).subject.plan
    assert planned["decode_tokens_per_s"]["expected"] > 0 and planned["rung"] and planned["why"]
    assert of_service(service, stored, None, host).subject.plan == planned


def test_bands_alone_are_a_plan_too(tmp_path: Path) -> None:
    """All that version 0.1 stored."""
    host = library.host("gb10")
    proposal = library.plan("smollm2", host_name="gb10")[0]
    service = Service("it", tmp_path, make_spec(proposal, Home(tmp_path), RunOptions()), None, "ready", None)
    bands = Expected(plan=PlanSummary(decode_tokens_per_s=Band(1, 2, 3)), drafts="mtp")
    band = {"low": 1, "expected": 2, "high": 3}
    found = of_service(service, bands, None, host).subject.plan
    assert found == {"decode_tokens_per_s": band, "drafts": True}
    assert of_service(service, replace(bands, plan=PlanSummary()), None, host).subject.plan == {}
