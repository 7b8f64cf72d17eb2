"""Losses and the penalties that are added to them.

A loss is called like `torch.nn.CrossEntropyLoss`: (logits[N, K], labels[N] or q[N, K]) → scalar, or a loss per item. A
penalty is called with (logits, labels or Batch) and returns a scalar.

A loss is an `nn.Module` whose `weight` is one number per class, as in torch; a penalty is a frozen record of its
settings, and its `weight` is the factor inside the scalar that it returns.
`ranking` is also Stateful (its history by training index), and refuses batches whose labels a transform has mixed.
"""

from collections.abc import Callable

from calibrant.errors import suggest_names
from calibrant.losses.cross_entropy import CrossEntropy
from calibrant.losses.dual_focal import DualFocal
from calibrant.losses.entropy import Entropy
from calibrant.losses.focal import Focal, InverseFocal
from calibrant.losses.lp_norm import LpNorm
from calibrant.losses.mmce import MMCE
from calibrant.losses.ranking import Ranking
from calibrant.protocols import Criterion, Penalty

LOSSES: dict[str, Callable[..., Criterion]] = {
    "cross_entropy": CrossEntropy,
    "focal": Focal,
    "inverse_focal": InverseFocal,
    "dual_focal": DualFocal,
}

PENALTIES: dict[str, Callable[..., Penalty]] = {
    "lp_norm": LpNorm,
    "entropy": Entropy,
    "mmce": MMCE,
    "ranking": Ranking,
}

__all__ = [
    "LOSSES",
    "MMCE",
    "PENALTIES",
    "CrossEntropy",
    "DualFocal",
    "Entropy",
    "Focal",
    "InverseFocal",
    "LpNorm",
    "Ranking",
]

suggest_names(__name__)
