"""What was asked of `calibrant probe`, resolved, and what a probe returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from calibrant.data import Batches, Data
    from calibrant.data.records import Part
    from calibrant.ensembles.reference import Reference
    from calibrant.report.panels import Panel
    from calibrant.report.probes import Result
    from calibrant.types import Predictions

FEW = 256
"""Items whose feature maps and curvature are looked at, unless --limit says another number."""
BATCH = 1000


@dataclass(frozen=True)
class Request:
    """What was asked, resolved: networks side by side, more runs of the first one's training, data, every option."""

    models: tuple[Reference, ...]  # with the mean and std that their inputs are normalised by
    data: Data
    splits: tuple[str, ...]
    limit: int | None
    device: torch.device
    store: Path  # where what is computed is kept
    options: dict[str, Any] = field(default_factory=dict)
    progress: bool = False
    runs: tuple[Reference, ...] = ()  # of the training of the first model, for the variance over runs
    kept: Path | None = None  # where probes keep what they measured of each model; by default the store

    def part(self, split: str) -> Part:
        """The items that are probed: all of the split, or its first `limit`."""
        import torch

        whole = self.data[split]
        if self.limit is None or self.limit >= whole.n:
            return whole
        return whole.take(torch.arange(self.limit), whole.split)

    def place(self, what: str) -> Path:
        """The folder of a probe's results."""
        return (self.kept or self.store) / what

    def rehearse(self) -> None:
        """Refuse a network that cannot read this data, or answers with other classes, before anything is computed."""
        from calibrant.functional.model_output import logits_of
        from calibrant.training.compatibility import blank_logits
        from calibrant.types import Split

        for model in (*self.models, *self.runs):
            for network in model.members:
                logits = logits_of(blank_logits(model.name, self.data, Split(self.splits[0]), network))
                if logits.ndim != 2:
                    raise InputError(
                        f"{model.name} returns shape {tuple(logits.shape)} for two items of {self.data.name}; "
                        "probe a network that returns [N, K]"
                    )
                if (k := logits.shape[1]) != self.data.k:
                    raise InputError(
                        f"{model.name} has {k} classes and {self.data.name} has {self.data.k}; "
                        "pass data with the same classes"
                    )

    def inputs(self, model: Reference) -> Data:
        """The data as the model is fed it."""
        return replace(self.data, mean=model.mean, std=model.std)

    def batches(self, model: Reference, split: str, size: int = BATCH) -> Batches:
        """The items that are probed, as the model is fed them."""
        from calibrant.data import Batches

        return Batches(self.part(split), size, device=self.device, mean=model.mean, std=model.std)

    def few(self, model: Reference, split: str) -> list[Any]:
        """The first FEW of them (or --limit), in small batches: for what needs much memory or time."""
        return list(replace(self, limit=self.limit or FEW).batches(model, split, 64))

    def few_hash(self, split: str) -> str:
        from calibrant.training.distances import items_hash

        return items_hash(replace(self, limit=self.limit or FEW).part(split))

    def predictions(self, model: Reference, split: str, members: Sequence[nn.Module] | None = None) -> Predictions:
        """What a model says about these items; several members as [M, N, K]."""
        from calibrant.ensembles.single import predict

        networks = [m.to(self.device) for m in members or model.members]
        return predict(
            networks if len(networks) > 1 else networks[0],
            self.batches(model, split),
            device=self.device,
            split=split,
            classes=self.data.classes,
            source=model.name,
        )


@dataclass(frozen=True)
class Probed:
    """What a probe found: for JSON, for the terminal, sections of the report and the predictions that they are of."""

    record: dict[str, Any]
    shown: Sequence[Any] = ()
    panels: Sequence[Panel] = ()
    audited: Sequence[Predictions] = ()


def side_by_side(
    request: Request,
    what: str,
    settings: Mapping[str, Any],
    measure: Callable[[Reference], tuple[dict[str, Any], dict[str, Tensor]]],
    panel: Callable[[Sequence[Result]], Panel],
) -> Probed:
    """Each model measured (or read, where it was before), and the section that compares them."""
    from calibrant.cli.probe_results import results

    request.rehearse()
    found = results(request, what, settings, measure)
    section = panel(found)
    record = {
        "settings": {k: v for k, v in settings.items() if v is not None},
        "models": [{"name": m.name, **r.record} for m, r in zip(request.models, found, strict=True)],
        "says": [section.lead, *(figure.caption for figure in section.figures)],
    }
    return Probed(record, _shown(what, section), [section])


def _shown(what: str, section: Panel) -> list[Any]:
    """For the terminal: tables, and what the figures show."""
    tables = [narrow_table(table.head, table.rows) for table in section.tables]
    return [f"{what}: {section.title}", *tables, *(f"· {figure.caption}" for figure in section.figures), ""]


def narrow_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """An interval stands whole below its value: side by side, seven columns do not fit a terminal."""
    from calibrant.report.terminal import records_table

    short = [name.replace(" ", "\n", 1) for name in head]
    cells = [[cell.replace(" [", "\n[") for cell in row] for row in rows]
    return records_table([dict(zip(short, row, strict=True)) for row in cells])
