"""An experiment: one row of a paper's table, as a frozen record of all that decides its numbers.

It has a recipe (data, network, loss, targets, transforms, schedule, selection), what is done with the trained network
(pool, ensembles, calibrators, shifts), the metrics, the number of seeds, and what the paper reports.
A *cell* is an experiment at one seed and one scale; its key is a hash of its settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from calibrant.papers.reported import AS_TRAINED, Numbers, reported_numbers
from calibrant.posthoc import CONFIDENCES
from calibrant.training.recipe import Recipe, digest
from calibrant.training.settings import Choice, plain

Scale = str | int
"""`smoke`: one epoch (two if epochs are averaged) on a few hundred items, which shows that the row runs; `small`: a
tenth of the epochs; `paper`: all epochs; or a number of epochs."""

SCALES = ("smoke", "small", "paper")
SMOKE_SIZES = {"train": 512, "validation": 128, "calibration": 128, "test": 256}
SMOKE_MEMBERS = 2
SMOKE_NETWORKS = {"wide_resnet28_10": "resnet29v2"}
"""Networks that take minutes on two cores → a lighter one of the same family, at smoke scale only."""
AVERAGING = ("swa", "swag", "snapshot")
"""Ensembles of a training's weights after several epochs."""
SMALL_SHARE, SMALL_EPOCHS = 0.1, 5
EDITIONS = {"train": 0, "predict": 0, "measure": 0}
"""The edition of each kind of step. Raise it when the numbers of the step change: the cells that it made are then stale
and measured again. Edition 0 is in no key."""


@dataclass(frozen=True)
class PublishedNetwork:
    """A network that someone else trained: a file in `weights/` of the data folder, and its author's normalisation."""

    weights: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class PublishedLogits:
    """Such a network's logits of the whole test set: a file in `logits/` of the data folder, without its weights."""

    logits: str


