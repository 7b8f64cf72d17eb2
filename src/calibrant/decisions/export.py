"""`export(map or rule, path)` for other programs: a formula with its numbers (.json), or a graph (.onnx).

`rule_to_json(rule)` gives `{"format", "version", "rule", "classes", "map", "formula", "parameters", "by", "groups",
"promise"}`. The formula reads z', the output of `map` (`posthoc/export.py`), or the logits if `map` is null. By class,
the formula of a threshold takes the number of the predicted class, and that of sets the number of class k. An infinite
threshold (nothing is accepted) or quantile (every class is in the set) is null.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from calibrant.decisions.attach import write_rule_onnx
from calibrant.decisions.conformal import PredictionSets
from calibrant.decisions.rule import Rule
from calibrant.errors import FileError, InputError, MapError
from calibrant.files import atomic, outputs
from calibrant.posthoc.export import map_to_json
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.onnx_export import write_map_onnx
from calibrant.types import json_text, jsonable

FORMAT, VERSION = "calibrant rule form", 1


def export(fitted: FittedMap | Rule, path: str | PathLike[str]) -> Path:
    """Write a fitted map or a rule for other programs: formula and numbers (.json), or a graph (.onnx)."""
    if not isinstance(fitted, FittedMap | Rule):
        other = " (model and map together: calibrant.to_onnx(path, model, fitted, example))"
        said = f"export writes a fitted map or a rule, not {type(fitted).__name__}"
        raise InputError(said + (other if callable(fitted) else ""))
    out = Path(path)
    if out.suffix not in (".json", ".onnx"):
        raise FileError(f"cannot write {out}: unknown format {out.suffix!r}; use .json or .onnx")
    formula = outputs.RULE_FORMULA if isinstance(fitted, Rule) else outputs.FORMULA
    outputs.check((out, formula if out.suffix == ".json" else outputs.FILE))
    if out.suffix == ".onnx":
        return write_rule_onnx(out, fitted) if isinstance(fitted, Rule) else write_map_onnx(out, fitted)
    form = rule_to_json(fitted) if isinstance(fitted, Rule) else map_to_json(fitted)
    return atomic.write_text(out, json_text(form, indent=1) + "\n")


def rule_to_json(rule: Rule) -> dict[str, Any]:
    """The rule and its map in plain JSON types."""
    if isinstance(rule, PredictionSets) and rule.randomised:
        raise MapError("randomised sets have no closed form; choose the rule without randomised ties")
    tensors = {name: t for name, t in rule.tensors().items() if name != "tie" and t.numel()}
    parameters = {k: v for k, v in rule.settings().items() if k in ("penalty", "k_reg", "actions")} | tensors
    found: dict[str, Any] = jsonable(
        {
            "format": FORMAT,
            "version": VERSION,
            "rule": rule.kind,
            "classes": rule.record.k,
            "map": None if rule.map is None else map_to_json(rule.map),
            "formula": rule.formula,
            "parameters": {name: v.tolist() if name in tensors else v for name, v in parameters.items()},
            "by": rule.by,
            "groups": list(rule.groups),
            "promise": rule.sentence,
        }
    )
    return found
