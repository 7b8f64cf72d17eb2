"""`calibrant apply MAP/ PREDS -o OUT`: write predictions after a fitted map, or with the decisions of a rule.

Folders of Parquet are streamed through a map, part by part.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant import files
from calibrant.cli.apply_shifted import Shift
from calibrant.cli.console import block_json, say
from calibrant.cli.options import Json, MapFolder
from calibrant.cli.reading import Reading
from calibrant.decisions import Rule, load
from calibrant.errors import FileError, InputError
from calibrant.files import outputs
from calibrant.functional.scores import reduce
from calibrant.posthoc.crossval import loss_of
from calibrant.posthoc.fit import mean_nll
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.overlap import WORTH_SAYING
from calibrant.posthoc.stream import apply_parts
from calibrant.types import SCHEMA

FORMATS = ", ".join(files.FORMATS)


def apply(
    map_folder: MapFolder,
    preds: Annotated[Path, typer.Argument(help="a file of predictions, or a folder of Parquet parts")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="file to write (.npz, .safetensors, .parquet, .csv) or folder")
    ],
    shift: Shift,
    reading: Reading,
    as_json: Json = False,
) -> None:
    one_file = out.suffix in files.FORMATS
    kind = outputs.FILE if one_file else outputs.PARTS
    outputs.check((out, kind), inputs=[map_folder, preds, reading.labels, shift.calibration])
    fitted = load(map_folder)
    files.existing(preds)
    if isinstance(fitted, Rule):
        if not one_file:
            raise FileError(f"cannot write {out}: decisions go into one file; end the name in {FORMATS}")
        found, show = _decided(fitted, preds, out, shift, reading), _show_decided
    elif shift.asked:
        raise InputError(
            f"{map_folder} is a fitted map; --calibration, --weights and --adaptive belong to a rule of sets"
        )
    else:
        found, show = (_mapped if one_file else _parts)(fitted, preds, out, reading), _show
    if as_json:
        block_json(found)
    else:
        show(found)


def _mapped(fitted: FittedMap, preds: Path, out: Path, reading: Reading) -> dict[str, Any]:
    """Apply the map to one file and return what `--json` prints."""
    p, known = reading.read_new(preds)
    mapped = fitted.predictions(p)
    files.write(out, mapped, others=reading.others(preds, out), labels=known)
    found = _record(fitted, out, p.n, p.k)
    if known:
        before, after = mean_nll(loss_of(reduce(p, classwise=False), p.n), reduce(mapped, classwise=False))
        found |= {"nll_before": before, "nll_after": after, "overlap": fitted.overlap(p)}
    return found


def _parts(fitted: FittedMap, preds: Path, out: Path, reading: Reading) -> dict[str, Any]:
    """Apply the map to Parquet part by part, and write a folder."""
    from calibrant.cli.layout import Bar

    if not (preds.is_dir() or preds.suffix == ".parquet"):
        raise FileError(f"cannot write {out}: only Parquet goes into a folder of parts; end the name in {FORMATS}")
    if reading.ignore_index is not None:
        raise InputError("a folder of parts keeps every row; drop --ignore-index, or write one file")
    if out.suffix:
        raise FileError(f"cannot write {out}: unknown format {out.suffix!r}; pass a folder, or use {FORMATS}")
    with Bar("applying") as bar:
        done = apply_parts(fitted, preds, out, keys=reading.keys, progress=bar.rows)
    return _record(fitted, out, **asdict(done))


def _record(fitted: FittedMap, out: Path, n: int, k: int | None, **found: Any) -> dict[str, Any]:
    """What `--json` prints; `found` has the parts and the NLL, if they are known."""
    guard = fitted.record.guard
    return {
        "schema": SCHEMA,
        "method": fitted.record.calibrator or fitted.method,
        "n": n,
        "k": k,
        "parts": None,
        "nll_before": None,
        "nll_after": None,
        **found,
        "guard": {"ok": guard.get("ok"), "reasons": list(guard.get("reasons", ()))},
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
            f"note: about {found['overlap']:.0%} of the items that the map was fitted on are among these; numbers on "
            "these items flatter the map; report on other items",
            err=True,
        )


def _decided(rule: Rule, preds: Path, out: Path, shift: Shift, reading: Reading) -> dict[str, Any]:
    """Write the predictions after the rule's map, with its decisions in further columns."""
    if shift.asked:
        p, d, beside = shift.sets(rule, preds, reading)
        after, known = rule.mapped(p), True
    else:
        p, known = reading.read_new(preds)
        after = rule.mapped(p)
        d, beside = rule.decide(after), {}
    if after.predicted is None:
        after = replace(after, predicted=d.predicted)
    columns = {"accepted": d.accepted, "sets": d.sets, "action": d.action}
    beside = {name: column for name, column in columns.items() if column is not None} | beside
    files.write(out, after, beside, reading.others(preds, out), labels=known)
    accepted = float(d.accepted.double().mean())
    found: dict[str, Any] = {"schema": SCHEMA, "rule": rule.kind, "n": p.n, "k": p.k, "accepted": accepted}
    if d.sets is not None:
        found["set_size"] = float(d.sets.sum(1).double().mean())
        if "level" in beside:  # the truth was known after each item
            found["coverage"] = float(d.sets.gather(1, p.labels.cpu()[:, None]).double().mean())
    return found | {"out": str(out)}


def _show_decided(found: dict[str, Any]) -> None:
    sets = f"; {found['set_size']:.2f} classes in a set on average" if "set_size" in found else ""
    sets += f", {100 * found['coverage']:.1f}% hold the truth" if "coverage" in found else ""
    accepted = f"{100 * found['accepted']:.1f}% accepted, the others are handed to a person"
    say(f"{found['out']}: {found['n']:,} items, {accepted}{sets}")
