"""Overfitting and PEP's gain along one training (PEP §3.2, Fig. 3): does PEP gain more where a network overfits more?

    overfitting = NLL on test − NLL on train,   PEP effect = NLL of the network − NLL of PEP on test

Both are measured after each epoch. σ* is fitted on validation items anew for each epoch, as in the paper.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from calibrant.diagnostics.batches import each_batch
from calibrant.ensembles.pep import MEMBERS, PEP
from calibrant.ensembles.prediction import predict
from calibrant.errors import InputError
from calibrant.functional.scores import reduce
from calibrant.types import Predictions


@dataclass(frozen=True)
class Epoch:
    """The mean NLLs after one epoch, and the σ* that was fitted on held-out items."""

    epoch: int
    train_nll: float
    test_nll: float
    sigma: float
    pep_nll: float

    @property
    def overfitting(self) -> float:
        return self.test_nll - self.train_nll

    @property
    def effect(self) -> float:
        return self.test_nll - self.pep_nll


def overfitting(
    model: nn.Module,
    checkpoints: Mapping[int, Mapping[str, Tensor]],
    train: Iterable[Any],
    validation: Iterable[Any],
    test: Iterable[Any],
    *,
    members: int = MEMBERS,
    seed: int = 0,
) -> list[Epoch]:
    """Overfitting and PEP's gain at every checkpoint {epoch: state dict} of `model`.

    NLLs are measured on `train` and `test`; σ* is fitted on `validation`.
    """
    if not checkpoints:
        raise InputError("there are no checkpoints; train with --keep-weights N, or pass {epoch: state_dict}")
    network, parts = copy.deepcopy(model), [list(each_batch(part)) for part in (train, validation, test)]
    rows = []
    for epoch in sorted(checkpoints):
        network.load_state_dict(checkpoints[epoch])
        pep = PEP.fit(network, parts[1], members=members, seed=seed)
        own = _nll(predict(network, parts[2]))
        # with σ = 0 every member is the network, and pooling would only add rounding errors
        pooled = _nll(pep.predict(parts[2])) if pep.sigma else own
        rows.append(Epoch(epoch, _nll(predict(network, parts[0])), own, pep.sigma, pooled))
    return rows


def _nll(p: Predictions) -> float:
    found = reduce(p, classwise=False).log_p_label
    assert found is not None
    return -float(found.mean())
