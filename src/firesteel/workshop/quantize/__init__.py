"""Quantize a checkpoint: BF16, FP16, FP32 or FP8-block in, compressed-tensors out, in bounded memory.

Plans from headers (`plan_quantization`), then runs the plan (`run_quantization`), which can be killed and goes on.
Never needs torch, a GPU or the memory of a shard. See DESIGN.md.
"""
