"""GPU code in libraries, held against what NVIDIA's own `cuobjdump` lists.

The libraries were built by nvcc 13.4 (sm90: 13.0) from a kernel of one line (`-cudart none`), for several
architectures, with PTX and with compressed code; the .txt beside each is `cuobjdump --list-elf --list-ptx` of
it, counted.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.facts.gpu_code import GpuCode, NotElf, gpu_code

FOLDER = Path(__file__).parent / "gpu_code"
LIBRARIES = sorted(FOLDER.glob("*.so"))


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.stem)
def test_code_is_what_cuobjdump_lists(library: Path) -> None:
    listed = re.findall(r"sm_(\w+)\.(cubin|ptx)", library.with_suffix(".txt").read_text())
    code = gpu_code(library.read_bytes())
    # cuobjdump does not show the `f` of a family.
    assert {name.removeprefix("sm_").rstrip("f") for name in code.machine} == {
        name for name, kind in listed if kind == "cubin"
    }
    assert {name.removeprefix("compute_") for name in code.ptx} == {
        name for name, kind in listed if kind == "ptx"
    }


def test_a_family_is_told_from_one_chip() -> None:
    assert gpu_code((FOLDER / "family.so").read_bytes()).machine == ("sm_120f",)


@pytest.mark.parametrize(
    ("machine", "ptx", "on_gb10"),
    [
        (("sm_121a",), (), "as it is"),
        (("sm_120",), (), "as it is"),
        (("sm_120f",), (), "as it is"),
        (("sm_120a",), (), "not at all"),
        (("sm_90a", "sm_100"), ("compute_90",), "after a JIT"),
        (("sm_90",), ("compute_90a",), "not at all"),
        ((), (), "not at all"),
    ],
)
def test_what_runs_on_a_gb10(machine: tuple[str, ...], ptx: tuple[str, ...], on_gb10: str) -> None:
    assert GpuCode(machine, ptx).runs_on("12.1") == on_gb10


def test_a_library_without_gpu_code_has_none_and_other_files_are_refused() -> None:
    assert gpu_code((FOLDER / "none.so").read_bytes()) == GpuCode((), ())
    for data in (b"", b"#!/bin/sh\n" * 20, b"\x7fELF" + bytes(100)):
        with pytest.raises(NotElf):
            gpu_code(data)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(LIBRARIES), st.data())
def test_damaged_libraries_end_in_an_answer_or_a_refusal(library: Path, data: st.DataObject) -> None:
    content = bytearray(library.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for damaged in (content, content[:cut]):
        try:
            gpu_code(bytes(damaged))
        except NotElf:
            continue
