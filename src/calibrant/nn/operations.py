"""Kinds of operations that surgery tells apart, by the names under which torch dispatches them."""

from __future__ import annotations

from typing import Any

CONVOLUTIONS = frozenset({"convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution"})
POOLS = frozenset({
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d",
})  # fmt: skip
RESIZES = frozenset({
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d",
    "upsample_bicubic2d", "_upsample_bicubic2d_aa", "pixel_unshuffle",
})  # fmt: skip
SPATIAL = CONVOLUTIONS | POOLS | RESIZES
NORMS = frozenset(
    {"native_batch_norm", "_native_batch_norm_legit_no_training", "native_group_norm", "cudnn_batch_norm"}
)
ACTIVATIONS = frozenset({
    "relu", "relu_", "clamp", "clamp_", "clamp_min", "clamp_min_", "hardtanh", "hardtanh_", "threshold", "threshold_",
})  # fmt: skip
"""ReLU and similar activations with a bound. `rectifies` tells which of them are ReLU itself."""
COPIES = frozenset({"clone", "contiguous", "_to_copy", "alias", "detach", "lift_fresh"})
VIEWS = frozenset({
    "view", "_unsafe_view", "_reshape_alias", "permute", "transpose", "t", "expand", "slice", "select", "as_strided",
    "unsqueeze", "squeeze",
})  # fmt: skip
REDUCTIONS = frozenset({
    "mean", "sum", "amax", "amin", "max", "min", "median", "logsumexp", "linalg_vector_norm", "std", "var", "topk",
})  # fmt: skip
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear"})


def smaller(out: tuple[int, ...], of: tuple[int, ...]) -> bool:
    return any(a < b for a, b in zip(out[2:], of[2:], strict=False))


def skips_points(given: dict[str, Any]) -> bool:
    """Return whether a slice has a step over an axis that is spatial in a map: x[:, :, ::2, ::2]."""
    x = given["self"]
    return bool(given.get("step", 1) > 1 and x.ndim >= 3 and given.get("dim", 0) % x.ndim >= 2)


def averages_all(given: dict[str, Any]) -> bool:
    """Return whether a mean is over all spatial axes of [N, C, …], two or three, and keeps them with size 1."""
    x, dims = given["self"], given.get("dim")
    return bool(
        dims and given.get("keepdim") and x.ndim >= 4 and sorted(d % x.ndim for d in dims) == list(range(2, x.ndim))
    )


def rectifies(name: str, given: dict[str, Any]) -> bool:
    """Return whether this operation is max(z, 0), under any of its names."""
    name = name.removesuffix("_")
    if name == "threshold":
        return bool(given["threshold"] == given["value"] == 0)
    if name in ("clamp", "clamp_min"):
        bound = given.get("min")
        return isinstance(bound, (int, float)) and bound == 0 and given.get("max") is None
    return name == "relu"
