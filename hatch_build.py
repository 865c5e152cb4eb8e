"""Puts the C kernel of `quantize` into a wheel, where a C compiler is; without one the wheel has none.

A wheel with it is for one platform, and for every Python: ctypes loads the kernel.
"""

from __future__ import annotations

import os
import platform
import runpy
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = "firesteel/workshop/kernels"


class KernelBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """An editable install compiles for its own processor instead, at the first use."""
        compiling = runpy.run_path(str(Path(self.root) / "src" / KERNELS / "compiler.py"))
        compiler = compiling["find_compiler"](os.environ)
        if version == "editable" or sys.platform != "linux" or compiler is None:
            return
        self._folder = tempfile.TemporaryDirectory()
        for level in compiling["LEVELS"].get(platform.machine(), {}):
            library = Path(self._folder.name) / compiling["shipped_name"](level)
            try:
                compiling["compile_kernel"](compiler, library, f"-march={level}")
            except OSError as error:
                self.app.display_warning(f"without the kernel for {level}: {error}")
                continue
            build_data["force_include"][str(library)] = f"{KERNELS}/{library.name}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
