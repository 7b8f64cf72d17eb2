"""`calibrant.fit`: fit a method to predictions, and guard the map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError, RefusedError, SplitError, nearest, unknown
from calibrant.files.data_frame import given
from calibrant.functional.scores import Scores, reduce
from calibrant.metrics.conventions import checked_seed
from calibrant.posthoc.auto import Auto, Unchanged
from calibrant.posthoc.calibrator import Calibrator, Composition, refuse_test
from calibrant.posthoc.crossval import loss_of, scored
from calibrant.posthoc.guard import Verdict, guard
from calibrant.posthoc.map import FittedMap
from calibrant.types import Predictions, Split


def fit(
    method: str | Calibrator = "auto",
    logits: Any = None,
    labels: Any = None,
    *,
    probs: Any = None,
    strict: bool = False,
    allow_reuse: bool = False,
    seed: int = 0,
    split: Split | str = Split.UNKNOWN,
    class_axis: int = -1,
    ignore_index: int | None = None,
    group: Any = None,
    classes: Sequence[Any] | None = None,
    labels_key: str | None = None,
    **settings: Any,
) -> FittedMap:
    """Fit `method` ("auto", a name of the table, "first+second", or a calibrator), guard the map, and return it.

    `logits` may be `Predictions`, or a data frame whose column `labels_key` holds the labels. Text labels need
    `classes`, the names in the order of the scores. The map's `record` holds its certificate, the guard's verdict, and
    NLL before and after; `strict=True` refuses a map that the guard flags. Further keywords are settings of the method.
    """
    calibrator = resolve(method, settings, seed)
    p = given(
        logits,
        labels,
        labels_key=labels_key,
        probs=probs,
        classes=classes,
        split=split,
        class_axis=class_axis,
        ignore_index=ignore_index,
        group=group,
    )
    return fit_predictions(calibrator, p, strict=strict, allow_reuse=allow_reuse, seed=seed)


def fit_predictions(
    calibrator: Calibrator,
    p: Predictions,
    *,
    strict: bool = False,
    allow_reuse: bool = False,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> FittedMap:
    """Fit, guard by cross-validation, and record NLL before and after on the calibration data.

    `progress` is called during the automatic choice with the name of a candidate and the share of the budget used.
    """
    seed = checked_seed(seed)
    if p.fitted_on and p.fitted_on == p.origin and not allow_reuse:
        raise SplitError(
            f"{p.source or 'these predictions'}: a map already in their history was fitted on these very items; "
            "compose the methods (first+second), or pass allow_reuse=True"
        )
    ranking: tuple[dict[str, Any], ...] = ()
    cut = ""
    verdict: Verdict | None = None
    if isinstance(calibrator, Auto):
        refuse_test(p, allow_reuse)  # before minutes of cross-validation, not after
        choice = calibrator.choose(p, progress)
        calibrator, ranking, verdict, cut = choice.calibrator, choice.ranking, choice.verdict, choice.cut
    fitted = calibrator.fit(p, allow_reuse=allow_reuse)
    verdict = verdict or guard(calibrator, p, fitted=fitted, seed=seed)
    known = replace(p, origin=p.origin or fitted.record.data)  # so that the hash is not computed again
    loss = verdict.loss_before
    loss = loss_of(reduce(p, classwise=False), p.n) if loss is None else loss
    before, after = mean_nll(loss, scored(fitted, known))
    record = replace(
        fitted.record, guard=verdict.to_dict(), nll_before=before, nll_after=after, ranking=ranking, cut=cut
    )
    if strict and not verdict.ok:
        raise RefusedError(f"{record.calibrator} is refused (strict): {'; '.join(verdict.reasons)}")
    return replace(fitted, record=record)


def resolve(method: str | Calibrator, settings: dict[str, Any], seed: int = 0) -> Calibrator:
    """Return the calibrator of a name with these settings. The error for an unknown name or key suggests another."""
    from calibrant.posthoc import CALIBRATORS, CONFIDENCES

    if isinstance(method, Calibrator):
        if settings:
            raise InputError(f"{method.name} already carries its settings; {', '.join(settings)} would be ignored")
        return method
    if not isinstance(method, str):
        said = f"the first argument is the method, a name or a calibrator, not {type(method).__name__}"
        raise InputError(f"{said}: calibrant.fit('auto', logits, labels)")
    if "+" in method:
        if settings:
            raise InputError(f"settings of {method} are ambiguous; build Composition(first, second) from Python")
        names = method.split("+")
        parts = [resolve(name.strip(), {}, seed) for name in names]
        whole = parts[0]
        for part in parts[1:]:
            whole = Composition(whole, part)
        return whole
    if method == "auto":
        return Auto(**known_settings(Auto, settings, method) | {"seed": seed})
    if method == "identity":
        return Unchanged(**known_settings(Unchanged, settings, method))
    known: dict[str, type[Calibrator]] = {**CALIBRATORS, **CONFIDENCES}
    if method not in known:
        raise unknown("calibrator", method, [*known, "auto", "identity"])
    return known[method](**known_settings(known[method], settings, method))


def known_settings(cls: type[Calibrator], settings: dict[str, Any], method: str) -> dict[str, Any]:
    """Refuse settings that the calibrator does not have. It checks their values itself."""
    accepted = [f.name for f in fields(cls)]
    for key in settings:
        if key not in accepted:
            near = nearest(key, accepted)
            hint = f"did you mean {near!r}?" if near else f"it has: {', '.join(accepted) or 'none'}"
            raise InputError(f"{method} has no setting {key!r}; {hint}")
    return settings


def mean_nll(before: Tensor, after: Scores) -> tuple[float | None, float | None]:
    """The mean loss before and after, over items whose label was possible before; None if there is no such item."""
    possible = torch.isfinite(before)
    if not bool(possible.any()):
        return None, None
    # 0 + turns −0.0 into 0.0
    return float(0 + before[possible].mean()), float(0 + loss_of(after, after.n)[possible].mean())
