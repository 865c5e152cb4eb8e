"""Model architectures, their tensors by role, and how quantization stores them."""
