"""The probe `pep_effect`: what PEP does to every item, and what curvature predicts (PEP Fig. 2c, Eq. 15 and 20)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.cli.probe_results import Probed, side_by_side
from calibrant.diagnostics import pep_effect as by_curvature
from calibrant.diagnostics import pep_items
from calibrant.ensembles.pep import MEMBERS, PEP
from calibrant.report.probes.pep import panel
from calibrant.training.distances import items_hash
from calibrant.types import Estimate

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.cli.probe_request import Request
    from calibrant.ensembles.reference import Reference

LOW, PROBES, NAMED = 0.1, 16, 20


def pep_effect(request: Request) -> Probed:
    split, sigma = request.splits[0], request.options["sigma"]
    members = request.options["members"] or MEMBERS

    def measure(model: Reference) -> tuple[dict[str, Any], dict[str, Tensor]]:
        network = request.network(model)
        if sigma is None:
            pep = PEP.fit(network, request.batches(model, "validation"), members=members, progress=request.progress)
        else:
            pep = PEP(network, sigma, members)
        found = pep_items(pep, request.batches(model, split))
        few = [(x, y) for x, y, _ in request.few(model, split)]
        curvature = by_curvature(network, few, probes=PROBES)
        gain, error = curvature.predict(pep.sigma), curvature.standard_error(pep.sigma)
        record = {
            "split": split,
            "items": len(found.labels),
            "members": members,
            "sigma": pep.sigma,
            "effect": found.effect(),
            "predicted": Estimate(gain, gain - 2 * error, gain + 2 * error, method="± 2 standard errors over probes"),
            "curvature_items": curvature.items,
            "corrected": len(found.corrected),
            "spoiled": len(found.spoiled),
            "largest_corrected": found.corrected[:NAMED].tolist(),
            "largest_spoiled": found.spoiled[:NAMED].tolist(),
            "share_of_low": found.share_of_low(LOW),
        }
        return record, dict(vars(found))

    settings = {"split": split, "items": items_hash(request.part(split)), "sigma": sigma, "members": members}
    settings["fitted_on"] = None if sigma is not None else items_hash(request.data["validation"])
    return side_by_side(request, "pep_effect", settings, measure, panel)
