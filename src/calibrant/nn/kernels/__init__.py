"""Fused kernels for CUDA devices; each has a plain PyTorch twin that is its reference."""
