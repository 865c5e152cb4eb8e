"""What a checkpoint on disk holds, read without firesteel."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def raw_tensors(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        header.pop("__metadata__", None)
        for name, info in header.items():
            first, last = (start + offset for offset in info["data_offsets"])
            found[name] = info["dtype"], info["shape"], content[first:last]
    return dict(sorted(found.items()))


def digests(folder: Path) -> dict[str, list[str]]:
    """As `scripts/record-quantize-oracle` writes them."""
    return {
        name: [dtype, "x".join(map(str, shape)), hashlib.sha256(data).hexdigest()[:32]]
        for name, (dtype, shape, data) in raw_tensors(folder).items()
    }
