"""An experiment: one row of a paper's table, as a frozen record of everything that decides its numbers.

A recipe (data, network, loss, targets, transforms, schedule, selection), what is done with the trained network
(pool, ensembles, calibrators, shifts), the metrics, the number of seeds, and what the paper reports.
A *cell* is an experiment at one seed and one scale; its key is the content of its settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from calibrant.papers.reported import AS_TRAINED
from calibrant.posthoc import CONFIDENCES
from calibrant.training.recipe import Recipe, digest
from calibrant.training.settings import Choice, plain

Scale = str | int
"""`smoke`: one epoch (two where epochs are averaged) on a few hundred items, to see that it runs; `small`: a tenth of
the epochs; `paper`: all; or a number of epochs."""

SCALES = ("smoke", "small", "paper")
SMOKE_SIZES = {"train": 512, "validation": 128, "calibration": 128, "test": 256}
SMOKE_MEMBERS = 2
SMOKE_NETWORKS = {"wide_resnet28_10": "resnet29v2"}
"""Networks that two cores do not get through in minutes → a lighter one of the same family, at smoke scale only."""
AVERAGING = ("swa", "swag", "snapshot")
"""Ensembles of what a training was after several epochs."""
SMALL_SHARE, SMALL_EPOCHS = 0.1, 5
EDITIONS = {"train": 0, "predict": 0, "measure": 0}
"""Of what the steps of an experiment compute. Raise one when its numbers change: cells that it made are then stale, and
are measured again. Edition 0 is in no key."""


@dataclass(frozen=True)
class Published:
    """A network that someone else trained: a file of the data folder's `weights/`, and its author's normalisation."""

    weights: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Said:
    """What such a network said of the whole test set: a file of the data folder's `logits/`, without its weights."""

    logits: str


