"""What a release says of a line, where no rule of ours knows more."""

from __future__ import annotations

import pytest

import firesteel

RUN = "docker run --gpus all {env} {image} openai/gpt-oss-20b --gpu-memory-utilization 0.8 {words}"
V24 = "vllm/vllm-openai:v0.24.0"


def rules(words: str, image: str = V24, env: str = "") -> dict[str, str]:
    line = RUN.format(image=image, words=words, env=env)
    return {finding.rule: finding.says for finding in firesteel.check(line)}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--max-num-queued-reqs 9", "first in 0.29.0"),
        ("--moe-bakend marlin", "did you mean `--moe-backend`?"),
        ("--zzz 1", "no release had it"),
    ],
)
def test_a_flag_that_the_release_has_not(words: str, says: str) -> None:
    assert says in rules(words)["flag-unknown"]


def test_values_and_keys_that_the_release_refuses() -> None:
    assert "it takes auto," in rules("--kv-cache-dtype fp9")["value-refused"]
    assert "first in 0.29" in rules("--moe-backend b12x")["value-refused"]
    spec = '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2, "nonsense": 1}\''
    assert '"nonsense" in --speculative-config' in rules(spec)["value-refused"]


def test_variables_that_the_release_does_not_read() -> None:
    assert "no release read it" in rules("", env="-e VLLM_NONSENSE=1")["variable-unread"]
    assert "variable-unread" not in rules("", env="-e VLLM_API_KEY=x -e NCCL_DEBUG=INFO")


def test_a_rule_that_knows_more_is_shown_instead() -> None:
    found = rules("--swap-space 4")
    assert "vllm-swap-space-gone" in found and "flag-unknown" not in found


@pytest.mark.parametrize(
    "image", ["nvcr.io/nvidia/vllm:26.04-py3 vllm serve", "vllm/vllm-openai:nightly", "me/mine:1 vllm serve"]
)
def test_forks_and_unknown_releases_are_not_judged(image: str) -> None:
    assert "flag-unknown" not in rules("--zzz 1", image=image)


@pytest.mark.parametrize("words", ["--gpu-memory-util 0.8", "-tp 1", "--no-enable-prefix-caching", "-O3"])
def test_spellings_that_the_parser_takes(words: str) -> None:
    assert "flag-unknown" not in rules(words)
