"""Target policies: (labels[N], index[N]) → q[N, K]. Each takes `classes=`; adaptive ones observe validation.

`observe(epoch, predictions)` is called after every epoch. `wants(epoch)` is asked with the number of finished epochs
(0 before training); if it returns True, the training calls `refresh(Levels(train, validation))`.
"""

from collections.abc import Callable

from calibrant.errors import suggest_names
from calibrant.protocols import TargetPolicy
from calibrant.targets.adaptive import AdaLS, ArAdaLS, Levels
from calibrant.targets.fixed import OneHot, Smoothing

TARGETS: dict[str, Callable[..., TargetPolicy]] = {
    "one_hot": OneHot,
    "smoothing": Smoothing,
    "adals": AdaLS,
    "ar_adals": ArAdaLS,
}

__all__ = ["TARGETS", "AdaLS", "ArAdaLS", "Levels", "OneHot", "Smoothing"]

suggest_names(__name__)
