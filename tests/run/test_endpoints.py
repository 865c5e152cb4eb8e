"""Loopback unless asked; wider only with a key, which no word of a command shows."""

from __future__ import annotations

from pathlib import Path

import pytest

import firesteel
from firesteel.edge.home import write_secrets
from firesteel.errors import Stopped, UsageError
from firesteel.launch import Ask
from firesteel.run.endpoints import is_wide, listening, reached_at
from firesteel.run.service import ServiceSpec, api_key
from firesteel.run.spec import RunOptions, need_trust
from firesteel.values import replace


@pytest.mark.parametrize(
    ("address", "wide", "url"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8000"),
        ("::1", False, "http://[::1]:8000"),
        ("0.0.0.0", True, "http://127.0.0.1:8000"),
        ("192.168.1.7", True, "http://192.168.1.7:8000"),
        ("fd00::1", True, "http://[fd00::1]:8000"),
    ],
)
def test_who_reaches_an_address(address: str, wide: bool, url: str) -> None:
    assert is_wide(address) == wide
    assert reached_at(address, 8000) == url


def test_a_name_is_no_address() -> None:
    with pytest.raises(UsageError, match="not an address to listen on"):
        listening(firesteel.plan("smollm2", host_name="gb10")[0], "spark.local")


def test_a_container_is_published_there_and_gets_its_key_by_name() -> None:
    wide = listening(firesteel.plan("gpt-oss-120b-vllm", host_name="gb10")[0], "0.0.0.0").plan.launch
    assert wide.container is not None and wide.container.publish == ("0.0.0.0:8000:8000",)
    assert wide.env["VLLM_API_KEY"] == "$VLLM_API_KEY"


def test_remote_code_needs_consent() -> None:
    host = firesteel.host("gb10")
    proposal = firesteel.propose(Ask("phi-4-multimodal-nvfp4"), host)[0]
    with pytest.raises(Stopped, match="code that comes with its weights"):
        need_trust(proposal, RunOptions())
    need_trust(proposal, RunOptions(trusts_code=True))


def test_the_key_of_a_service_is_that_of_its_engine(tmp_path: Path) -> None:
    """Whatever other keys the launch passes on."""
    secrets = tmp_path / "one.env"
    write_secrets(secrets, {"WANDB_API_KEY": "other", "LLAMA_API_KEY": "old", "VLLM_API_KEY": "fs-1"})
    spec = ServiceSpec("one", "", "one", (), secrets=str(secrets), engine="vllm", is_guarded_by_key=True)
    assert api_key(spec) == "fs-1"
    assert api_key(replace(spec, is_guarded_by_key=False)) is None
    assert api_key(replace(spec, secrets="")) is None
