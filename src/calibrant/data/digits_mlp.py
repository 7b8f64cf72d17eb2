"""Real predictions in two seconds: an over-trained network on scikit-learn's bundled digits.

A multilayer perceptron learns a hundred 8 × 8 images by heart, long after it makes no mistake on them; its logits
keep growing while nothing new is learned, and on unseen digits it is overconfident. Train, calibration and
test are disjoint parts of one permutation drawn from the seed.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from calibrant.functional.border import predictions
from calibrant.types import Predictions, Split

TRAIN, CALIBRATION = 100, 600  # of 1,797; the rest is test
HIDDEN, EPOCHS = (256, 256), 150


class DigitsPredictions(NamedTuple):
    calibration: Predictions
    test: Predictions


def digits_predictions(seed: int = 0) -> DigitsPredictions:
    """Logits of the over-trained network on the calibration and the test part."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    train, calibration, test = np.split(order, [TRAIN, TRAIN + CALIBRATION])
    weights = _train(images[train] / 16, labels[train], seed)

    def part(index: np.ndarray, split: Split) -> Predictions:
        ids = [f"digit-{i}" for i in index]
        classes = [str(k) for k in range(10)]
        return predictions(_logits(images[index] / 16, weights), labels[index], split=split, ids=ids, classes=classes)

    return DigitsPredictions(part(calibration, Split.CALIBRATION), part(test, Split.TEST))


def _train(x: np.ndarray, y: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(weight, bias) of each layer."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    # alpha, tol and n_iter_no_change switch off everything that would stop it from over-training
    network = MLPClassifier(
        HIDDEN, alpha=0, tol=0, learning_rate_init=3e-3, max_iter=EPOCHS, n_iter_no_change=EPOCHS, random_state=seed
    )
    # such small matrices only lose by a second thread, and much on a busy machine
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit(x, y)
    return list(zip(network.coefs_, network.intercepts_, strict=True))


def _logits(x: np.ndarray, layers: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The network's own scale: scikit-learn only hands out probabilities."""
    *hidden, (weight, bias) = layers
    for w, b in hidden:
        x = np.maximum(x @ w + b, 0)
    return np.asarray(x @ weight + bias)
