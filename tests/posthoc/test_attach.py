"""Every map of the table gives the same probabilities when attached to a model, exported, and run in onnxruntime."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import calibrant
from calibrant.errors import InputError, MapError, MissingDependencyError, RefusedError
from calibrant.posthoc import CALIBRATORS, CONFIDENCES, MAPS, Calibrator, FittedMap, Identity, Pool, attach
from calibrant.posthoc.attach import Calibrated
from calibrant.posthoc.calibrator import Composition
from calibrant.posthoc.map import Chain
from calibrant.posthoc.onnx_export import disagreement, run_graph, run_onnx, to_onnx, write_graph, write_map_onnx
from calibrant.types import Predictions
from tests.posthoc.simulated import need_onnx, simulated

EXTRA: list[tuple[str, Calibrator]] = [
    ("histogram_mass-rest", CALIBRATORS["histogram_mass"](kind="one_vs_rest")),  # type: ignore[call-arg]
    ("spline-within", CALIBRATORS["spline"](within=2)),  # type: ignore[call-arg]
    ("temperature+isotonic", Composition(CALIBRATORS["temperature"](), CALIBRATORS["isotonic"]())),
]
VARIANTS = [
    (f"{name}-{i}" if i else name, cls(**settings))
    for name, cls in CALIBRATORS.items()
    for i, settings in enumerate(cls.candidates)
] + EXTRA
each = pytest.mark.parametrize("calibrator", [c for _, c in VARIANTS], ids=[n for n, _ in VARIANTS])
EDGES = torch.tensor(
    [
        [1e4, -1e4, 3.0, 0.0],
        [1e-3, 0.0, 2e-3, 3e-3],
        [1000.0, 990.0, 980.0, 970.0],
        [-990.0, -1000.0, -1010.0, -1020.0],
        [-1e4, -2e4, -3e4, 1e4],
        [0.0, -torch.inf, -1.0, -torch.inf],
        [0.0, -torch.inf, -torch.inf, -torch.inf],
    ]
)
fits: dict[str, FittedMap] = {}


def sample(n: int = 1200, seed: int = 0) -> Predictions:
    p = simulated(n, 4, 2.0, seed, "calibration")
    return replace(p, logits=new(n, seed))


def fitted(calibrator: Calibrator) -> FittedMap:
    key = repr(calibrator)
    if key not in fits:
        fits[key] = calibrator.fit(sample())
    return fits[key]


def new(n: int = 300, seed: int = 1) -> Tensor:
    logits = simulated(n, 4, 2.0, seed).logits
    assert logits is not None
    return logits.float()


def gap(a: Tensor, b: Tensor) -> float:
    return float((torch.softmax(a.double(), -1) - torch.softmax(b.double(), -1)).abs().max())


@each
def test_attached_model_equals_the_map(calibrator: Calibrator) -> None:
    m, z = fitted(calibrator), torch.cat([new(), EDGES])
    net = attach(nn.Identity(), m)
    assert net(z).dtype == torch.float32 and gap(net(z), m(z)) < 1e-6
    exact = net(z.double())
    assert exact.dtype == torch.float64 and gap(exact, m(z.double())) < 1e-12
    buffers = dict(net.named_buffers())
    assert buffers and not list(net.parameters())


class Every(nn.Module):
    """Several maps in one graph, because each export takes seconds."""

    def __init__(self, maps: Iterable[FittedMap]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(attach(nn.Identity(), m) for m in maps)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(net(x) for net in self.nets)


@each
def test_what_is_exported_computes_the_same(calibrator: Calibrator, monkeypatch: pytest.MonkeyPatch) -> None:
    net, z = attach(nn.Identity(), fitted(calibrator)), torch.cat([new(), EDGES])
    expected = net(z)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert gap(net(z), expected) < 1e-12


class Operations(TorchDispatchMode):
    """Records every operation that runs, with the types of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        taken = [str(t.dtype) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        self.seen.add((str(func), *taken))
        return func(*args, **(kwargs or {}))


def of_map(m: FittedMap) -> set[tuple[str, ...]]:
    with Operations() as operations:
        attach(nn.Identity(), m)(new(5))
    return operations.seen


@functools.cache
def with_every_operation() -> dict[str, FittedMap]:
    """A few maps that together use every operation of any map in an exported graph."""
    with pytest.MonkeyPatch.context() as exporting:
        exporting.setattr(torch.compiler, "is_exporting", lambda: True)
        used = {name: of_map(fitted(c)) for name, c in VARIANTS}
    chosen, missing = dict[str, FittedMap](), set[tuple[str, ...]]().union(*used.values())
    while missing:
        name = max(used, key=lambda n: len(used[n] & missing))
        chosen[name] = fitted(dict(VARIANTS)[name])
        missing -= used[name]
    return chosen


def test_onnxruntime_agrees_with_eager(tmp_path: Path) -> None:
    need_onnx()
    chosen = with_every_operation()
    path = write_graph(tmp_path / "maps.onnx", Every(chosen.values()), 3 * new(64), list(chosen), lambda found: "")
    for z in (new(), new(1), EDGES):
        for (name, m), found in zip(chosen.items(), run_graph(path, z), strict=True):
            assert disagreement(Calibrated(nn.Identity(), m), z, found) < 1e-5, name


def test_every_map_class_is_covered() -> None:
    tried = {part.method for _, c in VARIANTS for part in parts(fitted(c))} | {"identity", "pool"}
    refused = {c.map.method for c in CONFIDENCES.values()}
    assert tried | refused == set(MAPS)
    z = torch.stack([new(20), new(40)[20:]])
    pooled, same = (attach(nn.Identity(), m, class_axis=-1) for m in (Chain((Pool(), Identity())), Identity()))
    assert gap(pooled(z), Pool()(z)) < 1e-6 and torch.equal(same(z), z)


def parts(m: FittedMap) -> list[FittedMap]:
    return [p for part in m.maps for p in parts(part)] if isinstance(m, Chain) else [m]


class Network(nn.Module):
    """Images of labels: classes on axis 1."""

    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(2)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        for parameter in self.conv.parameters():
            parameter.data = torch.randn(parameter.shape, generator=g)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(x)
        return out


def test_a_network_that_labels_pixels(tmp_path: Path) -> None:
    m, model = fitted(CALIBRATORS["structured_matrix"]()), Network()
    net = attach(model, m, class_axis=1)
    x = torch.randn(3, 3, 5, 6, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        want = m(model(x).movedim(1, -1)).movedim(-1, 1)
        assert net(x).shape == (3, 4, 5, 6)
        assert float((torch.softmax(net(x).double(), 1) - torch.softmax(want, 1)).abs().max()) < 1e-6
        need_onnx()
        got = run_onnx(to_onnx(tmp_path / "pair.onnx", model, m, x, class_axis=1), x[:1])
        assert got.shape == (1, 4, 5, 6)
        assert float((torch.softmax(got.double(), 1) - torch.softmax(want[:1], 1)).abs().max()) < 1e-5


def test_half_precision_keeps_the_digits_of_the_map() -> None:
    m = fitted(CALIBRATORS["temperature"]())
    net = attach(nn.Linear(8, 4), m).to(torch.bfloat16)
    buffers = dict(net.named_buffers())
    assert all(b.dtype == torch.float64 for b in buffers.values())
    assert float(next(iter(buffers.values()))) == float(m.tensors()["temperature"])
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(4), dtype=torch.bfloat16)
    with torch.no_grad():
        logits = net.model(x)
        assert isinstance(logits, Tensor) and logits.dtype == torch.bfloat16
        assert net(x).dtype == torch.float32 and gap(net(x), m(logits)) < 1e-6
    again = attach(nn.Linear(8, 4), m)
    again.load_state_dict(net.state_dict())
    assert float(dict(again.named_buffers())["calibration.layer.temperature"]) == float(m.tensors()["temperature"])


def test_what_cannot_be_attached_is_refused_by_name() -> None:
    p = sample(200)
    features = torch.randn(200, 5, generator=torch.Generator().manual_seed(5))
    with_features = calibrant.predictions(p.logits, p.labels, features=features)
    for name, cls in CONFIDENCES.items():
        with pytest.raises(MapError, match=f"{name} cannot be attached: it needs the features"):
            attach(nn.Identity(), cls().fit(with_features))
    m = fitted(CALIBRATORS["vector"]())
    with pytest.raises(MapError, match="fitted for 4 classes, the predictions have 5"):
        attach(nn.Identity(), m)(torch.zeros(2, 5))
    with pytest.raises(InputError, match="an nn.Module that returns logits, not function"):
        attach(lambda x: x, m)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a fitted map .*, not str"):
        attach(nn.Identity(), "temperature")  # type: ignore[arg-type]

    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(InputError, match="the model returned tuple"):
        attach(Two(), m)(torch.zeros(2, 4))


def test_an_export_that_disagrees_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_onnx()
    from calibrant.posthoc import onnx_export

    m = fitted(CALIBRATORS["temperature"]())
    honest = onnx_export.run_graph
    monkeypatch.setattr(onnx_export, "run_graph", lambda path, x: [1.01 * out for out in honest(path, x)])
    with pytest.raises(RefusedError, match="was not written: onnxruntime's probabilities differ"):
        write_map_onnx(tmp_path / "m.onnx", m)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="the example needs two items"):
        to_onnx(tmp_path / "m.onnx", nn.Identity(), m, torch.zeros(1, 4))


def test_missing_onnx_is_reported_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from calibrant.posthoc import onnx_export

    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'calibrant\[onnx\]'"):
        write_map_onnx(tmp_path / "m.onnx", fitted(CALIBRATORS["temperature"]()))
