"""What leaves `smoothing_runs`, and what is made of it: claims, deep ensembles, few files; and `gather`, afterwards.

claims.json      "2 with smoothing ≈ 50 without" a seed (items resampled in pairs) and over the seeds that are done
parcel-00.zip    the cells
items.npz        NLL of each test item with 1, 2 and 50 members, `ROW|SCALE|SEED|nll_2`
singles-NN.npz   log-probabilities of Table E.1's networks without dropout, half precision: members of deep ensembles
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.smoothing_measure import FEW, MANY, Curve, claim, claim_over_seeds, deep_curve, nll_of_items
from calibrant.bench import parcel
from calibrant.bench.store import Cell, Store
from calibrant.files.paths import visible
from calibrant.functional.inputs import predictions
from calibrant.metrics.evaluate import evaluate
from calibrant.papers import AS_TRAINED, Experiment, experiments
from calibrant.training.recipe import digest
from calibrant.types import Predictions, Split, jsonable

Done = tuple[Path, tuple[Experiment, ...], int, str]
"""A unit's run folder, its rows, its seed, its scale."""
Key = tuple[str, str, int]
"""Row, scale, seed."""
SIZE = 14 * 2**20
FILES = 4  # of singles


def pack(units: Sequence[Done], a: argparse.Namespace) -> None:
    """Claims and deep ensembles of whatever is done, into the cells and out."""
    a.out.mkdir(parents=True, exist_ok=True)
    ours = {(e.row, scale, seed): (folder, e) for folder, rows, seed, scale in units for e in rows if _first(e, rows)}
    done = {key: found for key, found in ours.items() if (found[0] / "measured.json").is_file()}
    store = Store(a.cells)
    items: dict[str, Any] = {}
    singles: dict[Key, Predictions] = {}
    curves: dict[Key, Curve] = {}
    for key, (folder, e) in done.items():
        cell = next(c for c in store.cells(e.name) if (c.scale, c.seed) == key[1:] and c.key == _key(folder))
        with np.load(folder / "kept.npz", allow_pickle=False) as arrays:
            y = torch.from_numpy(arrays["labels"])
            kept = {n: _predictions(arrays[n], y) for n in arrays.files if n != "labels"}
        pool = {int(n.rpartition("_")[2]): p for n, p in kept.items() if n.startswith("pool")}
        if e.table == "table_e1":
            each = pool or {1: kept["single_1"]}
            items |= {f"{'|'.join(map(str, key))}|nll_{n}": nll_of_items(p).float().numpy() for n, p in each.items()}
            if pool:
                curves[key] = Curve(cell.extras["curve"], pool)
            else:
                singles[key] = kept["single_1"]
    said = []
    for (row, scale, seed), smooth in curves.items():
        plain = curves.get((row.removesuffix("_smooth"), scale, seed))
        if row.endswith("_smooth") and plain is not None:
            found = claim(plain, smooth)
            said.append({"row": row, "scale": scale, "seed": seed, **found})
            folder, e = done[row, scale, seed]
            cell = next(c for c in store.cells(e.name) if (c.scale, c.seed, c.key) == (scale, seed, _key(folder)))
            store.write(replace(cell, extras={**cell.extras, "claim": found}))
    over = over_seeds(items)
    (a.out / "claims.json").write_text(json.dumps(jsonable({"seeds": said, "over_seeds": over}), indent=1), "utf-8")
    for one in over:
        print(f"{one['row']} {one['scale']}: {one['claim']}: {json.dumps(jsonable(one))}", flush=True)
    for e, cell in deep_cells(singles, a.command):
        store.write(cell)
        print(f"{e.row} {cell.scale}: {cell.extras['members']} members {cell.measured[AS_TRAINED]}", flush=True)
    np.savez_compressed(a.out / "items.npz", **items)
    write_singles(singles, a.out)
    packed(store, a.out)


def _first(e: Experiment, rows: Sequence[Experiment]) -> bool:
    """One row stands for the unit: Table E.1's, if it is one of them."""
    return e is next((r for r in rows if r.table == "table_e1"), rows[0])


def _key(folder: Path) -> str:
    key: str = json.loads((folder / "measured.json").read_text("utf-8"))["key"]
    return key


def packed(store: Store, out: Path) -> None:
    for path in visible(out, "*.zip"):
        path.unlink()
    print(f"packed {', '.join(p.name for p in parcel.pack(store, out, 2).files)}", flush=True)


def _predictions(logits: np.ndarray[Any, Any], y: torch.Tensor) -> Predictions:
    return predictions(torch.from_numpy(logits.astype(np.float32)), y, split=Split.TEST)


def over_seeds(items: Mapping[str, np.ndarray[Any, Any]]) -> list[dict[str, Any]]:
    """The claim over the seeds that have both MC dropout networks, a row for each data set and scale.

    "≈" has no margin in the paper. Beside the difference stands the NLL that the other 48 passes save without
    smoothing: a difference whose interval is small against that is what the claim means.
    """
    more: dict[tuple[str, str], list[float]] = {}
    found: dict[tuple[str, str], dict[int, np.ndarray[Any, Any]]] = {}
    for name, many in items.items():
        row, scale, seed, size = name.split("|")
        few = items.get(f"{row}_smooth|{scale}|{seed}|nll_{FEW}")
        if row.endswith("_dropout") and few is not None and size == _largest(items, row, scale, seed):
            found.setdefault((row, scale), {})[int(seed)] = few - many
            plain = items.get(f"{row}|{scale}|{seed}|nll_{FEW}")
            if plain is not None:
                more.setdefault((row, scale), []).append(float((plain - many).mean()))
    out = []
    for (row, scale), seeds in sorted(found.items()):
        said = claim_over_seeds(torch.from_numpy(np.stack([seeds[s] for s in sorted(seeds)])).double())
        text = f"NLL of {FEW} with smoothing − NLL of {MANY} without"
        gain = {"plain_few_minus_many": float(np.mean(more[row, scale]))} if (row, scale) in more else {}
        out.append({"row": row, "scale": scale, "claim": text, "each": sorted(seeds), **said, **gain})
    return out


