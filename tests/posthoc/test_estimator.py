"""`CalibrantClassifier` passes scikit-learn's checks, takes prefit estimators, and refuses what it cannot use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant.errors import InputError
from calibrant.posthoc.estimator import CalibrantClassifier

ESTIMATORS = [
    CalibrantClassifier(method="temperature"),
    CalibrantClassifier(GaussianNB(), method="isotonic_centred", cv=3),
]


@pytest.mark.filterwarnings("ignore")  # the checks provoke warnings on purpose
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def data(classes: int = 3, n: int = 900, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    X, y = make_classification(n, 20, n_informative=6, n_redundant=10, n_classes=classes, flip_y=0.1, random_state=seed)
    return X[: n // 2], y[: n // 2], X[n // 2 :], y[n // 2 :]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("method", ["temperature", "histogram", "vector"])
def test_naive_bayes_becomes_honest(classes: int, method: str) -> None:
    """Redundant features make naive Bayes overconfident: the textbook case."""
    X, y, X_new, y_new = data(classes)
    before = log_loss(y_new, GaussianNB().fit(X, y).predict_proba(X_new))
    fitted = CalibrantClassifier(GaussianNB(), method=method).fit(X, y)
    p = fitted.predict_proba(X_new)
    assert log_loss(y_new, p) < before - 0.1
    assert p.shape == (len(X_new), classes) and np.allclose(p.sum(1), 1)
    assert np.allclose(np.exp(fitted.predict_log_proba(X_new)), p)
    assert np.array_equal(fitted.predict(X_new), fitted.classes_[p.argmax(1)])
    assert fitted.map_.record.k == classes and "ok" in fitted.map_.record.guard


def test_string_labels_keep_their_columns() -> None:
    X, y, X_new, _ = data(3)
    names = np.array(["zebra", "ant", "mole"])
    fitted, plain = (CalibrantClassifier(method="temperature").fit(X, labels) for labels in (names[y], y))
    assert fitted.classes_.tolist() == ["ant", "mole", "zebra"]
    p = fitted.predict_proba(X_new)
    assert np.allclose(p, plain.predict_proba(X_new)[:, [1, 2, 0]], atol=1e-4)
    assert np.array_equal(fitted.predict(X_new), fitted.classes_[p.argmax(1)])


def test_the_map_sees_scores_of_items_the_estimator_has_not_seen() -> None:
    X, y, _, _ = data(2)
    memoriser = RandomForestClassifier(20, random_state=0, max_features=None)
    fitted = CalibrantClassifier(memoriser, method="temperature").fit(X, y)
    assert float(fitted.map_.tensors()["temperature"]) > 1  # in-sample scores are all but separable: T would be below 1
    assert np.array_equal(fitted.predict(X), fitted.estimator_.predict(X))


def test_prefit_only_calibrates() -> None:
    X, y, X_new, y_new = data(3)
    names = np.array(["c", "a", "b"])
    inner = GaussianNB().fit(X, names[y])
    fitted = CalibrantClassifier(inner, method="temperature", cv="prefit").fit(X_new, names[y_new])
    assert fitted.estimator_ is inner and fitted.n_features_in_ == 20
    z = torch.log(torch.as_tensor(inner.predict_proba(X_new)).clamp_min(1e-30))
    T = fitted.map_.tensors()["temperature"]
    assert np.allclose(fitted.predict_proba(X_new), torch.softmax(z / T, 1).numpy(), atol=1e-12)
    frozen = CalibrantClassifier(FrozenEstimator(inner), method="temperature").fit(X_new, names[y_new])
    assert np.allclose(frozen.predict_proba(X_new), fitted.predict_proba(X_new))
    with pytest.raises(InputError, match="y holds 'd', a class that the prefit estimator has never seen"):
        CalibrantClassifier(inner, method="temperature", cv="prefit").fit(X_new, np.where(y_new == 0, "d", "a"))


def test_settings_pass_through() -> None:
    X, y, _, _ = data(2)
    fitted = CalibrantClassifier(GaussianNB(), method="histogram", settings={"bins": 4}).fit(X, y)
    assert len(fitted.map_.tensors()["count"]) == 4
    assert CalibrantClassifier(GaussianNB(), settings={"budget": 0.5}).fit(X, y).map_.record.ranking
    frame = pytest.importorskip("pandas").DataFrame(X).add_prefix("x")
    named = CalibrantClassifier(GaussianNB(), method="temperature").fit(frame, y)
    assert named.feature_names_in_.tolist()[:2] == ["x0", "x1"]


def test_what_is_refused() -> None:
    X, y, _, _ = data(2, 200)
    model = CalibrantClassifier(method="temperature")
    with pytest.raises(InputError, match="takes X and y, not sample_weight: maps are fitted without weights"):
        model.fit(X, y, sample_weight=np.ones(len(y)))
    with pytest.raises(InputError, match="5 folds need 5 items of every class, but class 1 has 3"):
        CalibrantClassifier(method="temperature", cv=5).fit(X, np.r_[np.ones(3, int), np.zeros(len(X) - 3, int)])
    with pytest.raises(InputError, match="cv='twice' is unknown"):
        CalibrantClassifier(cv="twice").fit(X, y)
    with pytest.raises(InputError, match="class 0 is missing from a training fold"):
        CalibrantClassifier(method="temperature", cv=KFold(3)).fit(X[:99], np.repeat([0, 1, 2], 33))
    with pytest.raises(InputError, match="KMeansLike has neither decision_function nor predict_proba"):
        CalibrantClassifier(KMeansLike(), method="temperature").fit(X, y)


class KMeansLike(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    def fit(self, X: Any, y: Any) -> KMeansLike:
        self.classes_ = np.unique(y)
        return self
