"""The C kernel: compiled once for this processor, kept under FIRESTEEL_HOME, checked before use.

    load_kernel(home.root / "kernels")     the C kernel, a wheel's own where no compiler is, or numpy

ctypes lets go of Python's lock during a call, so that threads use all cores.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from firesteel.workshop.kernels import compiler, reference
from firesteel.workshop.kernels.reference import NotFinite, Quantized


class Kernel(Protocol):
    """Quantizes blocks of rows. A weight is an array of float32, or of uint16 for the bits of BF16."""

    name: str

    def amax(self, weight: NDArray[Any]) -> float: ...
    def fp8_rows(self, weight: NDArray[Any]) -> Quantized: ...
    def fp8_block(self, weight: NDArray[Any]) -> Quantized: ...
    def nvfp4(self, weight: NDArray[Any], divisor: float) -> Quantized: ...
    def mxfp4(self, weight: NDArray[Any]) -> Quantized: ...


class NumpyKernel:
    name = "numpy"
    amax = staticmethod(reference.amax)
    fp8_rows = staticmethod(reference.fp8_rows)
    fp8_block = staticmethod(reference.fp8_block)
    nvfp4 = staticmethod(reference.nvfp4)
    mxfp4 = staticmethod(reference.mxfp4)


class CKernel:
    name = "C"

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def amax(self, weight: NDArray[Any]) -> float:
        weight, largest = _prepared(weight), ctypes.c_float()
        size, is_bf16 = ctypes.c_int64(weight.size), ctypes.c_int(weight.dtype == np.uint16)
        _require_finite(self._library.amax(_pointer(weight), size, is_bf16, ctypes.byref(largest)))
        return largest.value

    def fp8_rows(self, weight: NDArray[Any]) -> Quantized:
        return self._fp8(self._library.fp8_rows, weight, (weight.shape[0], 1))

    def fp8_block(self, weight: NDArray[Any]) -> Quantized:
        rows, columns = weight.shape
        block = reference.FP8_BLOCK
        return self._fp8(self._library.fp8_block, weight, (-(-rows // block), -(-columns // block)))

    def nvfp4(self, weight: NDArray[Any], divisor: float) -> Quantized:
        group = reference.NVFP4_GROUP
        return self._fp4(self._library.nvfp4, weight, group, ctypes.c_float(divisor))

    def mxfp4(self, weight: NDArray[Any]) -> Quantized:
        return self._fp4(self._library.mxfp4, weight, reference.MXFP4_GROUP)

    def _fp8(self, function: Any, weight: NDArray[Any], scales_shape: tuple[int, int]) -> Quantized:
        weight = _prepared(weight)
        scale_type = np.uint16 if weight.dtype == np.uint16 else np.float32
        return self._call(
            function, weight, np.empty(weight.shape, np.uint8), np.empty(scales_shape, scale_type)
        )

    def _fp4(self, function: Any, weight: NDArray[Any], group: int, *more: Any) -> Quantized:
        rows, columns = weight.shape
        if columns % group:
            raise ValueError(f"{columns} columns are not a multiple of {group}")
        packed = np.empty((rows, columns // 2), np.uint8)
        scales = np.empty((rows, columns // group), np.uint8)
        return self._call(function, _prepared(weight), packed, scales, *more)

    def _call(
        self, function: Any, weight: NDArray[Any], codes: NDArray[Any], scales: NDArray[Any], *more: Any
    ) -> Quantized:
        sums = np.zeros(2, np.float64)
        rows, columns = (ctypes.c_int64(length) for length in weight.shape)
        is_bf16 = ctypes.c_int(weight.dtype == np.uint16)
        arrays = (_pointer(array) for array in (codes, scales, sums))
        _require_finite(function(_pointer(weight), rows, columns, is_bf16, *more, *arrays))
        return Quantized(codes, scales, float(sums[0]), float(sums[1]))


def _prepared(weight: NDArray[Any]) -> NDArray[Any]:
    wanted = np.uint16 if weight.dtype == np.uint16 else np.float32
    return np.ascontiguousarray(weight, wanted)


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _require_finite(code: int) -> None:
    if code:
        raise NotFinite


# --- loading ---


def load_kernel(folder: Path, environ: Mapping[str, str] = os.environ) -> Kernel:
    """The C kernel that can be had and agrees with numpy; else numpy."""
    for library in _libraries(folder, environ):
        try:
            kernel = CKernel(library)
        except OSError:  # a folder that forbids execution, another C library
            continue
        if _agrees(kernel):
            return kernel
    return NumpyKernel()


def _libraries(folder: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    about = _about_cpu()
    native = "-mcpu=native" if platform.machine() == "aarch64" else "-march=native"
    if found := compiler.find_compiler(environ):
        try:
            library = folder / f"kernels-{_key(found, about)}.so"
            if not library.exists():
                compiler.compile_kernel(found, library, native, "")
            yield library
        except (OSError, subprocess.SubprocessError):  # no space, a broken compiler
            pass
    yield from compiler.shipped_kernels(frozenset(" ".join(about).split()))


def _about_cpu() -> list[str]:
    cpu = Path("/proc/cpuinfo")
    text = cpu.read_text("utf-8", "replace").split("\n\n")[0] if cpu.exists() else ""
    wanted = ("flags", "Features", "model name", "CPU part")
    return [line for line in text.splitlines() if line.startswith(wanted)]


def _key(found: str, about: Sequence[str]) -> str:
    """A library is for one source, compiler and processor."""
    version = subprocess.run(
        [found, "--version"], capture_output=True, timeout=compiler.COMPILE_S, check=True
    ).stdout
    parts = (compiler.SOURCE.read_bytes(), version, platform.machine().encode(), "\n".join(about).encode())
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).hexdigest()


def _agrees(kernel: Kernel) -> bool:
    """A compiler that breaks IEEE rules would be noticed here."""
    rng = np.random.default_rng(17)
    single = (rng.standard_normal((5, 96)) * np.exp2(rng.integers(-12, 3, (5, 96)))).astype(np.float32)
    for weight in (single, (single.view(np.uint32) >> np.uint32(16)).astype(np.uint16)):
        pairs = (
            (kernel.fp8_rows(weight), reference.fp8_rows(weight)),
            (kernel.fp8_block(weight), reference.fp8_block(weight)),
            (kernel.nvfp4(weight, 300.0), reference.nvfp4(weight, 300.0)),
            (kernel.mxfp4(weight), reference.mxfp4(weight)),
        )
        if not all(
            np.array_equal(a.values, b.values) and np.array_equal(a.scales, b.scales) for a, b in pairs
        ):
            return False
    return True
