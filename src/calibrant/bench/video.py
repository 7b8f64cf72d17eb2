"""Measure networks that label the pixels of a video, frame by frame, because one array cannot hold all pixels.

The validation part is a continuous video. On it we measure the network as trained, as an ensemble (MC dropout with all
its passes on every frame), and smoothed in time (one pass per frame, with another member of MC dropout each time; SS
Table E.4). During training only a few frames are evaluated: all of them would take as long as the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from calibrant.bench.ensembles import Loaded
from calibrant.data import Batches, Data
from calibrant.ensembles import Ensemble, TemporalSmoothing
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.frames import Frames
from calibrant.papers import AS_TRAINED, Experiment
from calibrant.papers.ss_camvid import TEMPORAL
from calibrant.types import Split

WATCHED = 4
RESAMPLING = Resampling(seed=0, replicates=1000)
SMOKE_FRAMES = 12


def watched(data: Data) -> Data:
    """The data of a training: the training part, and a few frames of the video."""
    few = data[Split.VALIDATION].take(torch.arange(WATCHED), Split.VALIDATION)
    return replace(data, splits={Split.TRAIN: data[Split.TRAIN], Split.VALIDATION: few})


def measured(
    experiment: Experiment, predictors: Mapping[str, Any], loaded: Loaded, smoke: bool
) -> dict[str, dict[str, Any]]:
    """Variant → metric → [value, low, high], for the network, its ensembles and the stream."""
    assert experiment.block is not None
    part = loaded.data[Split.VALIDATION]
    part = part.take(torch.arange(min(part.n, SMOKE_FRAMES)), Split.VALIDATION) if smoke else part
    trained = loaded.trained
    frames = Batches(part, 1, device=loaded.device, mean=trained.mean, std=trained.std)
    asked: dict[str, Callable[[Tensor], Tensor]] = {name: _call(p) for name, p in predictors.items()}
    last = list(predictors.values())[-1]  # the ensemble, where there is one
    stream = TemporalSmoothing(last, class_axis=-1)
    asked[TEMPORAL] = lambda x: stream(x, stream="video")
    out = {}
    for name, predictor in asked.items():
        sums = Frames()
        for x, y, _ in frames:
            with torch.no_grad():
                sums.add(predictor(x)[0].float(), y[0])
        report = sums.report(resampling=RESAMPLING, block=experiment.block)
        out[name] = {m: [e.value, e.low, e.high] for m, e in report.items()}
    return {AS_TRAINED: out.pop(AS_TRAINED), **out}


def _call(predictor: Any) -> Callable[[Tensor], Tensor]:
    if isinstance(predictor, Ensemble):
        return lambda x: predictor(x, class_axis=-1)
    return lambda x: predictor.eval()(x)
