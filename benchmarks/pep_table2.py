"""PEP Table 2 and Fig. 3 on a GPU: five small networks, six methods, many seeds; cells in the form of `results/`.

    python benchmarks/pep_table2.py ROW… [--seeds 10] [--dropout-seeds 5] [--store results] [--data-root DIR]

One row a process (they are bound by kernel launches: run the rows side by side). σ and T are tuned on the held-out
part of the training set (validation and calibration together, as in the paper), never on test. SWA averages the
last five epochs. A deep ensemble takes all seeds of a row, so there is one of it. The paper does not give the passes
of MC dropout: 50 here; nor batch and learning rate: 128 and 1e-3, as in the recipes.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.bench.store import Cell, Store
from calibrant.data import load
from calibrant.data.batches import Batches
from calibrant.ensembles.deep import Deep
from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.pep import PEP
from calibrant.ensembles.swa import SWA
from calibrant.functional.border import predictions
from calibrant.nn import build
from calibrant.papers import AS_TRAINED
from calibrant.papers.pep import ROWS, experiment
from calibrant.posthoc.temperature import Temperature
from calibrant.train.environment import environment
from calibrant.train.evaluate import summary
from calibrant.train.recipe import digest
from calibrant.types import Predictions, Split

METRICS = ("accuracy", "nll", "brier", "ece", "ece_mass", "auroc", "aurc", "gap")
SWA_EPOCHS, PASSES, OVERFITTING_SEEDS = 5, 50, 3


class Row:
    """A row of the table: its data on the device, and how its network is trained and judged."""

    def __init__(self, name: str, root: str | None, device: str, epochs: int | None = None) -> None:
        found = experiment(name)
        if epochs is not None:
            found = replace(found, recipe=replace(found.recipe, epochs=epochs))
        self.experiment, self.device = found, device
        recipe = self.experiment.recipe
        data = load(recipe.data.name, root=root, seed=recipe.data.seed, sizes=recipe.data.sizes)
        self.recipe, self.data = recipe, data
        held = [self._all(split) for split in (Split.VALIDATION, Split.CALIBRATION)]
        self.held_out = (torch.cat([x for x, _ in held]), torch.cat([y for _, y in held]))
        self.test = self._all(Split.TEST)
        self.train_sample = tuple(t[:5000] for t in self._all(Split.TRAIN))

    def _all(self, split: Split) -> tuple[Tensor, Tensor]:
        pairs = [(x, y) for x, y, _ in self._batches(split, 5000)]
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])

    def _batches(self, split: Split, size: int, generator: torch.Generator | None = None) -> Batches:
        return Batches(
            self.data.splits[split],
            size,
            device=self.device,
            generator=generator,
            shuffle=generator is not None,
            mean=self.data.mean,
            std=self.data.std,
        )

    def train(self, seed: int, **options: Any) -> list[nn.Module]:
        """The network after each of the 15 epochs (PEP saves a checkpoint an epoch)."""
        model = build(
            self.recipe.network.name,
            classes=len(self.data.classes),
            in_channels=self.data.shape[0],
            seed=seed,
            size=tuple(self.data.shape[1:]),
            **{**self.recipe.network.options, **options},
        ).to(self.device)
        generator = torch.Generator().manual_seed(1000 + seed)
        batches = self._batches(Split.TRAIN, self.recipe.batch, generator)
        optimiser = torch.optim.Adam(model.parameters(), self.recipe.optimiser.lr, fused=self.device == "cuda")
        epochs = []
        for _ in range(self.recipe.epochs):
            model.train()
            with torch.random.fork_rng(devices=[0] if self.device == "cuda" else []):
                torch.manual_seed(seed * 1000 + len(epochs))  # dropout's masks
                for x, y, _ in batches:
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimiser.step()
            epochs.append(copy.deepcopy(model).eval())
        return epochs

    @torch.no_grad()
    def predict(self, network: Any, part: tuple[Tensor, Tensor], split: Split = Split.TEST) -> Predictions:
        logits = torch.cat([network(x) for x in part[0].split(2500)])
        return predictions(logits.cpu(), part[1].cpu(), split=split)

    def score(self, network: Any) -> dict[str, float | None]:
        return summary(self.predict(network, self.test), METRICS)


def measure_seed(row: Row, seed: int, dropout: bool) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """One seed: every column but the deep ensemble."""
    epochs = row.train(seed)
    model = epochs[-1]
    held = row.predict(model, row.held_out, Split.CALIBRATION)
    temperature = Temperature().fit(held)
    pep = replace_members(PEP.fit(model, row.held_out, members=10), 10)
    swa = SWA.fit(
        model, [e.state_dict() for e in epochs[-SWA_EPOCHS:]], [x for x, _, _ in row._batches(Split.TRAIN, 1000)]
    )
    measured = {
        AS_TRAINED: row.score(model),
        "temperature": summary(temperature.predictions(row.predict(model, row.test)), METRICS),
        "pep": row.score(pep),
        "swa": row.score(swa),
    }
    if dropout:
        measured["dropout"] = row.score(MCDropout(row.train(seed, dropout=0.5)[-1], members=PASSES))
    extras: dict[str, Any] = {"temperature": float(temperature.summary()["temperature"]), "sigma": pep.sigma}
    assert pep.certificate is not None
    extras["pep_passes"], extras["pep_notes"] = pep.certificate.passes, list(pep.certificate.notes)
    if seed < OVERFITTING_SEEDS:
        extras["overfitting"] = overfitting(row, epochs)
    return model, measured, extras


def replace_members(pep: PEP, members: int) -> PEP:
    return PEP(pep.model, pep.sigma, members, pep.distribution, pep.where, pep.seed, pep.antithetic, pep.certificate)


def overfitting(row: Row, epochs: list[nn.Module]) -> list[dict[str, float]]:
    """PEP Fig. 3: at each epoch, the train–test NLL gap, σ* and the PEP effect on test."""
    out = []
    for number, model in enumerate(epochs, 1):
        train, test = (summary(row.predict(model, part), ("nll",))["nll"] for part in (row.train_sample, row.test))
        pep = PEP.fit(model, row.held_out, members=6)
        after = summary(row.predict(pep, row.test), ("nll",))["nll"]
        assert train is not None and test is not None and after is not None
        out.append({"epoch": number, "train_nll": train, "test_nll": test, "sigma": pep.sigma, "pep_nll": after})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=ROWS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--dropout-seeds", type=int, default=5)
    parser.add_argument("--store", type=Path, default=Path("results"))
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=None, help="fewer than the paper's 15, to see that it runs")
    args = parser.parse_args()
    command = "python benchmarks/pep_table2.py " + " ".join(args.rows)
    where, store = environment(args.device), Store(args.store)
    for name in args.rows:
        row, models, cells = Row(name, args.data_root, args.device, args.epochs), [], []
        for seed in range(args.seeds):
            start = time.perf_counter()
            settings = row.experiment.settings(seed, "paper") | {"columns": sorted(row.experiment.reported)}
            settings |= {"swa_epochs": SWA_EPOCHS, "passes": PASSES, "pep_members": 10}
            model, measured, extras = measure_seed(row, seed, dropout=seed < args.dropout_seeds)
            models.append(model)
            cell = Cell(
                experiment=row.experiment.name, seed=seed, scale="paper", key=digest(settings), status="done",
                settings=settings, measured=measured, reported=row.experiment.reported,
                note="batch and learning rate ours; σ and T tuned on the whole held-out set; MC dropout with 50 passes",
                seconds=time.perf_counter() - start, device=where["device"], environment=where,
                commit=where["commit"], command=command, extras=extras,
            )  # fmt: skip
            cells.append(cell)
            store.write(row.experiment, cell)
            line = {k: round(v["nll"] or 0, 4) for k, v in measured.items()}
            print(name, seed, json.dumps(line), f"{cell.seconds:.0f} s", file=sys.stderr, flush=True)
        deep = row.score(Deep(models))
        first = replace(cells[0], measured={**cells[0].measured, "deep": deep})
        store.write(row.experiment, replace(first, extras={**first.extras, "deep_members": len(models)}))
        print(name, "deep", deep, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
