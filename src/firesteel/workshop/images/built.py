"""What a build makes: an image that is verified, and one that has its tag; with its matrix products in the
formats that it is for, as a share of the GPU's peak. A wrong product refuses the image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firesteel.edge.docker.containers import last_line
from firesteel.edge.host import process
from firesteel.errors import FiresteelError
from firesteel.facts.host.gpus import peak_tflops
from firesteel.values import Value

SCRIPT = Path(__file__).with_name("product_script.py")
_MAX_ERROR = 0.02
"""Of the result, relative; rounding to BF16 leaves 0.002, kernels for another GPU leave noise."""


class MatrixProduct(Value):
    format: str
    gpu: str
    tflops: float
    peak_share: float | None
    """None: the peak of this GPU is not known."""


async def measure_products(image_id: str, formats: tuple[str, ...]) -> tuple[MatrixProduct, ...]:
    """Raises with the reason when a product fails or is wrong."""
    if not formats:
        return ()
    options = ("--rm", "--gpus", "all", "--network", "none", "--entrypoint", "python3")
    code, output = await process.run(
        "docker", "run", *options, image_id, "-c", SCRIPT.read_text("utf-8"), *formats
    )
    if code:
        raise FiresteelError(
            f"its torch multiplies no matrices: {last_line(output)}",
            next=f"docker run --rm --gpus all --entrypoint python3 {image_id} -c 'import torch'",
        )
    return read_products(output)


def read_products(output: str) -> tuple[MatrixProduct, ...]:
    """The last line of what the script printed: torch may warn before it."""
    document: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    gpu = document["gpu"]
    if gpu is None:
        raise FiresteelError("its torch finds no GPU", next="nvidia-smi, on this host and in the image")
    return tuple(_judged(gpu, found) for found in document["products"])


def _judged(gpu: str, found: dict[str, Any]) -> MatrixProduct:
    format, error = found["format"], found["error"]
    if found["failed"]:
        raise FiresteelError(
            f"no matrix product in {format} on {gpu}: {found['failed']}",
            next="the arch list of the recipe, or a newer torch",
        )
    if not error <= _MAX_ERROR:  # also wrong: a NaN
        raise FiresteelError(
            f"a matrix product in {format} on {gpu} is wrong by {error:.0%}",
            next="kernels built for another GPU do this: the arch list of the recipe",
        )
    peak = peak_tflops(gpu, format)
    return MatrixProduct(format, gpu, found["tflops"], found["tflops"] / peak if peak else None)


# --- what a build made ---

VERIFIED = "proved.json"
"""In the folder of a build."""


class VerifiedImage(Value):
    """An image that was built, inspected, started and verified. It has no tag yet."""

    id: str
    """`sha256:...`"""
    version: str
    uses_gpu: bool
    started: str
    seconds: float
    digests: Mapping[str, str]
    """Of bases that the recipe does not pin."""
    checks: tuple[str, ...]
    """Those that it passed."""
    folder: str
    """Dockerfile, log and, once it is tagged, provenance."""
    products: tuple[MatrixProduct, ...] = ()


class BuiltImage(Value, tag_field="document", tag="firesteel.image-build/1"):
    """`firesteel image build RECIPE --json`"""

    tag: str
    id: str
    engine: str
    version: str
    bytes: int
    seconds: float
    verified: tuple[str, ...]
    products: tuple[MatrixProduct, ...]
    folder: str
