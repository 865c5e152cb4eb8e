"""Quantize a checkpoint: BF16, FP16, FP32 or FP8-block in, compressed-tensors out, in bounded memory.

Plans from headers (`plan_quantization`) and runs the plan (`run_quantization`); a killed run can be resumed.
Never needs torch, a GPU or the memory of a shard. See DESIGN.md.
"""
