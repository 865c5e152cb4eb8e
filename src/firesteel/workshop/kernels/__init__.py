"""Arithmetic on weights: quantize and dequantize blocks of rows, in numpy and in C with the same bits.

    reference       BF16, E4M3, E2M1 and E8M0 <-> FP32; FP32 or BF16 -> stored tensors, in numpy
    native          the same in C, compiled once
    dequantize      stored tensors -> FP32, by format

Pure but for `native`, which compiles a file of C once. numpy is needed: `pip install "firesteel[workshop]"`.
"""
