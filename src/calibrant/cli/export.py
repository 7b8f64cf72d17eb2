"""`calibrant export MAP/ -o FILE`: a map or a rule for other programs, a formula (.json) or a graph (.onnx)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.console import block_json, say
from calibrant.decisions import Rule, load
from calibrant.errors import FileError
from calibrant.files import outputs
from calibrant.types import SCHEMA


def export(
    map_folder: Annotated[Path, typer.Argument(metavar="MAP", help="folder that `calibrant fit` or `decide` wrote")],
    out: Annotated[Path, typer.Option("-o", "--out", help="a .json (smooth maps: formula and numbers) or a .onnx")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON to stdout")] = False,
) -> None:
    """Write a fitted map or a rule for other programs: formula and numbers (.json), or a graph (.onnx)."""
    if out.suffix not in (".json", ".onnx"):
        raise FileError(f"cannot write {out}: unknown format {out.suffix!r}; use .json or .onnx")
    fitted = load(map_folder)
    formula = outputs.RULE_FORMULA if isinstance(fitted, Rule) else outputs.FORMULA
    outputs.check((out, formula if out.suffix == ".json" else outputs.FILE), inputs=[map_folder])
    if isinstance(fitted, Rule):
        if out.suffix == ".json":
            from calibrant.decisions.export import write_rule_json

            write_rule_json(out, fitted)
        else:
            from calibrant.decisions.attach import write_rule_onnx

            write_rule_onnx(out, fitted)
    elif out.suffix == ".json":
        from calibrant.posthoc.export import write_json

        write_json(fitted, out)
    else:
        from calibrant.posthoc.onnx_export import write_map_onnx

        write_map_onnx(out, fitted)
    method = fitted.kind if isinstance(fitted, Rule) else fitted.record.calibrator or fitted.method
    if as_json:
        block_json({"schema": SCHEMA, "method": method, "out": str(out)}, indent=None)
    else:
        say(f"{method} written to {out}")
