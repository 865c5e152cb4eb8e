"""The kernels: numpy and C agree to the bit, and what they write can be read back."""

from __future__ import annotations

import os
import platform
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from firesteel.workshop.kernels import compiler, dequantize, native, reference
from firesteel.workshop.kernels.reference import NotFinite, Quantized
from tests.needs import needs_compiler, skip_elsewhere
from tests.workshop import made_weights


@pytest.fixture(scope="module")
def c_kernel(tmp_path_factory: pytest.TempPathFactory) -> native.Kernel:
    if compiler.find_compiler(os.environ) is None:
        skip_elsewhere("needs a C compiler (Debian: gcc)")
    kernel = native.load_kernel(tmp_path_factory.mktemp("kernels"))
    assert kernel.name == "C"
    return kernel


SHAPES = [(1, 32), (5, 96), (130, 160), (256, 384)]
WEIGHTS = [
    make(f"{make.__name__} {shape}", shape)
    for shape in SHAPES
    for make in (made_weights.bf16_bits, made_weights.f32)
]


def quantized(kernel: Any, weight: NDArray[Any]) -> dict[str, Quantized]:
    divisor = reference.global_scale(reference.amax(weight), weight.dtype == np.uint16)
    return {
        "fp8_rows": kernel.fp8_rows(weight),
        "fp8_block": kernel.fp8_block(weight),
        "nvfp4": kernel.nvfp4(weight, divisor),
        "mxfp4": kernel.mxfp4(weight),
    }


@pytest.mark.parametrize("weight", WEIGHTS, ids=lambda weight: f"{weight.dtype}-{weight.shape}")
def test_c_and_numpy_agree_to_the_bit(weight: NDArray[Any], c_kernel: native.Kernel) -> None:
    ours, theirs = quantized(c_kernel, weight), quantized(reference, weight)
    assert c_kernel.amax(weight) == reference.amax(weight)
    for name, by_numpy in theirs.items():
        np.testing.assert_array_equal(ours[name].values, by_numpy.values, name)
        np.testing.assert_array_equal(ours[name].scales, by_numpy.scales, name)
        assert ours[name].error == pytest.approx(by_numpy.error, rel=1e-4), name
        assert ours[name].norm == pytest.approx(by_numpy.norm, rel=1e-5), name


def test_every_bf16_agrees_as_the_largest_of_a_row(c_kernel: native.Kernel) -> None:
    """The C kernel leaves out the limit of 448 where a scale in BF16 cannot be far enough off."""
    largest = np.arange(1, 0x7F80, dtype=np.uint16)[:, None]
    below = np.maximum(largest.astype(np.int32) - np.arange(0, 510, 10), 0).astype(np.uint16)
    weight = np.concatenate([largest, largest | 0x8000, below], axis=1)
    ours, theirs = c_kernel.fp8_rows(weight), reference.fp8_rows(weight)
    np.testing.assert_array_equal(ours.values, theirs.values)
    np.testing.assert_array_equal(ours.scales, theirs.scales)


@given(st.lists(st.floats(-500, 500, width=32), min_size=32, max_size=32), st.booleans())
def test_any_weights_agree(c_kernel: native.Kernel, values: list[float], is_bf16: bool) -> None:
    weight: NDArray[Any] = np.array([values], np.float32)
    weight = reference.f32_to_bf16(weight) if is_bf16 else weight
    theirs = quantized(reference, weight)
    for name, result in quantized(c_kernel, weight).items():
        np.testing.assert_array_equal(result.values, theirs[name].values, name)
        np.testing.assert_array_equal(result.scales, theirs[name].scales, name)


