"""`calibrant apply MAP/ PREDS -o OUT`: predictions after a fitted map, or with the decisions of a rule beside them.

Parquet folders stream through a map, part by part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant import files
from calibrant.cli.console import block_json, say
from calibrant.cli.fit import Bar
from calibrant.decisions import Rule, load
from calibrant.errors import FileError
from calibrant.files import outputs
from calibrant.files.other_columns import OtherColumns
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
    as_json: Annotated[bool, typer.Option("--json", help="print JSON to stdout")] = False,
    logits_key: Annotated[str | None, typer.Option(help="name of the logits in the file")] = None,
    probs_key: Annotated[str | None, typer.Option(help="name of the probabilities in the file")] = None,
    labels_key: Annotated[str | None, typer.Option(help="name of the labels in the file")] = None,
    labels: Annotated[Path | None, typer.Option(help="a .npy of labels, if the file has none")] = None,
) -> None:
    """Apply a fitted map or a rule to predictions."""
    one_file = out.suffix in files.FORMATS
    outputs.check((out, outputs.FILE if one_file else outputs.PARTS), inputs=[map_folder, preds, labels])
    fitted = load(map_folder)
    files.existing(preds)
    if isinstance(fitted, Rule) and not one_file:
        raise FileError(f"cannot write {out}: decisions go into one file; end the name in {', '.join(files.FORMATS)}")
    keys = files.Keys(logits_key, probs_key, labels_key)
    if one_file:
        p = files.read(preds, labels=labels, logits_key=logits_key, probs_key=probs_key, labels_key=labels_key)
        others = files.others(preds, out, keys, labels)
    if isinstance(fitted, Rule):
        _decided(fitted, p, others, out, as_json)
        return
    if one_file:
        after = fitted.predictions(p)
        files.write(out, after, others=others)
        before_nll, after_nll = mean_nll(loss_of(reduce(p, classwise=False), p.n), reduce(after, classwise=False))
        found = _found(fitted, p.n, p.k, None, before_nll, after_nll, out) | {"overlap": fitted.overlap(p)}
    elif preds.is_dir() or preds.suffix == ".parquet":
        if out.suffix:
            raise FileError(
                f"cannot write {out}: unknown format {out.suffix!r}; pass a folder, or use {', '.join(files.FORMATS)}"
            )
        with Bar("applying") as bar:
            done = apply_parts(
                fitted, preds, out, keys=keys, progress=lambda i, n: bar.share(f"{i:,} of {n:,} rows", i / n)
            )
        found = _found(fitted, done.n, done.k, done.parts, done.nll_before, done.nll_after, out)
    else:
        raise FileError(
            f"cannot write {out}: only Parquet goes into a folder of parts; end the name in {', '.join(files.FORMATS)}"
        )
    if as_json:
        block_json(found)
        return
    _show(found)


def _decided(rule: Rule, p: Predictions, others: OtherColumns | None, out: Path, as_json: bool) -> None:
    """The predictions after the rule's map, with what it decides in columns beside them."""
    after = rule.mapped(p)
    d = rule.decide(after)
    if after.predicted is None:
        after = replace(after, predicted=d.predicted)
    columns = {"accepted": d.accepted, "sets": d.sets, "action": d.action}
    files.write(out, after, {name: column for name, column in columns.items() if column is not None}, others)
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "rule": rule.kind,
        "n": p.n,
        "k": p.k,
        "accepted": float(d.accepted.double().mean()),
    }
    if d.sets is not None:
        found["set_size"] = float(d.sets.sum(1).double().mean())
    if as_json:
        block_json(found | {"out": str(out)})
        return
    sets = "" if d.sets is None else f"; {found['set_size']:.2f} classes in a set on average"
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
