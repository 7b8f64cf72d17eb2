"""PEP Table 2 and Fig. 3 on a GPU: five small networks, six methods, many seeds; cells in the form of `results/`.

    python benchmarks/pep_table2.py ROW… [--seeds 10] [--dropout-seeds 5] [--store results] [--data-root DIR]
    python benchmarks/pep_table2.py ROW… --seeds 5 --only dropout   # this column alone, into cells that exist

One row a process (they are bound by kernel launches: run the rows side by side). σ and T are tuned on the held-out
part of the training set (validation and calibration together, as in the paper), never on test. SWA averages the
last five epochs. A deep ensemble takes all seeds of a row, so there is one of it. The paper does not give the passes
of MC dropout: 50 here; nor batch and learning rate: 128 and 1e-3, as in the recipes. Where its networks leave a choice
that decides whether dropout trains at all (order of BatchNorm and ReLU, padding), each reading is trained once, with
the first seed, and the one with the lowest NLL of MC dropout on the held-out set is used; the cell lists them all.
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
from calibrant.ensembles.deep import DeepEnsemble
from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.pep import PEP
from calibrant.ensembles.swa import SWA
from calibrant.functional.inputs import predictions
from calibrant.nn import build
from calibrant.papers import AS_TRAINED
from calibrant.papers.pep import ROWS, experiment
from calibrant.posthoc.temperature import Temperature
from calibrant.training.environment import environment
from calibrant.training.evaluate import summary
from calibrant.training.recipe import digest
from calibrant.types import Predictions, Split

METRICS = ("accuracy", "nll", "brier", "ece", "ece_mass", "auroc", "aurc", "gap")
SWA_EPOCHS, PASSES, OVERFITTING_SEEDS = 5, 50, 3
READINGS: dict[str, dict[str, Any]] = {
    "BatchNorm, ReLU, dropout; padding 1": {},
    "BatchNorm, ReLU, dropout; no padding": {"padding": 0},
    "ReLU, BatchNorm, dropout; padding 1": {"norm_first": False},
    "ReLU, BatchNorm, dropout; no padding": {"norm_first": False, "padding": 0},
}
"""Of the CIFAR network of §3.2, for MC dropout; the other networks leave no such choice."""


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


class Dropout:
    """The column of MC dropout: the reading is chosen with the first seed, on held-out data."""

    def __init__(self, row: Row) -> None:
        self.row, self.held_out_nll = row, dict[str, float]()
        self.readings = READINGS if row.recipe.network.name == "cifar_cnn" else {"as described": {}}

    def measure(self, seed: int) -> tuple[dict[str, float | None], dict[str, Any]]:
        """(metrics on test, what to note)"""
        networks = {}
        for name in [self.best] if self.held_out_nll else list(self.readings):
            networks[name] = MCDropout(self.row.train(seed, dropout=0.5, **self.readings[name])[-1], members=PASSES)
            if name not in self.held_out_nll:
                held = summary(self.row.predict(networks[name], self.row.held_out, Split.CALIBRATION), ("nll",))["nll"]
                self.held_out_nll[name] = float("inf") if held is None else held
                print(self.row.experiment.name, name, "held-out NLL", held, file=sys.stderr, flush=True)
        noted = {"dropout_reading": self.best, "dropout_readings_held_out_nll": self.held_out_nll}
        return self.row.score(networks[self.best]), noted

    @property
    def best(self) -> str:
        return min(self.held_out_nll, key=lambda name: self.held_out_nll[name])


def measure_seed(row: Row, seed: int, known: Any) -> tuple[nn.Module, dict[str, Any], dict[str, Any]]:
    """One seed: every column but MC dropout and the deep ensemble. `known`: Fig. 3 of this seed, if a cell has it."""
    epochs = row.train(seed)
    model = epochs[-1]
    held = row.predict(model, row.held_out, Split.CALIBRATION)
    temperature = Temperature().fit(held)
    pep = PEP.fit(model, row.held_out, members=10, search_members=10)
    swa = SWA.fit(
        model, [e.state_dict() for e in epochs[-SWA_EPOCHS:]], [x for x, _, _ in row._batches(Split.TRAIN, 1000)]
    )
    measured = {
        AS_TRAINED: row.score(model),
        "temperature": summary(temperature.predictions(row.predict(model, row.test)), METRICS),
        "pep": row.score(pep),
        "swa": row.score(swa),
    }
    extras: dict[str, Any] = {"temperature": float(temperature.summary()["temperature"]), "sigma": pep.sigma}
    assert pep.certificate is not None
    extras["pep_passes"], extras["pep_notes"] = pep.certificate.passes, list(pep.certificate.notes)
    if seed < OVERFITTING_SEEDS:
        extras["overfitting"] = known or overfitting(row, epochs)
    return model, measured, extras


def overfitting(row: Row, epochs: list[nn.Module]) -> list[dict[str, float]]:
    """PEP Fig. 3: at each epoch, the train–test NLL gap, σ* and the PEP effect on test."""
    out = []
    for number, model in enumerate(epochs, 1):
        train, test = (summary(row.predict(model, part), ("nll",))["nll"] for part in (row.train_sample, row.test))
        pep = PEP.fit(model, row.held_out, members=6, search_members=6)
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
    parser.add_argument("--only", choices=["dropout"], default=None, help="this column alone, into existing cells")
    args = parser.parse_args()
    command = "python benchmarks/pep_table2.py " + " ".join(args.rows) + (f" --only {args.only}" if args.only else "")
    where, store = environment(args.device), Store(args.store)
    for name in args.rows:
        row = Row(name, args.data_root, args.device, args.epochs)
        dropout, models, cells = Dropout(row), [], []
        for seed in range(args.seeds):
            start = time.perf_counter()
            settings = row.experiment.settings(seed, "paper") | {"columns": sorted(row.experiment.reported)}
            settings |= {"swa_epochs": SWA_EPOCHS, "passes": PASSES, "pep_members": 10}
            key = digest(settings)
            there = [c for c in store.cells(row.experiment.name) if c.seed == seed and c.key == key]
            if args.only is None:
                model, measured, extras = measure_seed(row, seed, there[0].extras.get("overfitting") if there else None)
                models.append(model)
            elif there:
                measured, extras = dict(there[0].measured), dict(there[0].extras)
            else:
                print(name, seed, "has no cell yet: run it without --only", file=sys.stderr, flush=True)
                continue
            if seed < args.dropout_seeds:
                measured["dropout"], noted = dropout.measure(seed)
                extras |= noted
            cell = Cell(
                experiment=row.experiment.name, seed=seed, scale="paper", key=key, status="done",
                settings=settings, measured=measured, reported=row.experiment.reported,
                note="batch and learning rate ours; σ and T tuned on the whole held-out set; MC dropout with 50 passes",
                seconds=time.perf_counter() - start, device=where["device"], environment=where,
                commit=where["commit"], extras=extras,
                command=f"{there[0].command}; {command}" if args.only else command,
            )  # fmt: skip
            cells.append(cell)
            store.write(cell)
            line = {k: round(v["nll"] or 0, 4) for k, v in measured.items()}
            print(name, seed, json.dumps(line), f"{cell.seconds:.0f} s", file=sys.stderr, flush=True)
        if len(models) < 2:
            continue
        deep = row.score(DeepEnsemble(models))
        first = replace(cells[0], measured={**cells[0].measured, "deep": deep})
        store.write(replace(first, extras={**first.extras, "deep_members": len(models)}))
        print(name, "deep", deep, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