@dataclass(frozen=True)
class Experiment:
    """`reported` holds the paper's numbers as fractions: variant (`as_trained` or a calibrator) → metric → value.

    `shifts` are names of data sets, `train` (the training items), `levels` (of robustness), or `corruptions`,
    `perturbations`, `ood` (classes held out of training), `ood:NAME` (a foreign data set) and `attack:NAME`. With
    `pool`, so many trainings of seeds of their own are one predictor. `reference` is the network that mCE and its kin
    are relative to. With `block`, a video is measured frame by frame, and intervals draw so many successive frames
    together. A `published` network is not trained: the recipe names its architecture and data, and a seed is a
    halving of the test set into what maps and ensembles are fitted on and what they are judged on.
    """

    paper: str
    table: str
    row: str
    recipe: Recipe
    seeds: int = 1
    pool: int = 1
    ensembles: tuple[Choice, ...] = ()
    calibrators: tuple[str | Choice, ...] = ()  # names, or a name with options
    shifts: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy", "nll", "brier", "ece", "ece_mass", "auroc", "aurc", "gap")
    reported: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    note: str = ""
    original: Recipe | None = None  # the row's own recipe, where settings were changed
    reference: Recipe | None = None
    block: int | None = None
    published: Published | Said | None = None
    unprinted: tuple[str, ...] = ()  # settings of the recipe that the paper does not print: any value is the row's

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.table}/{self.row}"

    def at(self, seed: int, scale: Scale) -> Recipe:
        """The recipe of one cell."""
        recipe = replace(self.recipe, seed=seed)
        if self.published is not None:
            return replace(recipe, data=replace(recipe.data, sizes=SMOKE_SIZES)) if scale == "smoke" else recipe
        if scale == "smoke":
            several = any(e.name in AVERAGING for e in self.ensembles)
            squeezed = replace(recipe.scaled(SMOKE_MEMBERS if several else 1), network=self._lighter(recipe.network))
            return replace(squeezed, data=replace(recipe.data, sizes=SMOKE_SIZES), batch=min(recipe.batch, 64))
        epochs = max(SMALL_EPOCHS, round(recipe.epochs * SMALL_SHARE)) if scale == "small" else scale
        return recipe if epochs in ("paper", recipe.epochs) else recipe.scaled(int(epochs))

    def remark(self, scale: Scale) -> str:
        """What to know of a cell's numbers: at smoke scale, which network and data stood in for the row's own; else
        what is not the paper's schedule, and every other setting that is not the row's own."""
        used, paper = self.at(0, scale), self.paper_recipe
        if scale == "smoke":
            other = [f"{ours} instead of {theirs}" for ours, theirs in _names(used, paper) if ours != theirs]
            said = f"smoke: {', '.join(other)}" if other else ""
        else:
            said = schedule_note(used, paper)
        others = "" if scale == "smoke" else settings_note(used, paper, self.unprinted)
        return "; ".join(words for words in (said, others, self.note) if words)

    @property
    def paper_recipe(self) -> Recipe:
        """The row's own recipe, whatever was set on top of this one."""
        return self.recipe if self.original is None else self.original

    def scale_name(self, scale: Scale) -> str:
        """What a cell's scale is called; see `scale_of`."""
        return scale_of(self.at(0, scale), self.paper_recipe)

    def changed(self, settings: Mapping[str, Any]) -> Experiment:
        """With settings of the recipe on top."""
        return replace(self, recipe=self.recipe.with_settings(settings), original=self.paper_recipe)

    @staticmethod
    def _lighter(network: Choice) -> Choice:
        return replace(network, name=SMOKE_NETWORKS.get(network.name, network.name))

    def pooled(self, scale: Scale) -> tuple[Choice, ...]:
        """The ensembles of one cell; at smoke scale pairs, which run the same code."""
        return tuple(self._pair(e) if scale == "smoke" and "members" in e.options else e for e in self.ensembles)

    @staticmethod
    def _pair(ensemble: Choice) -> Choice:
        return Choice(ensemble.name, {**ensemble.options, "members": SMOKE_MEMBERS})

    def seeds_of(self, seed: int, scale: Scale) -> tuple[int, ...]:
        """The seeds whose trainings a cell is of: its own, or those of its pool, which no other pool has."""
        size = min(self.pool, SMOKE_MEMBERS) if scale == "smoke" else self.pool
        return tuple(range(seed * size, (seed + 1) * size))

    def alone(self) -> Experiment:
        """What each training of a pool is asked: the same, by itself."""
        return replace(self, pool=1)

    def of_reference(self) -> Experiment | None:
        """What the reference is asked: the corruptions, as it was trained."""
        if self.reference is None:
            return None
        plain_one = replace(self, pool=1, ensembles=(), calibrators=(), reference=None, original=None)
        return replace(plain_one, recipe=self.reference, shifts=("corruptions",), row="reference")

    @property
    def maps(self) -> dict[str, Choice]:
        """Variant → its calibrator: `temperature`, `temperature[objective=ece]`."""
        choices = [Choice(c) if isinstance(c, str) else c for c in self.calibrators]
        return {c.name + (f"[{_words(c.options)}]" if c.options else ""): c for c in choices}

    def settings(self, seed: int, scale: Scale) -> dict[str, Any]:
        """What decides a cell's numbers, as plain JSON; what the paper reports does not."""
        ensembles = [plain(e) for e in self.pooled(scale)]
        found = {
            "recipe": self.at(self.seeds_of(seed, scale)[0], scale).content(),
            "ensemble": ensembles if len(ensembles) > 1 else next(iter(ensembles), None),
            "calibrators": [plain(c) for c in self.calibrators],
            "shifts": list(self.shifts),
            "metrics": list(self.metrics),
        }
        if self.pool > 1:
            found["pool"] = len(self.seeds_of(seed, scale))
        if self.published is not None:
            found["published"] = plain(self.published)
        if (reference := self.of_reference()) is not None:
            found["reference"] = reference.at(seed, scale).content()
        if self.block is not None:
            found["block"] = self.block
        return found | ({"editions": raised} if (raised := editions(found)) else {})

    def key(self, seed: int, scale: Scale) -> str:
        return digest(self.settings(seed, scale))


