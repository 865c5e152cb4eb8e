"""The tables of known guides: reproduced by our plans, or the difference has its reason."""

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.proposals.guides import GuideClaim, guide_claims


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
