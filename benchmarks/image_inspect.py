"""What `image inspect` costs: a million files and a large library; or the libraries of a real wheel.

    PYTHONPATH=src:. .venv-dev/bin/python benchmarks/image_inspect.py [WHEEL [CUOBJDUMP]]

Memory is the peak of the process beyond what it had before. With a wheel (vLLM's, say) its libraries are laid
into an image and read from there; with cuobjdump every answer is compared with its.
"""

from __future__ import annotations

import io
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.workshop.images.made_images import gpu_library, layer, write_layout

from firesteel.workshop.images.contents import GpuLibrary
from firesteel.workshop.images.inspect import inspect_image
from firesteel.workshop.images.layers import Counts, Layer, visible_files
from firesteel.workshop.images.sources import open_image


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        if len(sys.argv) > 1:
            wheel(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None, folder)
        else:
            million_files(folder)
            large_library(folder)
    finally:
        shutil.rmtree(folder)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def million_files(folder: Path) -> None:
    """A million empty files in two layers, in different folders: half of them must be remembered."""
    for name in ("lower", "upper"):
        with tarfile.open(folder / f"{name}.tar", "w") as archive:
            members: list[tarfile.TarInfo] = vars(archive)["members"]
            for index in range(500_000):
                archive.addfile(tarfile.TarInfo(f"{name}/folder{index % 1000}/file{index}"))
                members.clear()  # or their memory hides what is measured
    before, began = peak_mib(), time.process_time()
    layers = [_layer(folder / f"{name}.tar") for name in ("lower", "upper")]
    count = sum(1 for _ in visible_files(layers, Counts()))
    spent = time.process_time() - began
    print(f"{count:,} files in two layers: {spent:.0f} CPU s, {peak_mib() - before:.0f} MiB more memory")


def _layer(path: Path) -> Layer:
    @contextmanager
    def opened() -> Iterator[IO[bytes]]:
        with path.open("rb") as file:
            yield file

    return Layer(path.name, path.stat().st_size, None, opened)


def large_library(folder: Path) -> None:
    """A library of 256 MiB, which goes through a file and not through memory."""
    library = gpu_library("many")
    made = write_layout(folder / "large", [layer({"lib/large.so": library + bytes(2**28)})], compress=False)
    began = time.process_time()
    report = inspect_image(open_image(str(made)), folder)
    spent = time.process_time() - began
    assert report.gpu_libraries[0].machine[-1] == "sm_121a"
    print(f"a library of 256 MiB: {spent:.1f} CPU s")


def wheel(path: Path, cuobjdump: str | None, folder: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(path) as archive, tarfile.open(fileobj=data, mode="w") as tar:
        for member in archive.infolist():
            info = tarfile.TarInfo(f"usr/lib/python3/dist-packages/{member.filename}")
            info.size = member.file_size
            with archive.open(member) as file:
                tar.addfile(info, file)
    made = write_layout(folder / "wheel", [data.getvalue()], compress=False)
    size = len(data.getvalue())
    del data
    began = time.process_time()
    report = inspect_image(open_image(str(made)), folder)
    spent = time.process_time() - began
    print(
        f"{path.name}: {size / 2**20:.0f} MiB, {spent:.1f} CPU s, "
        f"{len(report.gpu_libraries)} libraries with GPU code"
    )
    with zipfile.ZipFile(path) as archive:
        for library in report.gpu_libraries:
            print(f"  {library.path}: {', '.join((*library.machine, *library.ptx))}; {library.on_gb10}")
            if cuobjdump:
                _compare(archive, library.path.partition("dist-packages/")[2], library, cuobjdump, folder)


def _compare(archive: zipfile.ZipFile, name: str, library: GpuLibrary, cuobjdump: str, folder: Path) -> None:
    copy = Path(archive.extract(name, folder / "libraries"))
    listed = subprocess.run(
        [cuobjdump, "--list-elf", "--list-ptx", str(copy)], capture_output=True, text=True, check=False
    ).stdout
    found = set(re.findall(r"sm_(\w+)\.(cubin|ptx)", listed))
    ours = {(arch.removeprefix("sm_").rstrip("f"), "cubin") for arch in library.machine}
    ours |= {(arch.removeprefix("compute_").rstrip("f"), "ptx") for arch in library.ptx}
    print(f"    {'equal to cuobjdump' if ours == found else f'cuobjdump lists {sorted(found)}'}")
    copy.unlink()


if __name__ == "__main__":
    main()
