"""What decides a build: the shipped recipe reads, and its settings follow the GPUs at hand."""

from __future__ import annotations

import pytest

from firesteel.edge.native.build import job_count
from firesteel.edge.native.build_recipe import architecture, build_recipe, build_settings
from firesteel.facts.host.hardware import Gpu
from firesteel.units import GIB

_GB10, _H200 = Gpu("NVIDIA GB10", "580.95", "12.1"), Gpu("NVIDIA H200", "580.95", "9.0", 141 * GIB)


@pytest.mark.parametrize(
    ("compute_capability", "expected"), [("12.1", "121a-real"), ("9.0", "90-real"), ("8.9", "89-real")]
)
def test_each_gpu_gets_machine_code_of_its_own(compute_capability: str, expected: str) -> None:
    assert architecture(build_recipe(), compute_capability) == expected


def test_without_a_gpu_nothing_speaks_of_cuda() -> None:
    settings = build_settings(build_recipe(), "11434", "digest", ())
    assert not settings.uses_gpu
    assert not any("CUDA" in name for name in settings.options)
    assert settings.options["LLAMA_BUILD_NUMBER"] == "11434"


def test_what_changes_the_result_changes_the_key() -> None:
    recipe = build_recipe()
    keys = [
        build_settings(recipe, "11434", "digest", ()).key,
        build_settings(recipe, "11434", "digest", (_GB10,)).key,
        build_settings(recipe, "11434", "digest", (_GB10, _H200)).key,
        build_settings(recipe, "11434", "other", ()).key,
        build_settings(recipe, "11435", "digest", ()).key,
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == build_settings(recipe, "11434", "digest", ()).key


def test_compilers_never_get_more_memory_than_there_is() -> None:
    assert job_count(3 * GIB, uses_gpu=True) == 1
    assert job_count(0, uses_gpu=False) == 1
    assert 1 <= job_count(1000 * GIB, uses_gpu=True) <= 1024
