"""Compiles the C kernel: for this processor where it runs, and for levels of processors into a wheel.

Needs only the standard library: `hatch_build.py` runs it before anything is installed.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.c")
COMPILE_S = 120
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-w")
LEVELS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "x86_64": {
        "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
        "x86-64-v3": frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}),
        "x86-64": frozenset(),
    },
    "aarch64": {"armv8-a": frozenset()},
}
"""By machine: what `-march` takes, the best first, and the flags in /proc/cpuinfo that it needs."""


def find_compiler(environ: Mapping[str, str]) -> str | None:
    names = (environ["CC"],) if environ.get("CC") else _COMPILERS
    return next(filter(None, (shutil.which(name, path=environ.get("PATH")) for name in names)), None)


def compile_kernel(compiler: str, library: Path, *targets: str) -> None:
    """For the first target that the compiler knows; "" is its own default."""
    library.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        for target in targets:
            command = [compiler, *([target] if target else []), *_FLAGS, "-o", str(made), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_S, check=False)
            if done.returncode == 0:
                made.replace(library)
                return
    raise OSError(f"{compiler} cannot compile {SOURCE.name}")


def shipped_name(level: str) -> str:
    return f"kernels-{level}.so"


def shipped_kernels(cpu_flags: frozenset[str], folder: Path = SOURCE.parent) -> Iterator[Path]:
    """Those of a wheel that this processor runs, the fastest first."""
    for level, needed in LEVELS.get(platform.machine(), {}).items():
        if needed <= cpu_flags and (folder / shipped_name(level)).exists():
            yield folder / shipped_name(level)
