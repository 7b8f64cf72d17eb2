"""Choose among trainings: every point of a grid is a run of its own, and the best one on the named split is the result.

`RUN/selection.json` records all points, the criterion and the split of the choice, the chosen point, and the point
that an oracle, who sees the test labels, would have chosen. A choice made on test is called an oracle choice. A search
can be resumed because its runs can.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant.errors import InputError
from calibrant.files import atomic, hashed
from calibrant.metrics import METRICS
from calibrant.training import levels, run_folder
from calibrant.training.components import components, known_values
from calibrant.training.progress import TensorBoard
from calibrant.training.recipe import Recipe, digest
from calibrant.training.run import PREDICTED, Given, How, data_of, train
from calibrant.types import SCHEMA, Split, jsonable

Point = dict[str, Any]


def select(
    recipe: Recipe,
    out: str | Path,
    how: How = How(),  # noqa: B008
    data: Given | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Point:
    """Train every point of the grid under `out/points/`, choose, and put the chosen run's results into `out`."""
    if recipe.selection is None:
        raise InputError("this recipe has no selection; use calibrant.train")
    if how.tensorboard:
        TensorBoard.check_installed()
    with run_folder.alone_in(Path(out)):
        return _search(recipe, Path(out), how, data, say)


def _search(recipe: Recipe, folder: Path, how: How, data: Given | None, say: Callable[[str], None]) -> Point:
    assert recipe.selection is not None
    loaded = data_of(recipe, how, data)  # once for all points, before anything is written
    grid, s = recipe.points(), recipe.selection
    for _, each in grid:  # find a mistake in any point before the first one trains
        components(each, {**known_values(loaded), **how.handed})
        levels.check(each, how, loaded)
    run_folder.check_recipe(folder, recipe)
    (folder / "points").mkdir(parents=True, exist_ok=True)
    hashed.write(folder / "recipe.json", recipe.plain())
    points: list[Point] = []
    for settings, each in grid:
        point = _point(folder, settings)
        say(f"{recipe.name}: {', '.join(f'{k} = {v}' for k, v in settings.items())}")
        metrics = train(each, point, how, loaded)
        name = point.relative_to(folder).as_posix()
        points.append({"settings": settings, "folder": name, "metrics": metrics["metrics"]})
    chosen = best(points, s.criterion, s.split)
    record = {
        "schema": SCHEMA,
        "recipe": recipe.name,
        "key": recipe.key(),
        "criterion": s.criterion,
        "split": s.split,
        "oracle": s.oracle,
        "chosen": chosen,
        "oracle_choice": best(points, s.criterion, Split.TEST),
        "points": points,
    }
    for split in PREDICTED:
        file = folder / chosen["folder"] / f"{split.value}.npz"
        if file.is_file():
            with atomic.file(folder / file.name) as temporary:
                shutil.copyfile(file, temporary)
    atomic.write_text(folder / "metrics.json", (folder / chosen["folder"] / "metrics.json").read_text("utf-8"))
    hashed.write(folder / "selection.json", jsonable(record))
    return record


def _point(folder: Path, settings: Mapping[str, Any]) -> Path:
    return folder / "points" / digest(settings)[:12]


def best(points: Sequence[Point], criterion: str, split: str) -> Point:
    """The point with the best criterion on `split`; ties go to the first, points without a value come last."""
    better = METRICS[criterion].better

    def cost(point: Mapping[str, Any]) -> float:
        value = point["metrics"].get(str(split), {}).get(criterion)
        if value is None:
            return float("inf")
        return -float(value) if better == "high" else abs(float(value)) if better == "zero" else float(value)

    chosen = min(points, key=cost)
    if cost(chosen) == float("inf"):
        raise InputError(f"no point of the grid has {criterion!r} on {str(split)!r}; choose another criterion or split")
    return chosen
