"""Means since an engine started, from its `/metrics`."""

import pytest

from firesteel.engines.metrics import Pace, pace

VLLM = """\
vllm:time_to_first_token_seconds_sum{engine="0"} 3.0
vllm:time_to_first_token_seconds_count{engine="0"} 6.0
vllm:%s_seconds_sum{engine="0"} 10.0
vllm:%s_seconds_count{engine="0"} 500.0
"""


@pytest.mark.parametrize("name", ["inter_token_latency", "time_per_output_token"])
def test_vllm_under_its_old_and_new_name(name: str) -> None:
    assert pace("vllm", VLLM % (name, name)) == Pace(50.0, 500.0)


def test_sglang_and_llamacpp() -> None:
    assert pace("sglang", (VLLM % (("inter_token_latency",) * 2)).replace("vllm:", "sglang:")) == Pace(
        50, 500
    )
    assert pace("llamacpp", "llamacpp:predicted_tokens_seconds 12.5\n") == Pace(12.5, None)


def test_nothing_served_yet_is_not_known() -> None:
    idle = "vllm:time_to_first_token_seconds_sum 0\nvllm:time_to_first_token_seconds_count 0\n"
    assert pace("vllm", idle) == pace("llamacpp", "llamacpp:predicted_tokens_seconds 0\n") == Pace()
