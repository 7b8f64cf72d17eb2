"""The files that `calibrant probe -o DIR` writes: probe.json, report.html, and every figure as SVG."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import calibrant.provenance as provenance
from calibrant.cli.probes.request import Request
from calibrant.cli.probes.results import Probed
from calibrant.display import short_names
from calibrant.files import atomic
from calibrant.metrics.evaluate import evaluate
from calibrant.report import html as page
from calibrant.report.plots.style import figure_of
from calibrant.types import jsonable


def write(
    out: Path | None, html: Path | None, request: Request, record: Mapping[str, Any], found: Mapping[str, Probed]
) -> Path:
    """Write the page (to `html`, or into the folder) and the folder's numbers and figures; return the page's path."""
    place = html if html is not None else (out or Path()) / "report.html"
    place.parent.mkdir(parents=True, exist_ok=True)
    audited = list({id(p): p for each in found.values() for p in each.audited}.values())
    if not audited:
        audited = [request.predictions(model, request.splits[0]) for model in request.models]
    audits = [page.Audit.of(p, evaluate(p), p.source) for p in audited]
    panels = [panel for each in found.values() for panel in each.panels]
    page.write(place, audits, command=provenance.command(), panels=panels, title=_title(request))
    if out is not None:
        made = {**record, "made": provenance.made()}
        text = json.dumps(jsonable(made), indent=1, ensure_ascii=False, allow_nan=False)
        atomic.write_text(out / "probe.json", text + "\n")
        for name, each in found.items():
            _figures(out / name, each)
    return place


def _title(request: Request) -> str:
    names = short_names([model.name for model in request.models])
    return (
        f"Why can {' and '.join(names)} be trusted, or not?" if len(names) < 3 else "Why can they be trusted, or not?"
    )


def _figures(folder: Path, probed: Probed) -> None:
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    for i, figure in enumerate((f for panel in probed.panels for f in panel.figures), 1):
        folder.mkdir(exist_ok=True)
        drawn = io.StringIO()
        canvas: Any = FigureCanvasSVG(figure_of(figure.axes))
        canvas.print_svg(drawn, metadata={"Date": None})  # `savefig` draws twice
        atomic.write_text(folder / f"figure-{i}.svg", drawn.getvalue())
