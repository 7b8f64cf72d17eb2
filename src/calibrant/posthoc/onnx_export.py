"""A calibrated model, or a map alone, as one ONNX file with a dynamic batch; checked before it is kept.

The file is written only if onnxruntime gives the probabilities of the eager module on the example, to 1e-5. Needs
`pip install calibrant[onnx]`. The map's arithmetic is float64 inside the graph, as it is here.
"""

from __future__ import annotations

import io
import warnings
from contextlib import redirect_stdout
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.errors import InputError, MapError, MissingDependencyError, RefusedError
from calibrant.files import atomic
from calibrant.posthoc.attach import attach
from calibrant.posthoc.map import FittedMap

TOLERANCE = 1e-5
"""Largest difference of a probability between onnxruntime and eager."""


def write_onnx(
    path: str | PathLike[str], model: nn.Module, fitted: FittedMap, example: Tensor, *, class_axis: int = -1
) -> Path:
    """`attach(model, fitted)` as an ONNX file: input `x` like `example` with any batch, output `logits`."""
    if example.shape[0] < 2:
        raise InputError("the example needs two items or more: a batch of one would be exported as a batch of one only")
    return _write(path, attach(model, fitted, class_axis=class_axis).eval(), example, "x", class_axis)


def write_map_onnx(path: str | PathLike[str], fitted: FittedMap) -> Path:
    """The map alone: input `x`, the logits [N, K] of any network of K classes, output `logits`."""
    k = fitted.record.k if fitted.k is None else fitted.k
    if k is None:
        raise MapError(f"this {fitted.method} map does not know its number of classes; export it with its model")
    generator = torch.Generator().manual_seed(0)
    example = 3 * torch.randn(64, k, generator=generator)
    return _write(path, attach(nn.Identity(), fitted), example, "x", -1)


def _write(path: str | PathLike[str], module: nn.Module, example: Tensor, name: str, class_axis: int) -> Path:
    need_onnx()
    batch = torch.export.Dim("batch", min=1)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            dynamic_shapes=({0: batch},),
            input_names=[name],
            output_names=["logits"],
            verbose=False,
        )
        want = module(example)
    assert program is not None
    with atomic.file(path) as temporary:
        program.save(str(temporary), external_data=False)
        got = run_onnx(temporary, example)
        gap = float((torch.softmax(got.double(), class_axis) - torch.softmax(want.double(), class_axis)).abs().max())
        if not gap <= TOLERANCE:
            raise RefusedError(
                f"{path} was not written: onnxruntime's probabilities differ from eager by {gap:.2g} on the example"
            )
    return Path(path)


def run_onnx(path: str | PathLike[str], x: Tensor) -> Tensor:
    """Output of an ONNX file of one input, by onnxruntime on the CPU."""
    need_onnx()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    out: Any = session.run(None, {session.get_inputs()[0].name: x.detach().cpu().numpy()})[0]
    return torch.from_numpy(out)


def need_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"ONNX export needs {', '.join(missing)}; pip install 'calibrant[onnx]'")