@dataclass(frozen=True)
class Experiment:
    """One row of a paper's table.

    `shifts` are names of data sets, `train` (the training items), `levels` (of robustness), or `corruptions`,
    `perturbations`, `ood` (classes held out of training), `ood:NAME` (a foreign data set) and `attack:NAME`. `pool`
    trainings, each with its own seed, are one predictor. `reference` is the network to which mCE, mCNLL and mCECE are
    relative. With `block`, a video is measured frame by frame, and intervals resample blocks of this many successive
    frames. A `published` network is not trained: the recipe names its architecture and data, and a seed is a halving of
    the test set into one part for fitting and one for judging.
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
    note: str = ""
    original: Recipe | None = None  # the row's own recipe, where settings were changed
    reference: Recipe | None = None
    block: int | None = None
    published: PublishedNetwork | PublishedLogits | None = None
    unprinted: tuple[str, ...] = ()  # settings that the paper does not print: any value is accepted as the row's

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.table}/{self.row}"

    @property
    def reported(self) -> Numbers:
        """What the paper reports: variant (`as_trained` or a calibrator) → metric → value, as fractions."""
        return reported_numbers(self.name)

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
        """The caveats of a cell: at smoke scale, which network and data replaced the row's own; otherwise where its
        schedule and its other settings differ from the row's own."""
        used, paper = self.at(0, scale), self.paper_recipe
        if scale == "smoke":
            other = [f"{ours} instead of {theirs}" for ours, theirs in _names(used, paper) if ours != theirs]
            first = f"smoke: {', '.join(other)}" if other else ""
        else:
            first = schedule_note(used, paper)
        others = "" if scale == "smoke" else settings_note(used, paper, self.unprinted)
        return "; ".join(words for words in (first, others, self.note) if words)

    @property
    def paper_recipe(self) -> Recipe:
        """The row's own recipe, without changed settings."""
        return self.recipe if self.original is None else self.original

    def scale_name(self, scale: Scale) -> str:
        """The name of a cell's scale; see `scale_of`."""
        return scale_of(self.at(0, scale), self.paper_recipe)

    def changed(self, settings: Mapping[str, Any]) -> Experiment:
        """A copy with changed settings of the recipe."""
        return replace(self, recipe=self.recipe.with_settings(settings), original=self.paper_recipe)

    @staticmethod
    def _lighter(network: Choice) -> Choice:
        return replace(network, name=SMOKE_NETWORKS.get(network.name, network.name))

    def ensembles_at(self, scale: Scale) -> tuple[Choice, ...]:
        """The ensembles of one cell; at smoke scale they have two members, which runs the same code."""
        return tuple(self._pair(e) if scale == "smoke" and "members" in e.options else e for e in self.ensembles)

    @staticmethod
    def _pair(ensemble: Choice) -> Choice:
        return Choice(ensemble.name, {**ensemble.options, "members": SMOKE_MEMBERS})

    def seeds_of(self, seed: int, scale: Scale) -> tuple[int, ...]:
        """The seeds of a cell's trainings: its own, or those of its pool, which no other pool uses."""
        size = min(self.pool, SMOKE_MEMBERS) if scale == "smoke" else self.pool
        return tuple(range(seed * size, (seed + 1) * size))

    def alone(self) -> Experiment:
        """The same experiment on a single training of its pool."""
        return replace(self, pool=1)

    def of_reference(self) -> Experiment | None:
        """The experiment of the reference network: corruptions, without calibrators."""
        if self.reference is None:
            return None
        plain_one = replace(self, pool=1, ensembles=(), calibrators=(), reference=None, original=None)
        return replace(plain_one, recipe=self.reference, shifts=("corruptions",), row="reference")

    @property
    def maps(self) -> dict[str, Choice]:
        """Variant → its calibrator. Variants are named like `temperature` or `temperature[objective=ece]`."""
        choices = [Choice(c) if isinstance(c, str) else c for c in self.calibrators]
        return {c.name + (f"[{_words(c.options)}]" if c.options else ""): c for c in choices}

    def settings(self, seed: int, scale: Scale) -> dict[str, Any]:
        """All that decides a cell's numbers, as plain JSON."""
        ensembles = [plain(e) for e in self.ensembles_at(scale)]
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
    """The raised editions of the steps that make a cell of these settings."""
    asked = any(settings.get(k) for k in ("ensemble", "shifts", "block")) or any(
        (c if isinstance(c, str) else c["name"]) in CONFIDENCES for c in settings.get("calibrators", ())
    )
    used = {"train": "published" not in settings, "predict": asked, "measure": True}
    return {step: edition for step, edition in EDITIONS.items() if edition and used[step]}


def _words(options: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items())


def scale_of(recipe: Recipe, paper: Recipe) -> str:
    """The name of a training's scale: `smoke`, `paper`, or how it differs from the paper's schedule.

    `22of200` epochs; `22of200b512` with another batch; `22of200w1` with a warm-up of one epoch instead of its share;
    `22of200-resnet29v2` with another network, or other options for the row's network; `22of200-svhn` with other data.
    """
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
    """In words, how a schedule differs from the paper's; empty if it does not."""
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


OF_SCHEDULE = ("epochs", "batch", "schedule.warmup", "optimiser.lr")
OF_NO_METHOD = ("seed", "precision")


def settings_note(recipe: Recipe, paper: Recipe, unprinted: Sequence[str] = ()) -> str:
    """In words, which settings differ from the row's own, except those in `schedule_note`."""
    scaled = paper if recipe.epochs == paper.epochs else paper.scaled(recipe.epochs)
    used, own = dict(flat(recipe.content())), dict(flat(scaled.content()))
    found = [key for key in used | own if key not in (*OF_SCHEDULE, *OF_NO_METHOD)]
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
        if isinstance(value, dict):  # plain JSON has only dicts, and checking for Mapping takes three times as long
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _warmup_share(recipe: Recipe, paper: Recipe) -> bool:
    """Whether the warm-up was squeezed like the rest of the schedule."""
    return recipe.schedule.warmup == paper.scaled(recipe.epochs).schedule.warmup


@dataclass(frozen=True)
class Paper:
    """A paper and its experiments."""

    name: str
    title: str
    experiments: tuple[Experiment, ...]


__all__ = ["AS_TRAINED", "Experiment", "Paper", "Scale"]