def editions(settings: Mapping[str, Any]) -> dict[str, int]:
    """Of the steps that a cell of these settings is made by, those whose edition was raised."""
    asked = any(settings.get(k) for k in ("ensemble", "shifts", "block")) or any(
        (c if isinstance(c, str) else c["name"]) in CONFIDENCES for c in settings.get("calibrators", ())
    )
    used = {"train": "published" not in settings, "predict": asked, "measure": True}
    return {step: edition for step, edition in EDITIONS.items() if edition and used[step]}


def _words(options: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items())


def scale_of(recipe: Recipe, paper: Recipe) -> str:
    """What the scale of a training is called: `smoke`, `paper`, or how the paper's schedule was squeezed.

    `22of200` epochs; `22of200b512` with another batch; `22of200w1` with a warm-up of one epoch instead of its share;
    `22of200-resnet29v2` with another network than the row's, or options of its own for it; `22of200-svhn` with other
    data."""
    if recipe.data.sizes == SMOKE_SIZES:
        return "smoke"
    other = "" if plain(recipe.network) == plain(paper.network) else f"-{recipe.network.name}"
    data = "" if replace(recipe.data, seed=paper.data.seed) == paper.data else f"-{recipe.data.name}"
    batch = "" if recipe.batch == paper.batch else f"b{recipe.batch}"
    warm = "" if other or _warmup_share(recipe, paper) else f"w{recipe.schedule.warmup:g}"
    changed = f"{batch}{warm}{other}{data}"
    return "paper" if recipe.epochs == paper.epochs and not changed else f"{recipe.epochs}of{paper.epochs}{changed}"


def _names(recipe: Recipe, paper: Recipe) -> Iterator[tuple[str, str]]:
    """Network and data: this recipe's, and the row's own."""
    yield recipe.network.name, paper.network.name
    yield recipe.data.name, paper.data.name


def schedule_note(recipe: Recipe, paper: Recipe) -> str:
    """What a cell says about its schedule; empty for the paper's own."""
    changed = []
    if recipe.epochs != paper.epochs:
        changed.append(f"{recipe.epochs} epochs instead of {paper.epochs} (milestones scaled)")
    if not _warmup_share(recipe, paper):
        changed.append(f"a warm-up of {recipe.schedule.warmup:g} epochs")
    if recipe.batch != paper.batch:
        changed.append(f"batch {recipe.batch} instead of {paper.batch}")
    if recipe.optimiser.lr != paper.optimiser.lr:
        changed.append(f"learning rate {recipe.optimiser.lr:g} instead of {paper.optimiser.lr:g}")
    return f"NOT the paper's schedule: {'; '.join(changed)}" if changed else ""


SAID_OF_SCHEDULE = ("epochs", "batch", "schedule.warmup", "optimiser.lr")
OF_NO_METHOD = ("seed", "precision")


def settings_note(recipe: Recipe, paper: Recipe, unprinted: Sequence[str] = ()) -> str:
    """Settings of a recipe that are not the row's own, besides those that `schedule_note` knows."""
    scaled = paper if recipe.epochs == paper.epochs else paper.scaled(recipe.epochs)
    used, own = dict(flat(recipe.content())), dict(flat(scaled.content()))
    found = [key for key in used | own if key not in (*SAID_OF_SCHEDULE, *OF_NO_METHOD)]
    return "; ".join(
        f"{key} {_word(used.get(key))} instead of {_word(own.get(key))}"
        + (", which the paper does not print" if key in unprinted else "")
        for key in found
        if used.get(key) != own.get(key)
    )


def _word(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by dotted key."""
    for key, value in settings.items():
        if isinstance(value, dict):  # plain JSON: a Mapping of any kind would take thrice as long to recognise
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _warmup_share(recipe: Recipe, paper: Recipe) -> bool:
    """Whether the warm-up was squeezed like the rest of the schedule."""
    return recipe.schedule.warmup == paper.scaled(recipe.epochs).schedule.warmup


@dataclass(frozen=True)
class Paper:
    """A line of the table of papers."""

    name: str
    title: str
    experiments: tuple[Experiment, ...]


__all__ = ["AS_TRAINED", "Experiment", "Paper", "Scale"]
