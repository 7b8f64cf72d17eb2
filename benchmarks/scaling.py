"""How fast vector, structured and Dirichlet scaling are against probmetrics, in one process, in turn.

    python -m benchmarks.scaling                    # simulated logits
    python -m benchmarks.scaling --data FOLDER      # and the files of FOLDER that hold logits or probs

Each pair is run in turn `--repeats` times on one thread; the ratio is that of the medians of processor time, the whole
fit on both sides (structured scaling's temperature included). Both get log-probabilities, the scale that probmetrics
works in. "calibration" is the objective that both minimise, on the data fitted on: ours must not be higher. Dirichlet:
probmetrics hands it to dirichletcal; its unregularised matrix scaling, the same map, stands in, against ours with next
to no regularisation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

import calibrant
from benchmarks.race import load, sets
from benchmarks.side_by_side import in_turns, options, table
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.dirichlet import Dirichlet
from calibrant.posthoc.structured import StructuredMatrix, StructuredVector, matrix_ridge
from calibrant.posthoc.vector import Vector
from calibrant.types import Predictions


def simulated(n: int, k: int, seed: int = 0) -> Predictions:
    """Overconfident logits with class biases and some confusion between neighbours."""
    g = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(n, k, generator=g)
    truth.scatter_add_(1, torch.randint(k, (n, 1), generator=g), 4 + 2 * torch.randn(n, 1, generator=g))
    labels = torch.multinomial(torch.softmax(truth, 1), 1, generator=g)[:, 0]
    shown = 2.5 * (truth + 0.3 * truth.roll(1, 1)) + 0.5 * torch.randn(k, generator=g)
    return calibrant.predictions(torch.log_softmax(shown, 1), labels)


def nll(q: np.ndarray[Any, Any], labels: Tensor) -> float:
    return float(-np.mean(np.log(np.maximum(q[np.arange(len(q)), labels.numpy()], 1e-30))))


def penalty(kind: str, weight: Tensor, bias: Tensor, n: int) -> float:
    """The ridge of structured scaling, which both sides have in their objective."""
    k = len(bias)
    if kind == "vector":
        return float(k / n * ((weight - 1).square().sum() + bias.square().sum()))
    ridge = matrix_ridge(k, off=k * (k - 1) / n, diagonal=k / n, bias=k / n)
    return float((ridge * torch.cat([(weight - torch.eye(k)).flatten(), bias]).square()).sum())


Pair = tuple[str, Callable[[], Calibrator], Callable[[], Any], str]


def pairs() -> list[Pair]:
    from probmetrics import calibrators as c

    return [
        ("vector", Vector, c.VectorScalingCalibrator, ""),
        ("structured_vector", StructuredVector, c.SVSCalibrator, "vector"),
        ("structured_matrix", StructuredMatrix, c.SMSCalibrator, "matrix"),
        ("dirichlet (λ = μ = 1e-6)", lambda: Dirichlet(lambda_=1e-6, mu=1e-6), c.MatrixScalingCalibrator, ""),
    ]


def race(p: Predictions, pair: Pair, repeats: int) -> tuple[float, float, float, float]:
    """(our seconds, theirs, our objective, theirs)."""
    _, make, peer, kind = pair
    assert p.logits is not None
    probs = torch.softmax(p.logits.double(), 1).numpy()
    labels = p.labels.numpy()
    fitted: Any = None
    calibrator: Any = None

    def ours_fits() -> None:
        nonlocal fitted
        fitted = make().fold(p)

    def theirs_fits() -> None:
        nonlocal calibrator
        calibrator = peer()
        calibrator.fit(probs, labels)

    own, other = map(median, in_turns([ours_fits, theirs_fits], repeats))
    ours = nll(torch.softmax(fitted(p.logits), 1).numpy(), p.labels)
    theirs = nll(calibrator.predict_proba(probs), p.labels)
    if kind == "vector":
        ours += penalty(kind, fitted.scale, fitted.bias, p.n)
        theirs += penalty(kind, torch.as_tensor(calibrator.v_).double(), torch.as_tensor(calibrator.b_).double(), p.n)
    elif kind == "matrix":
        ours += penalty(kind, fitted.weight, fitted.bias, p.n)
        w = torch.as_tensor(calibrator.W_).double()
        theirs += penalty(kind, w[:, :-1], w[:, -1], p.n)
    return own, other, ours, theirs


def inputs(folder: Path | None) -> Iterator[tuple[str, Predictions]]:
    for n, k in ((50_000, 10), (5_000, 100), (5_000, 1_000)):
        yield f"simulated {n} × {k}", simulated(n, k)
    for name, path in sets(folder) if folder else ():
        p = load(path)
        p = p.take(torch.arange(0, p.n, 2))
        assert p.logits is not None
        yield name, calibrant.predictions(torch.log_softmax(p.logits.double(), 1), p.labels)


def main() -> None:
    given = options(__doc__, data="", repeats=3, only="", write="docs/scaling.md")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name, p in inputs(Path(given.data) if given.data else None):
        for pair in pairs():
            if given.only not in pair[0] or (pair[0].startswith("dirichlet") and (p.k or 0) > 50):
                continue  # the stand-in takes minutes from 100 classes on
            a, b, f, g = race(p, pair, given.repeats)
            rows.append((name, pair[0], f"{a:.3f}", f"{b:.3f}", f"{b / a:.1f}", f"{f:.6f}", f"{g:.6f}"))
            print(*rows[-1], flush=True)
    assert __doc__ is not None
    head = ("data", "method", "ours, s", "probmetrics, s", "ratio", "calibration, ours", "theirs")
    about = __doc__.split("\n", 2)[2].strip("\n")
    text = f"# Speed of the linear maps\n\n{about}\n\n{table(head, rows, '  rrrrr')}\n"
    Path(given.write).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
