"""Predictors: the pooled predictions of one model or several. A new ensemble is one file and one line in the table."""

from __future__ import annotations

from calibrant.ensembles.deep import DeepEnsemble
from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.ensemble import Ensemble
from calibrant.ensembles.ingredients import Ingredients
from calibrant.ensembles.pep import PEP
from calibrant.ensembles.prediction import predict
from calibrant.ensembles.snapshot import Snapshot
from calibrant.ensembles.swa import SWA
from calibrant.ensembles.swag import SWAG
from calibrant.ensembles.temporal import TemporalSmoothing
from calibrant.errors import suggest_names, unknown

ENSEMBLES: dict[str, type[Ensemble]] = {
    "pep": PEP,
    "dropout": MCDropout,
    "deep": DeepEnsemble,
    "swa": SWA,
    "swag": SWAG,
    "snapshot": Snapshot,
    "temporal": TemporalSmoothing,
}
"""Name → the class of an ensemble."""


def assemble(name: str, given: Ingredients) -> Ensemble:
    """Build the ensemble `name` of the table, ready to predict."""
    if name not in ENSEMBLES:
        raise unknown("ensemble", name, ENSEMBLES)
    return ENSEMBLES[name].build(given)


__all__ = [
    "ENSEMBLES",
    "PEP",
    "SWA",
    "SWAG",
    "DeepEnsemble",
    "Ensemble",
    "MCDropout",
    "Snapshot",
    "TemporalSmoothing",
    "assemble",
    "predict",
]

suggest_names(__name__)
