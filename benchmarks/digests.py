"""How fast weights are compared with their digests, and what a start pays that reads none again.

    python benchmarks/digests.py [GIB]

The files are new and in the page cache: this is the speed of reading and hashing, not of a disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import tempfile
import time
from pathlib import Path

from firesteel.edge.hub.files import DigestResult, HubFile, StoredFile, VerifiedFiles
from firesteel.units import GB, GIB, MIB

FILES = 4


def write(folder: Path, size: int) -> list[StoredFile]:
    piece, files = random.Random(1).randbytes(64 * MIB), []
    for number in range(FILES):
        path, digest = folder / f"{number}.safetensors", hashlib.sha256()
        with path.open("wb") as file:
            for part in range(size // len(piece)):
                file.write(bytes([number, part]) + piece[2:])
                digest.update(bytes([number, part]) + piece[2:])
        files.append(StoredFile(HubFile(path.name, path.stat().st_size, digest.hexdigest()), path))
    return files


async def compare(verified: VerifiedFiles, files: list[StoredFile]) -> DigestResult:
    results = [result async for result in verified.compare(files)]
    assert isinstance(results[-1], DigestResult) and not results[-1].damaged
    return results[-1]


def main() -> None:
    total = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    with tempfile.TemporaryDirectory() as name:
        files = write(Path(name), round(total * GIB / FILES))
        verified = VerifiedFiles(Path(name) / "verified.json")
        began = time.monotonic()
        hashlib.sha256(files[0].path.read_bytes()).digest()
        one_s = time.monotonic() - began
        rates = [
            result.read_bytes / result.seconds / GB
            for result in (asyncio.run(compare(verified, files)) for _ in range(3))
        ]
        began = time.monotonic()
        assert verified.unread(files) == ()
        unread_s = time.monotonic() - began
    alone = files[0].file.bytes / one_s / GB
    print(f"all bytes: {max(rates):.2f} GB/s in four threads, {max(rates) / alone:.1f} x one plain sha256")
    print(f"a start that reads nothing again: {1000 * unread_s:.1f} ms for {FILES} files")


if __name__ == "__main__":
    main()
