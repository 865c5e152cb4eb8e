from __future__ import annotations

import pytest

from firesteel.errors import FiresteelError
from firesteel.launch import Launch
from firesteel.run.start.steps import _container_steps


def test_a_host_for_which_there_is_no_image_is_told_what_runs_there() -> None:
    with pytest.raises(FiresteelError, match="no container image is known that runs s4 on this host") as told:
        _container_steps(Launch("s4", "/data/s4", "vllm"), "/data/s4")
    assert told.value.next == (
        "firesteel up /data/s4 --native, with an engine of this host: firesteel engine list"
    )
