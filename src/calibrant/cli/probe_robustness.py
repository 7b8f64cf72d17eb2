"""The probe `robustness`: distance of each item to another prediction, cut into levels; calibration in each (AR §3)."""

from __future__ import annotations

from typing import Any, get_args

from calibrant.attacks import RULERS, median_distance
from calibrant.attacks import levels as cut
from calibrant.cli.probe_request import Probed, Request, narrow_table
from calibrant.diagnostics.levels import calibration_by_level
from calibrant.diagnostics.stability import Of
from calibrant.errors import InputError, unknown
from calibrant.report import robustness as section
from calibrant.training import distances
from calibrant.types import Split


def probe(request: Request) -> Probed:
    """Attack the first model on every split; by level, the calibration of it or of all the runs together."""
    of, ruler, count = (request.options[k] for k in ("variance", "ruler", "levels"))
    if of not in get_args(Of):
        raise unknown("--variance", of, get_args(Of))
    if ruler not in RULERS:
        raise unknown("ruler", ruler, RULERS)
    first = request.models[0]
    for split in request.splits:
        if count > request.part(split).n:
            raise InputError(f"--levels {count} of {request.part(split).n} {split} items; ask for fewer levels")
        distances.check_attackable(request.data, Split(split))
    request.rehearse()
    # every forward pass before the first attack: what it refuses has then cost and left nothing
    said = {split: [request.predictions(model, split) for model in request.models] for split in request.splits}
    record: dict[str, Any] = {"ruler": ruler, "model": first.name, "runs": len(request.models), "splits": {}}
    shown, panels, audited = [], [], []
    for split in request.splits:
        found = distances.measured(
            first.members,
            request.inputs(first),
            split,
            request.store / distances.FOLDER,
            ruler=ruler,
            limit=request.limit,
            device=request.device,
            progress=request.progress,
        )
        level = cut(found.distance, count)
        by_level = calibration_by_level(said[split], level, distance=found.distance, of=of, name=first.name)
        record["splits"][split] = {
            "n": len(found.distance),
            "median_distance": median_distance(found.distance),
            "unmoved": found.unmoved,
            "items_sha256": found.items,
            **{k: v for k, v in by_level.to_dict().items() if k != "schema"},
        }
        far = [f"{ruler.upper()} found no other prediction for {found.describe_unmoved()}."] if found.unmoved else []
        shown += [
            f"{split}: {section.lead(by_level)}",
            narrow_table(section.head(by_level), section.level_rows(by_level)),
            *by_level.notes(),
            *far,
        ]
        panels.append(section.levels_panel([by_level], ruler=ruler, attacked=first.name, further=far))
        audited += said[split][:1]
    return Probed(record, shown, panels, audited)
