"""The command that starts a service again is derived from what is stored, and means the same."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from firesteel.cli.up import command
from firesteel.edge.home import Home
from firesteel.edge.host.process import Pid, now
from firesteel.launch import Ask
from firesteel.library.services import service_status
from firesteel.run.service import (
    Service,
    ServiceSpec,
    ServiceState,
    folder_of,
    read_spec,
    write_spec,
    write_state,
)
from firesteel.run.start import start_failure
from firesteel.values import replace

FULL = ServiceSpec(
    "coder",
    "http://127.0.0.1:8123",
    "coder",
    ("x",),
    ask=Ask("my model", 8192, 4, 8123, name="coder", engine="vllm", version="0.26.0"),
    listen="0.0.0.0",
    trusts_code=True,
    at_boot=True,
)
FROM_FILE = ServiceSpec(
    "coder", "", "coder", ("x",), ask=Ask("big", 8192, name="coder"), service_file="/my files/s.yaml"
)
LOST = ServiceSpec("coder", "", "coder", ())


@pytest.mark.parametrize("spec", [FULL, FROM_FILE, LOST], ids=["full", "from a file", "lost"])
def test_a_spec_is_read_as_written(tmp_path: Path, spec: ServiceSpec) -> None:
    write_spec(tmp_path, spec)
    assert read_spec(tmp_path) == spec


def test_up_understands_the_command() -> None:
    options = command.make_context("up", list(FULL.up_arguments)).params
    ask = Ask(
        options["models"][0], options["context"], options["users"], options["port"], "coder",
        options["engine"], options["version"],
    )  # fmt: skip
    assert ask == FULL.ask
    assert (options["listen"], options["trusts_code"], options["at_boot"]) == ("0.0.0.0", True, True)
    assert shlex.split(FULL.again)[2:] == list(FULL.up_arguments)


def test_a_service_file_has_the_sizes_itself() -> None:
    assert FROM_FILE.again == "firesteel up -f '/my files/s.yaml' coder"
    assert replace(FROM_FILE, is_swapped_in=True).again == "load it again", "the gateway starts it"


def test_a_service_whose_spec_is_lost_is_started_by_its_name() -> None:
    assert LOST.again == "firesteel up coder"


@pytest.mark.parametrize(
    "why",
    [
        "the memory guard stopped it: 2.0 GiB were left on the host, the floor is 4.0 GiB",
        "the kernel killed it because memory ran out: it held 3.0 GiB, and the host has 119.0 GiB",
    ],
)
def test_what_memory_ran_out_for_is_not_started_again_as_it_was(tmp_path: Path, why: str) -> None:
    dead = Pid(os.getpid(), 0)  # not this process itself, in whose memory other tests may have left a state
    state = ServiceState(dead, None, now(), why=why)
    service = Service("coder", tmp_path, FULL, state, "dead", None)
    assert service_status(service).next == (
        "firesteel plan 'my model', for what takes the memory; then firesteel up 'my model' with a smaller "
        "--context or fewer --users"
    )
    folder = folder_of(Home(tmp_path), "coder")
    write_spec(folder, FULL)
    write_state(folder, state)
    failed = start_failure(Home(tmp_path), FULL)
    assert why in failed.what and failed.next == service_status(service).next, "`up` says the same"
    in_file = service_status(replace(service, spec=FROM_FILE)).next or ""
    assert "a smaller `context` or fewer `users` in the service file" in in_file
    loads = replace(LOST, is_command=True, is_swapped_in=True)
    assert "firesteel plan" not in (service_status(replace(service, spec=loads)).next or "")
    crashed = replace(service, state=replace(state, why=None, exit_code=1))
    assert service_status(crashed).next == f"firesteel logs coder, then {FULL.again}"
