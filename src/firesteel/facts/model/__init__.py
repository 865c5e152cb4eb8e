"""Model architectures, their tensors by role, and how quantization stores them.

`config` reads a config.json, `parameters` lists its tensors, `quantization` and `typical` size them.
"""
