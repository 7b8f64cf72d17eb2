"""A calibrated model, or a map alone, as one ONNX file with a dynamic batch, checked before it is written.

The file is written only if onnxruntime and PyTorch give the same probabilities on the example, to 1e-5. In a binning
map the last digit of a logit can move an item to the next bin, so the probabilities are compared with those that
PyTorch gives for logits moved by at most 1e-5 of their size. The map computes in float64 inside the graph, as it does
in PyTorch. The export needs `pip install calibrant[onnx]`.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from calibrant.errors import InputError, MapError, MissingDependencyError, RefusedError
from calibrant.files import atomic
from calibrant.functional.segmentation import classes_last
from calibrant.posthoc.attach import Calibrated, attach
from calibrant.posthoc.map import FittedMap

Example = Tensor | Mapping[str, Tensor]
"""The input of a model, or its inputs by name."""

TOLERANCE = 1e-5
"""Largest difference of a probability between onnxruntime and eager."""
DRAWS = 32
"""How many times the logits are moved at random."""


def to_onnx(
    path: str | PathLike[str], model: nn.Module, fitted: FittedMap, example: Example, *, class_axis: int | None = None
) -> Path:
    """Write `attach(model, fitted)` as an ONNX file: input `x` like `example` with any batch size, output `logits`.

    Give a dict for a model that takes its inputs by name; they keep their names in the file.
    """
    if any(len(t) < 2 for t in _inputs(example).values()):
        raise InputError("the example needs two items or more: a batch of one would be exported as a batch of one only")
    return _write(path, attach(model, fitted, class_axis=class_axis).eval(), example)


def write_map_onnx(path: str | PathLike[str], fitted: FittedMap) -> Path:
    """Write the map alone: input `x`, the logits [N, K] of any network with K classes, output `logits`."""
    if fitted.classes is None:
        raise MapError(f"this {fitted.method} map does not know its number of classes; export it with its model")
    example = 3 * torch.randn(64, fitted.classes, generator=torch.Generator().manual_seed(64))
    return _write(path, Calibrated(nn.Identity(), fitted), example)


class ByName(nn.Module):
    """Passes inputs to the module by name, because the exporter needs them in a fixed order."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module, self.names = module, tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        out: Tensor = self.module(**dict(zip(self.names, inputs, strict=True)))
        return out


def _inputs(example: Example) -> dict[str, Tensor]:
    return {"x": example} if isinstance(example, Tensor) else dict(example)


def _write(path: str | PathLike[str], module: Calibrated, example: Example) -> Path:
    def fault(found: Sequence[Tensor]) -> str:
        gap = disagreement(module, example, found[0])
        return "" if gap <= TOLERANCE else f"onnxruntime's probabilities differ from eager by {gap:.2g} on the example"

    return write_graph(path, module, example, ["logits"], fault)


def write_graph(
    path: str | PathLike[str],
    module: nn.Module,
    example: Example,
    outputs: Sequence[str],
    fault: Callable[[Sequence[Tensor]], str],
) -> Path:
    """Write the module as an ONNX file, unless `fault` says what is wrong with onnxruntime's output for the example."""
    need_onnx()
    inputs, batch = _inputs(example), torch.export.Dim("batch", min=1)
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            ByName(module, list(inputs)),
            tuple(inputs.values()),
            dynamo=True,
            dynamic_shapes=(({0: batch},) * len(inputs),),
            input_names=list(inputs),
            output_names=outputs,
            verbose=False,
        )
    assert program is not None
    with atomic.file(path) as temporary:
        program.save(str(temporary), external_data=False)
        if said := fault(run_graph(temporary, example)):
            raise RefusedError(f"{path} was not written: {said}")
    return Path(path)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter, which prints its steps, internal warnings, and that torchvision is missing."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    was = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = was


def disagreement(module: Calibrated, example: Example, logits: Tensor) -> float:
    """The most by which a probability of `logits` lies outside the range that PyTorch gives for moved logits."""
    low, high = torch.tensor([torch.inf, -torch.inf], dtype=torch.float64)
    with torch.no_grad():
        for z in moved(module.logits(**_inputs(example)).double()):
            p = torch.softmax(module.calibration(z), -1)
            low, high = torch.minimum(p, low), torch.maximum(p, high)
    p = torch.softmax(classes_last(logits, module.class_axis, "logits").double(), -1)
    return float(torch.maximum(low - p, p - high).max())


def moved(z: Tensor) -> Iterator[Tensor]:
    """Yield the float64 logits, then DRAWS copies of them that are moved by at most TOLERANCE of their size."""
    yield z
    generator = torch.Generator().manual_seed(DRAWS)
    for _ in range(DRAWS):
        yield z * (1 + TOLERANCE * (2 * torch.rand(z.shape, generator=generator, dtype=z.dtype) - 1))


def run_onnx(path: str | PathLike[str], x: Example) -> Tensor:
    """The logits that an ONNX file gives in onnxruntime on the CPU. Several inputs come as a dict."""
    return run_graph(path, x)[0]


def run_graph(path: str | PathLike[str], x: Example) -> list[Tensor]:
    """All outputs of an ONNX file."""
    need_onnx()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = {session.get_inputs()[0].name: x} if isinstance(x, Tensor) else x
    found = session.run(None, {name: t.detach().cpu().numpy() for name, t in inputs.items()})
    return [torch.from_numpy(out) for out in found]


def need_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"ONNX export needs {', '.join(missing)}; pip install 'calibrant[onnx]'")
