"""A short load on the GPU through the driver alone: arithmetic on all cores, then copies in its memory.

    python -m firesteel.hosts.doctor.gpu_load 3       prints JSON: bytes per second, and the name of the GPU

In a separate process, so that a driver in distress cannot take the caller with it and all memory is given
back. Needs no CUDA toolkit: `libcuda` compiles the few lines of PTX below for whatever GPU there is.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

from firesteel.units import GIB, MIB

_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry burn(.param .u64 out, .param .u32 rounds) {
  .reg .pred %p; .reg .u32 %i, %n, %t; .reg .f32 %a, %b, %c; .reg .u64 %o;
  ld.param.u64 %o, [out];
  ld.param.u32 %n, [rounds];
  mov.u32 %t, %tid.x;
  cvt.rn.f32.u32 %a, %t;
  mov.f32 %b, 0f3F7FFF58;
  mov.f32 %c, 0f3A83126F;
  mov.u32 %i, 0;
again:
  fma.rn.f32 %a, %a, %b, %c;
  fma.rn.f32 %a, %a, %b, %c;
  fma.rn.f32 %a, %a, %b, %c;
  fma.rn.f32 %a, %a, %b, %c;
  add.u32 %i, %i, 1;
  setp.lt.u32 %p, %i, %n;
  @%p bra again;
  st.global.f32 [%o], %a;
  ret;
}
"""
_ROUNDS, _BLOCKS, _THREADS = 20_000, 4096, 256
_COPY_BYTES = 256 * MIB


class GpuLoadFailed(Exception):
    """The driver refused."""


class _Driver:
    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise GpuLoadFailed(f"{name} failed with {code}")


def run(seconds: float) -> dict[str, float | str]:
    driver = _Driver()
    driver.call("cuInit", 0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver.call("cuDeviceGet", ctypes.byref(device), 0)
    name = ctypes.create_string_buffer(100)
    driver.call("cuDeviceGetName", name, 100, device)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.call("cuCtxSetCurrent", context)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    if free.value < 2 * GIB:
        raise GpuLoadFailed("less than 2 GiB of memory are free for the GPU")
    source, target = ctypes.c_uint64(), ctypes.c_uint64()
    driver.call("cuMemAlloc_v2", ctypes.byref(source), ctypes.c_size_t(_COPY_BYTES))
    driver.call("cuMemAlloc_v2", ctypes.byref(target), ctypes.c_size_t(_COPY_BYTES))
    rate = _copy(driver, source, target)
    _burn(driver, target, seconds)
    # Read and written once each.
    return {"gpu": name.value.decode(), "bytes_per_s": 2 * rate}


def _copy(driver: _Driver, source: ctypes.c_uint64, target: ctypes.c_uint64, times: int = 20) -> float:
    size, best = ctypes.c_size_t(_COPY_BYTES), 0.0
    for _ in range(3):
        driver.call("cuCtxSynchronize")
        began = time.perf_counter()
        for _ in range(times):
            driver.call("cuMemcpyDtoDAsync_v2", target, source, size, None)
        driver.call("cuCtxSynchronize")
        best = max(best, times * _COPY_BYTES / (time.perf_counter() - began))
    return best


def _burn(driver: _Driver, target: ctypes.c_uint64, seconds: float) -> None:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuModuleLoadData", ctypes.byref(module), _PTX)
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"burn")
    rounds = ctypes.c_uint32(_ROUNDS)
    parameters = (ctypes.c_void_p * 2)(
        ctypes.cast(ctypes.byref(target), ctypes.c_void_p), ctypes.cast(ctypes.byref(rounds), ctypes.c_void_p)
    )
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        driver.call("cuLaunchKernel", function, _BLOCKS, 1, 1, _THREADS, 1, 1, 0, None, parameters, None)
        driver.call("cuCtxSynchronize")


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(run(float(sys.argv[1]))))
    except (OSError, GpuLoadFailed) as error:
        sys.exit(str(error))
