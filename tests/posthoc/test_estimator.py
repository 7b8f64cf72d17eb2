"""`CalibrantClassifier` is a scikit-learn classifier: its checks, labels of any kind, prefit, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant.errors import InputError
from calibrant.posthoc.estimator import CalibrantClassifier
from calibrant.posthoc.temperature import TemperatureMap

EXPECTED_FAILURES: dict[str, str] = {}
"""Check → reason why it is expected to fail. There is none."""

ESTIMATORS = [
    CalibrantClassifier(method="temperature"),
    CalibrantClassifier(GaussianNB(), method="isotonic_centred", cv=3),
]


@pytest.mark.filterwarnings("ignore")  # the checks provoke warnings on purpose
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
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


def test_the_map_sees_scores_of_items_the_estimator_has_not_seen() -> None:
    X, y, _, _ = data(2)
    memoriser = RandomForestClassifier(20, random_state=0, max_features=None)
    fitted = CalibrantClassifier(memoriser, method="temperature").fit(X, y)
    assert float(fitted.map_.tensors()["temperature"]) > 1  # in-sample scores are all but separable: T would be below 1
    assert np.array_equal(fitted.predict(X), fitted.estimator_.predict(X))


@pytest.mark.parametrize("estimator", [LinearSVC(), SVC(), LogisticRegression(), RandomForestClassifier(10)])
@pytest.mark.parametrize("classes", [2, 3])
def test_any_kind_of_scores(estimator: Any, classes: int) -> None:
    X, y, X_new, y_new = data(classes, 400)
    fitted = CalibrantClassifier(clone(estimator), method="temperature", cv=3).fit(X, y)
    assert fitted.score(X_new, y_new) > 1.3 / classes
    assert np.array_equal(fitted.classes_[fitted.predict_proba(X_new).argmax(1)], fitted.predict(X_new))


def test_string_labels_keep_their_columns() -> None:
    X, y, X_new, _ = data(3)
    names = np.array(["zebra", "ant", "mole"])
    fitted = CalibrantClassifier(method="temperature").fit(X, names[y])
    plain = CalibrantClassifier(method="temperature").fit(X, y)
    assert fitted.classes_.tolist() == ["ant", "mole", "zebra"]
    order = [names.tolist().index(c) for c in fitted.classes_]
    assert np.allclose(fitted.predict_proba(X_new), plain.predict_proba(X_new)[:, order], atol=1e-4)
    assert set(fitted.predict(X_new)) <= set(names)


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


def test_it_composes_with_pipelines_and_searches() -> None:
    X, y, _, _ = data(2)
    pipe = make_pipeline(StandardScaler(), CalibrantClassifier(LogisticRegression(), method="temperature", cv=3))
    assert cross_val_score(pipe, X, y, scoring="neg_log_loss", cv=3).mean() > -0.69
    search = GridSearchCV(CalibrantClassifier(GaussianNB(), cv=3), {"method": ["identity", "vector"]}, cv=3)
    assert search.set_params(scoring="neg_log_loss").fit(X, y).best_params_ == {"method": "vector"}


class Named(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator that knows its features' names, as those do that are fitted on a data frame."""

    def fit(self, X: Any, y: Any) -> Named:
        self.classes_, self.n_features_in_ = np.unique(y), X.shape[1]
        self.feature_names_in_ = np.array([f"x{i}" for i in range(X.shape[1])], dtype=object)
        return self

    def predict_proba(self, X: Any) -> Any:
        p = 1 / (1 + np.exp(-X[:, 0]))
        return np.stack([1 - p, p], 1)


def test_feature_names_and_settings_pass_through() -> None:
    X, y, _, _ = data(2)
    fitted = CalibrantClassifier(Named(), method="histogram", settings={"bins": 4}).fit(X, y)
    assert fitted.feature_names_in_.tolist()[:2] == ["x0", "x1"] and fitted.n_features_in_ == 20
    assert len(fitted.map_.tensors()["count"]) == 4
    auto = CalibrantClassifier(GaussianNB(), settings={"budget": 0.5}).fit(X, y)
    assert auto.map_.record.ranking and auto.get_params()["method"] == "auto"
    assert isinstance(CalibrantClassifier(method="temperature").fit(X, y).map_, TemperatureMap)


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
