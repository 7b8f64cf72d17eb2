"""Smoothing on a GPU: share of a plain copy's bandwidth, and what it adds to a network's step. Ratios, one process.

python benchmarks/smoothing.py [--json]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from calibrant.nn.smoothing import Smooth, reference


def milliseconds(f: Any, repeats: int = 30) -> float:
    """Median over repeats, by events on the device."""
    for _ in range(5):
        f()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        f()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def bandwidth(kernel: tuple[int, ...], channels_last: bool, dtype: torch.dtype, padding: Any) -> dict[str, float]:
    """Forward moves 2 streams, backward 3; each against a copy (2 streams) of the same map."""
    x = torch.randn(256, 64, 112, 112, device="cuda", dtype=dtype)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    other, layer = torch.empty_like(x), Smooth(kernel, padding=padding)
    from calibrant.nn.kernels.smooth import smooth, smooth_backward

    taps = list(layer.blur.taps)
    copy = milliseconds(lambda: other.copy_(x))
    forward = milliseconds(lambda: smooth(x, taps, "tanh", 10.0, padding))
    backward = milliseconds(lambda: smooth_backward(x, other, taps, "tanh", 10.0, padding))
    with torch.no_grad(), reference():
        eager = milliseconds(lambda: layer(x), 5)
    return {
        "copy_ms": copy,
        "forward_ms": forward,
        "backward_ms": backward,
        "eager_ms": eager,
        "forward_share": copy / forward,
        "backward_share": 1.5 * copy / backward,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for kernel in ((1, 1), (1, 2, 1), (1, 4, 6, 4, 1)):
        for channels_last in (True, False):
            name = f"{kernel} {'channels-last' if channels_last else 'NCHW'} bf16"
            rows[name] = bandwidth(kernel, channels_last, torch.bfloat16, "replicate")
    rows["(1, 1) channels-last fp32"] = bandwidth((1, 1), True, torch.float32, "replicate")
    rows["(1, 1) channels-last bf16 reflect"] = bandwidth((1, 1), True, torch.bfloat16, "reflect")
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    for name, row in rows.items():
        print(f"{name:40s}", "  ".join(f"{k} {v:.3f}" for k, v in row.items()))


if __name__ == "__main__":
    main()
