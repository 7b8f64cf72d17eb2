"""For scikit-learn users: `CalibrantClassifier(estimator, method="auto")` is a classifier with honest probabilities.

It wraps anything with `decision_function` or `predict_proba`. Unless `cv="prefit"`, the scores for the calibration come
from cross-fitting: a copy of the estimator that has not seen an item scores it, one map is fitted on all these scores,
and the estimator is refitted on everything (as in scikit-learn's `CalibratedClassifierCV(ensemble=False)`).
`predict_proba` maps the scores of the estimator, and `predict` returns the most probable class, as scikit-learn
requires. So a method of the top label changes the answer if its new confidence is below that of another class;
`map_.predictions(…)` gives the confidence of the estimator's own answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, assert_all_finite, column_or_1d, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.inputs import predictions
from calibrant.functional.probabilities import FLOOR
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.fit import fit_predictions, resolve
from calibrant.posthoc.map import FittedMap
from calibrant.types import Split

FOLDS = 5


class CalibrantClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose probabilities are calibrated by any method of the table.

    `estimator`: a classifier with decision_function or predict_proba (logistic regression by default). `method`: a
    calibrator's name, "auto", "first+second" or a calibrator; `settings` are its settings. `cv`: folds of the
    cross-fitting (None: 5, or as many as the rarest class has items), a splitter, or "prefit": then fit(X, y) only
    calibrates, on items that the estimator has not seen.
    `strict` refuses a map that the guard flags; `seed` determines the folds of the guard and of auto.

    Attributes after the fit: `estimator_`, `map_` (a calibrant map: save it, attach it, look at `map_.record.guard`),
    `classes_`, `n_features_in_`, `feature_names_in_`. Sample weights are refused, because no map is fitted with
    weights.
    """

    classes_: NDArray[Any]
    estimator_: Any
    map_: FittedMap

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str | Calibrator = "auto",
        settings: Mapping[str, Any] | None = None,
        cv: int | Literal["prefit"] | Any = None,
        strict: bool = False,
        seed: int = 0,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.settings = settings
        self.cv = cv
        self.strict = strict
        self.seed = seed

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:
        """Fit the estimator, unless it is prefit, and the map."""
        if fit_params:
            raise InputError(
                f"CalibrantClassifier.fit takes X and y, not {', '.join(sorted(fit_params))}: maps are fitted without "
                "weights; pass an estimator that was fitted with them and cv='prefit'"
            )
        if y is None:
            raise InputError("CalibrantClassifier requires y to be passed, but the target y is None")
        X, y = indexable(X, y)
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        if self._prefit():
            estimator = self._inner()
            check_is_fitted(estimator)
            z, labels, classes = self._held_out(estimator, X, y)
        else:
            classes, labels = np.unique(y, return_inverse=True)
            if len(classes) == 1:
                raise InputError(f"y has only one class, {classes.tolist()[0]!r}; a classifier needs two")
            estimator = clone(self._inner()).fit(X, y)  # first, because its messages say best what is wrong with X
            z = self._cross_fitted(X, y, labels, classes)
        p = predictions(z, labels, classes=[str(c) for c in classes], split=Split.CALIBRATION)
        calibrator = resolve(self.method, dict(self.settings or {}), self.seed)
        self.map_ = fit_predictions(calibrator, p, strict=self.strict, seed=self.seed)
        self.estimator_, self.classes_ = estimator, classes
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(estimator, name):
                setattr(self, name, getattr(estimator, name))
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The calibrated probabilities, [N, K], with columns as in `classes_`."""
        z = self._scores(X)
        return np.asarray(torch.softmax(self.map_(z), -1).numpy())

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        z = self._scores(X)
        return np.asarray(torch.log_softmax(self.map_(z), -1).numpy())

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class."""
        p = self.predict_proba(X)
        return np.asarray(self.classes_[p.argmax(1)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self._inner())
        tags.input_tags.sparse = inner.input_tags.sparse
        tags.input_tags.allow_nan = inner.input_tags.allow_nan
        tags.classifier_tags.multi_class = inner.classifier_tags is None or inner.classifier_tags.multi_class
        return tags

    def _inner(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _prefit(self) -> bool:
        if isinstance(self.cv, str) and self.cv != "prefit":
            raise InputError(f"cv={self.cv!r} is unknown; use a number of folds, a splitter, or 'prefit'")
        return isinstance(self.cv, str)

    def _scores(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return scores(self.estimator_, X, len(self.classes_))

    def _held_out(self, estimator: Any, X: Any, y: NDArray[Any]) -> tuple[Tensor, NDArray[np.int64], NDArray[Any]]:
        """The scores of a fitted estimator, y as indices of its classes, and these classes."""
        classes = np.asarray(estimator.classes_)
        unknown = sorted(set(y.tolist()) - set(classes.tolist()), key=str)
        if unknown:
            raise InputError(f"y holds {unknown[0]!r}, a class that the prefit estimator has never seen")
        labels = np.array([{c: i for i, c in enumerate(classes.tolist())}[v] for v in y.tolist()])
        return scores(estimator, X, len(classes)), labels, classes

    def _cross_fitted(self, X: Any, y: NDArray[Any], labels: NDArray[np.int64], classes: NDArray[Any]) -> Tensor:
        """The scores of each item, [N, K], by a copy of the estimator that was not fitted on it."""
        counts = np.bincount(labels)
        rarest = int(counts.argmin())
        folds = max(2, min(FOLDS, int(counts[rarest]))) if self.cv is None else self.cv
        if isinstance(folds, int) and counts[rarest] < folds:
            raise InputError(
                f"{folds} folds need {folds} items of every class, but class {classes.tolist()[rarest]!r} has "
                f"{counts[rarest]}; give more items, or ask for fewer folds with cv="
            )
        z = torch.full((len(y), len(classes)), torch.nan, dtype=torch.float64)
        for train, test in check_cv(folds, y, classifier=True).split(X, y):
            copy = clone(self._inner()).fit(_safe_indexing(X, train), y[train])
            known = np.asarray(getattr(copy, "classes_", classes))
            if len(known) != len(classes):
                missing = next(c for c in classes.tolist() if c not in set(known.tolist()))
                raise InputError(
                    f"class {missing!r} is missing from a training fold of cv; stratify, or use fewer folds"
                )
            z[test] = scores(copy, _safe_indexing(X, test), len(classes))
        return checked(z)


def checked(z: Tensor) -> Tensor:
    """Refuse scores in which an item was never held out."""
    never = torch.isnan(z).any(1).nonzero()
    if len(never):
        raise InputError(
            f"item {int(never[0])} got no score: cv must hold out every item once, and scores may not be NaN"
        )
    return z


def scores(estimator: Any, X: Any, k: int) -> Tensor:
    """Logits [N, K]: the decision function (if binary, the log-odds of class 1), or else the log of predict_proba."""
    if hasattr(estimator, "decision_function"):
        found = torch.as_tensor(np.asarray(estimator.decision_function(X), dtype=np.float64))
        z = torch.stack([-found / 2, found / 2], 1) if found.ndim == 1 else found
    elif hasattr(estimator, "predict_proba"):
        found = torch.as_tensor(np.asarray(estimator.predict_proba(X), dtype=np.float64))
        z = torch.log(found.clamp_min(FLOOR))
    else:
        raise InputError(f"{type(estimator).__name__} has neither decision_function nor predict_proba")
    if z.ndim != 2 or z.shape[1] != k:
        raise InputError(
            f"{type(estimator).__name__} gives scores of shape {tuple(found.shape)} for {k} classes; it needs one "
            "column per class (SVC: decision_function_shape='ovr')"
        )
    return z