@pytest.mark.parametrize("weight", WEIGHTS, ids=lambda weight: f"{weight.dtype}-{weight.shape}")
def test_what_was_written_reads_back_with_the_error_that_was_told(weight: NDArray[Any]) -> None:
    values = reference.as_f32(weight).astype(np.float64)
    is_bf16 = weight.dtype == np.uint16
    divisor = reference.global_scale(reference.amax(weight), is_bf16)
    results = quantized(reference, weight)
    scales = {
        name: reference.bf16_to_f32(result.scales) if is_bf16 else result.scales
        for name, result in results.items()
    }
    read = {
        "fp8_rows": dequantize.fp8(results["fp8_rows"].values, scales["fp8_rows"]),
        "fp8_block": dequantize.fp8_block(results["fp8_block"].values, scales["fp8_block"]),
        "nvfp4": dequantize.nvfp4(results["nvfp4"].values, results["nvfp4"].scales, 1 / divisor),
        "mxfp4": dequantize.mxfp4(results["mxfp4"].values, results["mxfp4"].scales),
    }
    for name, decoded in read.items():
        assert float(np.square(decoded - values).sum()) == pytest.approx(results[name].error, rel=1e-3), name
        assert results[name].error < (0.05 if "fp8" in name else 0.2) ** 2 * results[name].norm, name


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_weight_that_is_not_finite_is_refused(bad: float, c_kernel: native.Kernel) -> None:
    weight = np.ones((2, 32), np.float32)
    weight[1, 20] = bad
    for array in (weight, (weight.view(np.uint32) >> 16).astype(np.uint16)):
        for kernel in (reference, c_kernel):
            for function in (kernel.amax, kernel.fp8_rows, kernel.fp8_block, kernel.mxfp4):
                with pytest.raises(NotFinite):
                    function(array)
            with pytest.raises(NotFinite):
                kernel.nvfp4(array, 1.0)


def test_every_e4m3_and_e2m1_reads_back_as_itself() -> None:
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    np.testing.assert_array_equal(reference.f32_to_e4m3(reference.e4m3_to_f32(codes)), codes)
    nibbles = np.array([code for code in range(16) if code != 8], np.uint8)  # -0 is not negative
    np.testing.assert_array_equal(reference.f32_to_e2m1(reference.e2m1_to_f32(nibbles)), nibbles)


def test_columns_that_are_no_multiple_of_the_group_are_refused(c_kernel: native.Kernel) -> None:
    for kernel in (reference, c_kernel):
        with pytest.raises(ValueError):
            kernel.nvfp4(np.ones((2, 24), np.float32), 1.0)


@needs_compiler
def test_a_kernel_is_compiled_once(tmp_path: Path) -> None:
    native.load_kernel(tmp_path)
    (library,) = tmp_path.glob("*.so")
    before = library.stat().st_mtime_ns
    assert native.load_kernel(tmp_path).name == "C"
    assert library.stat().st_mtime_ns == before


def test_without_a_compiler_or_a_place_to_write_numpy_does_it(tmp_path: Path) -> None:
    assert native.load_kernel(tmp_path, {"PATH": str(tmp_path)}).name == "numpy"
    assert native.load_kernel(tmp_path, {"PATH": "/usr/bin:/bin", "CC": "false"}).name == "numpy"
    file = tmp_path / "file"
    file.touch()
    assert native.load_kernel(file).name == "numpy"


def test_the_kernel_of_a_wheel_is_used_where_no_compiler_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, c_kernel: native.Kernel
) -> None:
    found = compiler.find_compiler(os.environ)
    assert found
    shipped = tmp_path / "wheel"
    for level in compiler.LEVELS[platform.machine()]:
        compiler.compile_kernel(found, shipped / compiler.shipped_name(level), f"-march={level}")
    monkeypatch.setattr(compiler, "shipped_kernels", partial(compiler.shipped_kernels, folder=shipped))
    nowhere = {"PATH": str(tmp_path)}
    assert native.load_kernel(tmp_path, nowhere).name == "C"
    best, *others = compiler.LEVELS[platform.machine()]
    (shipped / compiler.shipped_name(best)).unlink()  # not written over: it is loaded
    (shipped / compiler.shipped_name(best)).write_bytes(b"damaged")
    assert native.load_kernel(tmp_path, nowhere).name == ("C" if others else "numpy")


def test_a_processor_gets_no_kernel_that_it_cannot_run(tmp_path: Path) -> None:
    levels = compiler.LEVELS[platform.machine()]
    for level in levels:
        (tmp_path / compiler.shipped_name(level)).touch()
    plain = [level for level, needed in levels.items() if not needed]
    assert [path.name for path in compiler.shipped_kernels(frozenset(), tmp_path)] == [
        compiler.shipped_name(level) for level in plain
    ]


@needs_compiler
def test_a_kernel_that_computes_wrongly_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / "wrong.c"
    wrong.write_text(compiler.SOURCE.read_text().replace("448.0f", "440.0f"))
    monkeypatch.setattr(compiler, "SOURCE", wrong)
    assert native.load_kernel(tmp_path / "home").name == "numpy"
    assert list((tmp_path / "home").glob("*.so")), "it was compiled"
