"""`calibrant export MAP/ -o FILE`: write a map or a rule for other programs, as formula (.json) or graph (.onnx)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.console import block_json, say
from calibrant.cli.options import Json, MapFolder
from calibrant.decisions import Rule, load
from calibrant.decisions.export import export as write
from calibrant.files import outputs
from calibrant.types import SCHEMA


def export(
    map_folder: MapFolder,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="a .json (smooth maps: formula and numbers) or an .onnx graph")
    ],
    as_json: Json = False,
) -> None:
    fitted = load(map_folder)
    outputs.check((out, outputs.FILE), inputs=[map_folder])
    write(fitted, out)
    method = fitted.kind if isinstance(fitted, Rule) else fitted.record.calibrator or fitted.method
    if as_json:
        block_json({"schema": SCHEMA, "method": method, "out": str(out)}, indent=None)
    else:
        say(f"{method} written to {out}")
