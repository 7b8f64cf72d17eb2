"""Consistency along a sequence of slightly changed images: SS Eq. 37–39 and the flip rate of Hendrycks & Dietterich.

`logits` is [T, N, K]: T = M + 1 frames of N items. Every function returns one float64 number per item (or per item and
frame). The metric is its mean over items, and the interval comes from its spread.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from calibrant.errors import InputError


def consistency(logits: Tensor) -> Tensor:
    """SS Eq. 37, [N]: the share of neighbouring frames with the same prediction. Higher is better."""
    return 1 - flip_rate(logits)


def flip_rate(logits: Tensor, against: Literal["previous", "first"] = "previous") -> Tensor:
    """The share of frames whose prediction differs from that of the previous frame, [N]. Lower is better.

    Frames of pure noise have no order. For them the published rate compares with the first frame, the clean image.
    """
    predicted = _frames(logits).argmax(-1)
    if against not in ("previous", "first"):
        raise InputError(f"against must be 'previous' or 'first', got {against!r}")
    before = predicted[:-1] if against == "previous" else predicted[:1]
    return (predicted[1:] != before).double().mean(0)


def cross_entropy_consistency(logits: Tensor) -> Tensor:
    """SS Eq. 38, [N]: −mean of f(x_i) · log f(x_{i+1}), how far the probabilities move. Lower is better."""
    log_p = _frames(logits).double().log_softmax(-1)
    p = log_p[:-1].exp()
    # a class with probability 0 before adds nothing, even if it has probability 0 after
    return -torch.where(p > 0, p * log_p[1:], 0.0).sum(-1).mean(0)


def relative_confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """SS Eq. 39, [..., N]: p(true label) / max p for logits [..., N, K]. It is 1 where the prediction is right."""
    if logits.ndim < 2 or labels.shape != logits.shape[-2:-1]:
        raise InputError(f"logits [..., N, K] and labels [N] do not fit: {tuple(logits.shape)}, {tuple(labels.shape)}")
    z = logits.double()
    wanted = labels.to(z.device).expand(z.shape[:-1]).unsqueeze(-1)
    return (z.gather(-1, wanted).squeeze(-1) - z.amax(-1)).exp()


def _frames(logits: Tensor) -> Tensor:
    if logits.ndim != 3 or logits.shape[0] < 2:
        raise InputError(f"logits must be [frames, items, classes] with two frames or more, got {tuple(logits.shape)}")
    return logits
