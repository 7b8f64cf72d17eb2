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

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import calibrant
from benchmarks.race import load, sets
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
    own, other = [], []
    for _ in range(repeats):
        start = time.process_time()
        fitted = make().fold(p)
        own.append(time.process_time() - start)
        calibrator = peer()
        start = time.process_time()
        calibrator.fit(probs, labels)
        other.append(time.process_time() - start)
    ours = nll(torch.softmax(fitted(p.logits), 1).numpy(), p.labels)
    theirs = nll(calibrator.predict_proba(probs), p.labels)
    if kind == "vector":
        ours += penalty(kind, fitted.scale, fitted.bias, p.n)  # type: ignore[attr-defined]
        theirs += penalty(kind, torch.as_tensor(calibrator.v_).double(), torch.as_tensor(calibrator.b_).double(), p.n)
    elif kind == "matrix":
        ours += penalty(kind, fitted.weight, fitted.bias, p.n)  # type: ignore[attr-defined]
        w = torch.as_tensor(calibrator.W_).double()
        theirs += penalty(kind, w[:, :-1], w[:, -1], p.n)
    return statistics.median(own), statistics.median(other), ours, theirs


def inputs(folder: Path | None) -> Iterator[tuple[str, Predictions]]:
    for n, k in ((50_000, 10), (5_000, 100), (5_000, 1_000)):
        yield f"simulated {n} × {k}", simulated(n, k)
    for name, path in sets(folder) if folder else ():
        p = load(path)
        p = p.take(torch.arange(0, p.n, 2))
        assert p.logits is not None
        yield name, calibrant.predictions(torch.log_softmax(p.logits.double(), 1), p.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a method's name")
    parser.add_argument("--write", type=Path, default=Path("docs/scaling.md"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lines = [
        "| data | method | ours, s | probmetrics, s | ratio | calibration, ours | theirs |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    for name, p in inputs(given.data):
        for pair in pairs():
            if given.only not in pair[0] or (pair[0].startswith("dirichlet") and (p.k or 0) > 50):
                continue  # the stand-in takes minutes from 100 classes on
            a, b, f, g = race(p, pair, given.repeats)
            lines.append(f"| {name} | {pair[0]} | {a:.3f} | {b:.3f} | {b / a:.1f} | {f:.6f} | {g:.6f} |")
            print(lines[-1], flush=True)
    assert __doc__ is not None
    text = "# Speed of the linear maps\n\n" + __doc__.split("\n", 2)[2].strip("\n") + "\n\n" + "\n".join(lines) + "\n"
    given.write.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
