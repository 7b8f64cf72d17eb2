"""Which calibrator gives the smallest sets, and the largest share of accepted answers at 95% accuracy?

    CALIBRANT_DATA=DATA python -m benchmarks.smallest_sets [--splits 5] [--out sets.json]

Networks that other people trained, 10,000 test items each: a map is fitted on 3,000 of them, the rules are chosen on
2,000, and judged on 5,000. A number is the mean over splits and then over networks; its interval (Student's t) is of
the paired difference to no map, over networks. The networks share their test items, so the interval is about
networks on these items, not about other data.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

import calibrant
from benchmarks.race import load
from benchmarks.side_by_side import options, table
from calibrant.errors import InputError
from calibrant.files.paths import visible
from calibrant.types import Predictions

MAPS = ("none", "temperature", "ets", "vector", "structured_matrix", "isotonic", "irm", "spline", "order_preserving")
GOALS: dict[str, dict[str, Any]] = {
    "accepted at 95%": {"accuracy": 0.95},
    "lac 90%": {"set_coverage": 0.9},
    "aps 90%": {"set_coverage": 0.9, "method": "aps"},
    "raps 90%": {"set_coverage": 0.9, "method": "raps"},
    "lac 99%": {"set_coverage": 0.99},
    "aps 99%": {"set_coverage": 0.99, "method": "aps"},
}
FITTED, CHOSEN = 3_000, 2_000


def networks(folder: Path) -> Iterator[tuple[str, Predictions]]:
    """The full sets of 10,000 items, and the pool of the four ResNets of one author."""
    pooled: list[Predictions] = []
    for path in visible(folder, "cifar*.npz"):
        p = load(path)
        yield path.stem, p
        if path.stem.endswith("akamaster"):
            pooled.append(p)
    if pooled:
        z = torch.stack([p.logits for p in pooled])  # type: ignore[misc]
        yield "cifar10_pool_of_4_akamaster", calibrant.predictions(z, pooled[0].labels)


def measured(p: Predictions, name: str, split: int) -> dict[str, float]:
    order = torch.randperm(p.n, generator=torch.Generator().manual_seed(split))
    fitted, chosen, judged = order[:FITTED], order[FITTED : FITTED + CHOSEN], order[FITTED + CHOSEN :]
    map_ = None if name == "none" else calibrant.fit(name, p.take(fitted))
    out = {}
    for goal, settings in GOALS.items():
        try:
            rule = calibrant.decide(p.take(chosen), map=map_, **settings)
        except InputError:  # no threshold keeps 95%
            out[goal] = 0.0
            continue
        d = rule.decisions(p.take(judged))
        out[goal] = float(d.accepted.double().mean() if d.sets is None else d.sets.sum(1).double().mean())
    return out


def main() -> None:
    a = options(__doc__, splits=5, out="")
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, list[float]]] = {}
    for network, p in networks(Path(os.environ["CALIBRANT_DATA"]) / "logits"):
        for name in MAPS:
            runs = [measured(p, name, split) for split in range(a.splits)]
            found.setdefault(network, {})[name] = [float(np.mean([r[goal] for r in runs])) for goal in GOALS]
        print(network, json.dumps(found[network]), flush=True)
        if a.out:
            Path(a.out).write_text(json.dumps({"goals": list(GOALS), "networks": found}, indent=1))
    for k in ("cifar10_", "cifar100_"):
        names = [n for n in found if n.startswith(k) and "pool" not in n]
        values = np.array([[found[n][m] for m in MAPS] for n in names])  # [networks, maps, goals]
        change = values - values[:, :1]
        half = student.ppf(0.975, len(names) - 1) * change.std(0, ddof=1) / len(names) ** 0.5
        rows = [
            [
                m,
                *(
                    f"{values[:, i, j].mean():.3f}"
                    + (f" ({change[:, i, j].mean():+.3f} ± {half[i, j]:.3f})" if i else "")
                    for j in range(len(GOALS))
                ),
            ]
            for i, m in enumerate(MAPS)
        ]
        print(f"\n{k[:-1]}, {len(names)} networks\n\n{table(['map', *GOALS], rows, ' ' + 'r' * len(GOALS))}")


if __name__ == "__main__":
    main()
