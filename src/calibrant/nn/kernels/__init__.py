"""Fused kernels for CUDA devices. Each has a plain PyTorch version, which is its reference."""
