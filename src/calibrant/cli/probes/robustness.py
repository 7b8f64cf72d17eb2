"""The probe `robustness`: calibration by level of each item's distance to another prediction (AR §3)."""

from __future__ import annotations

from typing import Any, get_args

from torch import Tensor

from calibrant.attacks import RULERS, median_distance
from calibrant.attacks import levels as cut
from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Probed, Result, narrow_table
from calibrant.cli.probes.wording import SEEDS, compared
from calibrant.diagnostics.levels import calibration_by_level
from calibrant.diagnostics.stability import Of
from calibrant.display import short_names
from calibrant.errors import InputError, unknown
from calibrant.functional.scores import reduce
from calibrant.report import robustness as section
from calibrant.training import distances
from calibrant.types import Predictions, Split


def robustness(request: Request) -> Probed:
    """Attack the first model on every split, cut its distances into levels, and judge every model by level (AR Fig. 2).

    The first model counts as the mean of itself and its --runs.
    """
    of, ruler, count = (request.options[k] for k in ("variance", "ruler", "levels"))
    if of not in get_args(Of):
        raise unknown("--variance", of, get_args(Of))
    if ruler not in RULERS:
        raise unknown("ruler", ruler, RULERS)
    first, names = request.models[0], short_names([model.name for model in request.models])
    for split in request.splits:
        if count > request.part(split).n:
            raise InputError(f"--levels {count} of {request.part(split).n} {split} items; ask for fewer levels")
        distances.check_attackable(request.data, Split(split))
    request.rehearse()
    # every forward pass comes before the first attack, so that a network that is refused has cost nothing
    every = (*request.models, *request.runs)
    predicted = {split: [request.predictions(model, split) for model in every] for split in request.splits}
    record: dict[str, Any] = {"ruler": ruler, "model": first.name, "runs": 1 + len(request.runs), "splits": {}}
    shown, panels, audited = [], [], []
    for split in request.splits:
        found = distances.load_or_measure(
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
        each, more = predicted[split][: len(names)], predicted[split][len(names) :]
        by_level = [
            calibration_by_level([p, *(() if i else more)], level, distance=found.distance, of=of, name=names[i])
            for i, p in enumerate(each)
        ]
        record["splits"][split] = {
            "n": len(found.distance),
            "median_distance": median_distance(found.distance),
            "unmoved": found.unmoved,
            "items_sha256": found.items,
            "models": [{k: v for k, v in one.to_dict().items() if k != "schema"} for one in by_level],
        }
        gaps = [_gaps(p)[level == 0] for p in each]
        verdict = compared([Result(n, {}, {}) for n in names], gaps, "confidence − accuracy where attacks are easiest")
        far = [f"{ruler.upper()} found no other prediction for {found.describe_unmoved()}."] if found.unmoved else []
        for one in by_level:
            table = narrow_table(section.head(one), section.level_rows(one))
            shown += [f"{split}: {section.lead(one)}", table, *one.notes()]
        if len(names) > 1:
            shown.append(f"Levels are those of {names[0]}.")
        notes = [*far, *([verdict, SEEDS] if verdict else [])]
        shown += notes
        panels.append(section.levels_panel(by_level, ruler=ruler, attacked=names[0], further=notes))
        audited += each
    return Probed(record, shown, panels, audited)


def _gaps(p: Predictions) -> Tensor:
    """Return confidence − correctness of every item, whose mean is the gap."""
    scores = reduce(p, classwise=False)
    return scores.confidence.cpu().double() - (scores.predicted == scores.labels).cpu().double()
