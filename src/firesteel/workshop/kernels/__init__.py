"""Arithmetic on weights: quantize and dequantize blocks of rows, in numpy and in C with the same bits.

    float_formats   BF16, E4M3, E2M1 and E8M0 <-> FP32
    dequantize      stored tensors -> FP32, by format
    quantize        FP32 or BF16 -> stored tensors, by format; `reference` in numpy, `native` in C

Pure but for `native`, which compiles a file of C once. numpy is needed: `pip install "firesteel[workshop]"`.
"""
