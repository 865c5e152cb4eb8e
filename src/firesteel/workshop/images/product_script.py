"""A square matrix product in each format: how fast, and is it right? Runs inside an image, with torch alone.

    python3 -c "$(cat workshop/images/product_script.py)" bf16 fp8 nvfp4

Prints a line of JSON. Imports nothing of firesteel, which the image does not have.
"""

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

CHECKED_ROWS = 16
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of E2M1 without their sign, which is its fourth bit."""

Product = tuple[Callable[[], Any], Any, Any]
"""The product, and both operands as FP32."""


def bf16(torch: Any, size: int, device: str) -> Product:
    first, second = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return lambda: first @ second.t(), first.float(), second.float()


def fp8(torch: Any, size: int, device: str) -> Product:
    first, second = (torch.randn(size, size, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=device)
    return (
        lambda: torch._scaled_mm(first, second.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
        first.float(),
        second.float(),
    )


def nvfp4(torch: Any, size: int, device: str) -> Product:
    """Two values in a byte, the first in its lower half; a scale of 1 for every 16 values."""
    packed = [torch.randint(256, (size, size // 2), device=device, dtype=torch.uint8) for _ in range(2)]
    table = torch.tensor([*FP4, *(-value for value in FP4)], device=device)
    plain = [
        table[torch.stack((codes & 15, codes >> 4), dim=-1).reshape(size, size).int()] for codes in packed
    ]
    first, second = (codes.view(torch.float4_e2m1fn_x2) for codes in packed)
    scales = torch.ones(size * size // 16, device=device).to(torch.float8_e4m3fn)
    return (
        lambda: torch._scaled_mm(first, second.t(), scale_a=scales, scale_b=scales, out_dtype=torch.bfloat16),
        plain[0],
        plain[1],
    )


FORMATS = {"bf16": bf16, "fp8": fp8, "nvfp4": nvfp4}


def measured(torch: Any, name: str, size: int, device: str) -> dict[str, Any]:
    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    try:
        product, first, second = FORMATS[name](torch, size, device)
        result = product()[:CHECKED_ROWS].float()
        expected = first[:CHECKED_ROWS] @ second.t()
        error = float((result - expected).norm() / expected.norm())
        seconds = []
        for _ in range(5):  # the first ones warm it up; the median leaves them out
            wait()
            began = time.perf_counter()
            for _ in range(10):
                product()
            wait()
            seconds.append((time.perf_counter() - began) / 10)
        tflops = 2 * size**3 / statistics.median(seconds) / 1e12
        return {"format": name, "size": size, "tflops": tflops, "error": error, "failed": None}
    # How torch refuses a format, by release: no such type, no such argument, a kernel that this GPU does not
    # have. That is a result, which the build judges.
    except (RuntimeError, AttributeError, TypeError, ValueError) as reason:
        failed = (str(reason).splitlines() or [type(reason).__name__])[0][:300]
        return {"format": name, "size": size, "tflops": None, "error": None, "failed": failed}


def main(names: list[str]) -> None:
    torch = importlib.import_module("torch")
    torch.manual_seed(1)
    has_gpu = torch.cuda.is_available()
    device, size = ("cuda", 8192) if has_gpu else ("cpu", 256)
    products = [measured(torch, name, size, device) for name in names]
    gpu = torch.cuda.get_device_name() if has_gpu else None
    sys.stdout.write(json.dumps({"gpu": gpu, "torch": torch.__version__, "products": products}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
