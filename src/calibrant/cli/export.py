"""`calibrant export MAP/ -o FILE`: a fitted map for other programs, a formula (.json) or a graph (.onnx)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.console import block_json, say
from calibrant.errors import FileError
from calibrant.files import outputs
from calibrant.posthoc import load
from calibrant.types import SCHEMA


def export(
    map_folder: Annotated[Path, typer.Argument(metavar="MAP", help="folder that `calibrant fit` wrote")],
    out: Annotated[Path, typer.Option("-o", "--out", help="a .json (smooth maps: formula and numbers) or a .onnx")],
    as_json: Annotated[bool, typer.Option("--json", help="machine-readable, on stdout")] = False,
) -> None:
    """Write a fitted map for other programs: formula and numbers (.json), or a graph (.onnx)."""
    if out.suffix not in (".json", ".onnx"):
        raise FileError(f"cannot write {out}: unknown format {out.suffix!r}; use .json or .onnx")
    outputs.check((out, outputs.FORMULA if out.suffix == ".json" else outputs.FILE), inputs=[map_folder])
    fitted = load(map_folder)
    if out.suffix == ".json":
        from calibrant.posthoc.export import write_json

        write_json(fitted, out)
    else:
        from calibrant.posthoc.onnx_export import write_map_onnx

        write_map_onnx(out, fitted)
    method = fitted.record.calibrator or fitted.method
    if as_json:
        block_json({"schema": SCHEMA, "method": method, "out": str(out)}, indent=None)
    else:
        say(f"{method} written to {out}")