def _largest(items: Mapping[str, Any], row: str, scale: str, seed: str) -> str:
    start = f"{row}|{scale}|{seed}|nll_"
    return f"nll_{max(int(n.removeprefix(start)) for n in items if n.startswith(start))}"


def deep_cells(singles: Mapping[Key, Predictions], command: str) -> list[tuple[Experiment, Cell]]:
    """SS Fig. E.1: the seeds of one network as a deep ensemble of 1, 2, …; where two seeds or more are done."""
    out = []
    for row, scale in sorted({key[:2] for key in singles}):
        seeds = sorted(s for r, c, s in singles if (r, c) == (row, scale))
        known = [e for e in experiments("ss/figure_e1") if e.row == f"{row}_deep"]
        if len(seeds) < 2 or not known:
            continue
        [e], members = known, [singles[row, scale, s] for s in seeds]
        log_p = torch.stack([torch.log_softmax(p.logits.double(), -1) for p in members if p.logits is not None])
        pooled = replace(members[0], logits=torch.logsumexp(log_p, 0) - np.log(len(seeds)), raw=False)
        report = evaluate(pooled, metrics=e.metrics)
        settings = {"row": row, "scale": scale, "seeds": seeds}
        cell = Cell(
            experiment=e.name, seed=0, scale=scale, key=digest(settings), status="done", settings=settings,
            measured={AS_TRAINED: {m: x.value for m, x in report.items()}},
            intervals={AS_TRAINED: {m: (x.low, x.high) for m, x in report.items()}},
            note=f"{e.note}; {len(seeds)} trainings of Table E.1's row pooled", command=command,
            extras={"curve": deep_curve(members), "members": len(seeds)},
        )  # fmt: skip
        out.append((e, cell))
    return out


def write_singles(singles: Mapping[Key, Predictions], out: Path) -> None:
    parts: list[dict[str, Any]] = [{}]
    for key, p in singles.items():
        assert p.logits is not None
        array = torch.log_softmax(p.logits.double(), -1).half().numpy()
        labels = {f"labels|{'|'.join(map(str, key))}": p.labels.to(torch.int16).numpy()}
        if sum(v.nbytes for v in parts[-1].values()) + array.nbytes > SIZE:
            parts.append({})
        parts[-1] |= {"|".join(map(str, key)): array, **labels}
    for number, arrays in enumerate(parts[:FILES]):
        np.savez_compressed(out / f"singles-{number:02d}.npz", **arrays)
    if len(parts) > FILES:
        print(f"{len(parts) - FILES} more files of singles stay here: too many to leave", flush=True)


def gather(folders: Sequence[Path], results: Path) -> int:
    """Cells into `results`; the claim and the deep ensembles over the seeds of all folders together."""
    items: dict[str, np.ndarray[Any, Any]] = {}
    singles: dict[Key, Predictions] = {}
    for folder in folders:
        parcel.unpack(folder, Store(results))
        for path in visible(folder, "items.npz"):
            with np.load(path, allow_pickle=False) as arrays:
                items |= {name: arrays[name] for name in arrays.files if "|smoke|" not in name}
        for path in visible(folder, "singles-*.npz"):
            with np.load(path, allow_pickle=False) as arrays:
                for name in (n for n in arrays.files if not n.startswith("labels|") and "|smoke|" not in n):
                    row, scale, seed = name.split("|")
                    y = torch.from_numpy(arrays[f"labels|{name}"].astype(np.int64))
                    singles[row, scale, int(seed)] = _predictions(arrays[name], y)
    for said in over_seeds(items):
        print(f"{said['row']} {said['scale']}: {json.dumps(jsonable(said))}")
        settings = {"row": said["row"], "scale": said["scale"], "seeds": said["each"], "claim": said["claim"]}
        variant = "few_smooth_minus_many_plain"
        cell = Cell(
            experiment=f"ss/figure3/{said['row']}", seed=0, scale=said["scale"], key=digest(settings), status="done",
            settings=settings, measured={variant: {"nll": said["nll"]}},
            intervals={variant: {"nll": (said["low"], said["high"])}},
            note=f"{said['claim']}; the interval: {said['interval']}",
            extras={k: said[k] for k in ("verdict", "plain_few_minus_many", "seeds", "interval") if k in said},
        )  # fmt: skip
        Store(results).write(cell)
    for e, cell in deep_cells(singles, "python -m benchmarks.smoothing_runs --gather"):
        if not any(c.extras["members"] >= cell.extras["members"] for c in _there(results, e, cell.scale)):
            print(Store(results).write(cell))
    return 0


def _there(results: Path, e: Experiment, scale: str) -> list[Cell]:
    return [c for c in Store(results).cells(e.name) if c.scale == scale]
