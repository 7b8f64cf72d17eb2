"""`calibrant apply MAP/ PREDS -o OUT`: predictions after a fitted map, or with the decisions of a rule beside them.

Parquet folders stream through a map, part by part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from calibrant import files
from calibrant.cli.apply_shifted import shifted_sets
from calibrant.cli.console import block_json, say
from calibrant.cli.fit import Bar
from calibrant.cli.options import ClassAxis, IgnoreIndex, Json, Labels, LabelsKey, LogitsKey, ProbsKey
from calibrant.decisions import Decisions, Rule, load
from calibrant.errors import FileError, InputError
from calibrant.files import outputs
from calibrant.files.columns import OtherColumns
from calibrant.functional.scores import reduce
from calibrant.posthoc.crossval import loss_of
from calibrant.posthoc.fit import mean_nll
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.overlap import WORTH_SAYING
from calibrant.posthoc.stream import apply_parts
from calibrant.types import SCHEMA, Predictions


def apply(
    map_folder: Annotated[Path, typer.Argument(metavar="MAP", help="folder that `calibrant fit` or `decide` wrote")],
    preds: Annotated[Path, typer.Argument(help="a file of predictions, or a folder of Parquet parts")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="file to write (.npz, .safetensors, .parquet, .csv) or folder")
    ],
    calibration: Annotated[
        Path | None, typer.Option(help="of a rule of sets: labelled items, for --weights or --adaptive")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="column of both files: how much more often such an input will appear")
    ] = None,
    adaptive: Annotated[
        float | None, typer.Option(help="follow a stream of labelled items by this step, such as 0.02")
    ] = None,
    as_json: Json = False,
    logits_key: LogitsKey = None,
    probs_key: ProbsKey = None,
    labels_key: LabelsKey = None,
    labels: Labels = None,
    class_axis: ClassAxis = -1,
    ignore_index: IgnoreIndex = None,
) -> None:
    """Apply a fitted map or a rule to predictions."""
    one_file = out.suffix in files.FORMATS
    outputs.check((out, outputs.FILE if one_file else outputs.PARTS), inputs=[map_folder, preds, labels, calibration])
    reading: dict[str, Any] = {
        "labels": labels,
        "logits_key": logits_key,
        "probs_key": probs_key,
        "labels_key": labels_key,
        "class_axis": class_axis,
        "ignore_index": ignore_index,
    }
    fitted = load(map_folder)
    files.existing(preds)
    keys = files.Keys(logits_key, probs_key, labels_key)
    shifted = calibration is not None or weights is not None or adaptive is not None
    if isinstance(fitted, Rule):
        if not one_file:
            raise FileError(
                f"cannot write {out}: decisions go into one file; end the name in {', '.join(files.FORMATS)}"
            )
        known = True
        if shifted:
            p, d, beside = shifted_sets(fitted, preds, calibration, weights, adaptive, reading)
            after = fitted.mapped(p)
        else:
            p, known = files.read_new(preds, keys, labels=labels, class_axis=class_axis, ignore_index=ignore_index)
            beside = {}
            after = fitted.mapped(p)
            d = fitted.decide(after)
        _decided(fitted, p, after, d, out, as_json, beside, files.others(preds, out, keys, labels), known)
        return
    if shifted:
        raise InputError(
            f"{map_folder} is a fitted map; --calibration, --weights and --adaptive belong to a rule of sets"
        )
    if one_file:
        p, known = files.read_new(preds, keys, labels=labels, class_axis=class_axis, ignore_index=ignore_index)
        mapped = fitted.predictions(p)
        files.write(out, mapped, others=files.others(preds, out, keys, labels), labels=known)
        if known:
            before_nll, after_nll = mean_nll(loss_of(reduce(p, classwise=False), p.n), reduce(mapped, classwise=False))
            found = _found(fitted, p.n, p.k, None, before_nll, after_nll, out) | {"overlap": fitted.overlap(p)}
        else:
            found = _found(fitted, p.n, p.k, None, None, None, out)
    else:
        found = _parts(fitted, preds, out, keys, ignore_index)
    if as_json:
        block_json(found)
        return
    _show(found)


def _parts(fitted: FittedMap, preds: Path, out: Path, keys: files.Keys, ignore_index: int | None) -> dict[str, Any]:
    """Parquet through the map, part by part, into a folder."""
    if not (preds.is_dir() or preds.suffix == ".parquet"):
        raise FileError(
            f"cannot write {out}: only Parquet goes into a folder of parts; end the name in {', '.join(files.FORMATS)}"
        )
    if ignore_index is not None:
        raise InputError("a folder of parts keeps every row; drop --ignore-index, or write one file")
    if out.suffix:
        raise FileError(
            f"cannot write {out}: unknown format {out.suffix!r}; pass a folder, or use {', '.join(files.FORMATS)}"
        )
    with Bar("applying") as bar:
        done = apply_parts(
            fitted, preds, out, keys=keys, progress=lambda i, n: bar.share(f"{i:,} of {n:,} rows", i / n)
        )
    return _found(fitted, done.n, done.k, done.parts, done.nll_before, done.nll_after, out)


def _decided(
    rule: Rule,
    p: Predictions,
    after: Predictions,
    d: Decisions,
    out: Path,
    as_json: bool,
    beside: dict[str, Tensor],
    others: OtherColumns | None,
    labels: bool,
) -> None:
    """The predictions after the rule's map, with what it decides in columns beside them."""
    if after.predicted is None:
        after = replace(after, predicted=d.predicted)
    columns = {"accepted": d.accepted, "sets": d.sets, "action": d.action}
    beside = {name: column for name, column in columns.items() if column is not None} | beside
    files.write(out, after, beside, others, labels=labels)
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "rule": rule.kind,
        "n": p.n,
        "k": p.k,
        "accepted": float(d.accepted.double().mean()),
    }
    if d.sets is not None:
        found["set_size"] = float(d.sets.sum(1).double().mean())
    if "level" in beside:  # the truth was known after each item
        assert d.sets is not None
        found["coverage"] = float(d.sets.gather(1, p.labels.cpu()[:, None]).double().mean())
    if as_json:
        block_json(found | {"out": str(out)})
        return
    sets = "" if d.sets is None else f"; {found['set_size']:.2f} classes in a set on average"
    sets += f", {100 * found['coverage']:.1f}% hold the truth" if "coverage" in found else ""
    say(f"{out}: {p.n:,} items, {100 * found['accepted']:.1f}% accepted, the others are handed to a person{sets}")


def _found(
    fitted: FittedMap, n: int, k: int | None, parts: int | None, before: float | None, after: float | None, out: Path
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "method": fitted.record.calibrator or fitted.method,
        "n": n,
        "k": k,
        "parts": parts,
        "nll_before": before,
        "nll_after": after,
        "guard": {"ok": fitted.record.guard.get("ok"), "reasons": list(fitted.record.guard.get("reasons", ()))},
        "out": str(out),
    }


def _show(found: dict[str, Any]) -> None:
    parts = f" in {found['parts']} parts" if found["parts"] else ""
    nll = "" if found["nll_before"] is None else f", NLL {found['nll_before']:.4f} → {found['nll_after']:.4f}"
    say(f"{found['out']}: {found['method']} applied to {found['n']:,} items{parts}{nll}")
    if found["guard"]["ok"] is False:
        say(f"note: this map was flagged when it was fitted: {'; '.join(found['guard']['reasons'])}", err=True)
    if found.get("overlap", 0.0) >= WORTH_SAYING:
        say(
            f"note: about {found['overlap']:.0%} of the items that the map was fitted on are among these: numbers on "
            "them flatter it; report on other items",
            err=True,
        )
