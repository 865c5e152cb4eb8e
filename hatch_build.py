"""Puts two things into a wheel that are made from its sources: the shipped data as one file, and a kernel.

`firesteel/data.json` holds what the YAML files hold (`shipped_data.py`). The C kernel of `quantize` is
compiled where there is a C compiler; a wheel with it is for one platform, and for every Python: ctypes loads
it.
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


class WheelBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """An editable install makes both at the first use instead: they follow its sources and processor."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        self._add_data(build_data)
        self._add_kernels(build_data)

    def _add_data(self, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, str(Path(self.root) / "src"))
        from firesteel import shipped_data

        compiled = Path(self._folder.name) / shipped_data.BUILT.name
        compiled.write_bytes(shipped_data.compile_data(shipped_data.DATA))
        build_data["force_include"][str(compiled)] = f"firesteel/{compiled.name}"

    def _add_kernels(self, build_data: dict[str, Any]) -> None:
        compiling = runpy.run_path(str(Path(self.root) / "src" / KERNELS / "compiler.py"))
        compiler = compiling["find_compiler"](os.environ)
        if sys.platform != "linux" or compiler is None:
            return
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
