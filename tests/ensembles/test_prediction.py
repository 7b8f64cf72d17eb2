"""`calibrant.predict` takes any model and any loader, and restores everything it changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.errors import InputError
from calibrant.nn import build


@pytest.fixture
def data() -> TensorDataset:
    g = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(37, 5, generator=g), torch.randint(0, 3, (37,), generator=g))


@pytest.fixture
def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


def expected(model: nn.Module, data: TensorDataset) -> Tensor:
    x = data.tensors[0]
    lin, norm, _, out = model
    hidden = (lin(x) - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps) * norm.weight + norm.bias
    return (hidden @ out.weight.T + out.bias).detach()


def test_keeps_order_labels_and_split(model: nn.Module, data: TensorDataset) -> None:
    p = calibrant.predict(model, DataLoader(data, batch_size=8), split="test", classes=["a", "b", "c"])
    assert p.split == "test" and p.classes == ("a", "b", "c") and p.n == 37 and p.raw
    assert torch.equal(p.labels, data.tensors[1])
    assert p.logits is not None
    torch.testing.assert_close(p.logits, expected(model, data))


def test_restores_modes_statistics_and_the_global_generator(model: nn.Module, data: TensorDataset) -> None:
    model.train()
    model[1].eval()  # a user who froze one BatchNorm must find it frozen
    before = {k: v.clone() for k, v in model.state_dict().items()}
    rng = torch.get_rng_state()
    calibrant.predict(model, DataLoader(data, batch_size=8))
    assert [m.training for m in model.modules()] == [True, True, False, True, True]
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())


def test_modes_are_restored_after_an_error(model: nn.Module) -> None:
    model.train()
    with pytest.raises(RuntimeError):
        calibrant.predict(model, [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))])
    assert all(m.training for m in model.modules())


def test_a_modules_own_train_method_is_not_called(data: TensorDataset) -> None:
    """Exported programs refuse `eval()`, and adapters merge their weights in it."""

    class Merging(nn.Linear):
        def train(self, mode: bool = True) -> nn.Module:
            raise NotImplementedError

    model = Merging(data.tensors[0].shape[1], 3)
    assert calibrant.predict(model, DataLoader(data, batch_size=10)).k == 3
    assert model.training


def test_no_gradients_are_recorded(data: TensorDataset) -> None:
    seen: list[bool] = []

    def watch(x: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled() or not torch.is_inference_mode_enabled())
        return x[:, :3]

    calibrant.predict(watch, DataLoader(data, batch_size=10))
    assert seen == [False] * 4


@pytest.mark.parametrize("wrap", [lambda z: SimpleNamespace(logits=z), lambda z: {"logits": z}, lambda z: z.bfloat16()])
def test_outputs_that_carry_logits(data: TensorDataset, wrap: Any) -> None:
    p = calibrant.predict(lambda x: wrap(x[:, :3]), DataLoader(data, batch_size=8))
    assert p.logits is not None and p.logits.dtype == torch.float32
    torch.testing.assert_close(p.logits, data.tensors[0][:, :3], atol=2e-2, rtol=1e-2)


def test_batches_as_dicts(data: TensorDataset) -> None:
    x, y = data.tensors
    one = calibrant.predict(lambda v: v[:, :3], [{"pixel_values": x, "labels": y, "id": list("abc") * 12 + ["z"]}])
    assert one.ids is not None and one.ids[-1] == "z"
    two = calibrant.predict(lambda a, b: a[:, :3] + b[:, :3], [{"a": x, "b": x, "labels": y}])
    assert one.logits is not None and two.logits is not None
    assert torch.equal(2 * one.logits, two.logits)


@pytest.mark.parametrize(
    ("model", "batches", "says"),
    [
        (lambda x: x[:, :3, None, None], None, r"\(8, 1, 1, 3\).*expected \[N, K\]"),
        (lambda x: x[:1, :3], None, r"\(1, 3\) for a batch of 8"),
        (lambda x: (x,), None, "tuple.*logits"),
        (lambda x: x, [], "no batches"),
        (lambda x: x, [{"x": torch.zeros(2, 2)}], "'labels'"),
        (lambda x: x, [{"labels": torch.zeros(2)}], "nothing but 'labels'"),
        (lambda x: x, [torch.zeros(2, 2)], "Tensor; expected"),
        ([], None, "empty list"),
        (3, None, "int is not a model"),
    ],
)
def test_wrong_inputs_are_named(data: TensorDataset, model: Any, batches: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        calibrant.predict(model, DataLoader(data, batch_size=8) if batches is None else batches)


def test_images_of_labels_are_items_in_groups() -> None:
    net = torch.nn.Conv2d(3, 4, 1)
    x, y = torch.randn(5, 3, 6, 7, generator=torch.Generator().manual_seed(0)), torch.arange(210).reshape(5, 6, 7) % 4
    y[0, :2] = 255
    found = calibrant.predict(
        net, [(x[:3], y[:3], torch.arange(3)), (x[3:], y[3:], torch.arange(3, 5))], class_axis=1, ignore_index=255
    )
    with torch.no_grad():
        wanted = calibrant.predictions(net(x), y, class_axis=1, ignore_index=255)
    assert found.n == 210 - 14 and torch.allclose(found.logits, wanted.logits, atol=1e-6)  # type: ignore[arg-type]
    assert torch.equal(found.labels, wanted.labels) and torch.equal(found.group, wanted.group)  # type: ignore[arg-type]
    assert found.ids is not None and found.ids[0] == "0" and found.ids[-1] == "4"
    assert calibrant.predict([net, net], [(x, y)], class_axis=1, ignore_index=255).members == 2
    assert torch.equal(calibrant.predict(net, [(x, y)], ignore_index=255).logits, found.logits)  # type: ignore[arg-type]


def test_the_classes_of_a_map_of_k_by_k_pixels_are_axis_1() -> None:
    net, x, y = torch.nn.Conv2d(3, 4, 1), torch.randn(2, 3, 4, 4), torch.arange(32).reshape(2, 4, 4) % 4
    with torch.no_grad():
        wanted = net(x).movedim(1, -1).reshape(-1, 4)
    assert torch.equal(calibrant.predict(net, [(x, y)]).logits, wanted)  # type: ignore[arg-type]
    sequences = [(torch.zeros(2, 5, 4), torch.zeros(2, 5))]
    with pytest.raises(InputError, match="three axes.*class_axis=1 or class_axis=-1"):
        calibrant.predict(torch.nn.Linear(4, 3), sequences)


@pytest.mark.parametrize("name", ["mlp", "resnet20"])
def test_features_are_the_input_of_the_last_linear_layer(name: str) -> None:
    model = build(name, classes=4, in_channels=1, size=32)
    x = torch.randn(3, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    p = calibrant.predict(model, [(x[:2], torch.zeros(2)), (x[2:], torch.zeros(1))], features=True)
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    assert p.features is not None and p.logits is not None and p.features.shape == (3, last.in_features)
    with torch.no_grad():
        assert torch.allclose(last(p.features), p.logits, atol=1e-5)
    assert not last._forward_hooks


def test_missing_features_are_an_error_of_one_line() -> None:
    batch = [(torch.randn(2, 8), torch.zeros(2))]
    pooled = nn.Sequential(nn.Linear(8, 6), nn.Unflatten(1, (3, 2)), nn.AvgPool1d(2), nn.Flatten())
    with pytest.raises(InputError, match=r"logits \(2, 3\), and the last one gave \(2, 6\)"):
        calibrant.predict(pooled, batch, features=True)
    with pytest.raises(InputError, match="no nn.Linear ran"):
        calibrant.predict(nn.Flatten(), batch, features=True)
    with pytest.raises(InputError, match="features are of one network"):
        calibrant.predict([nn.Linear(8, 2)] * 2, batch, features=True)


def test_pooled_and_mapped_logits_are_not_raw(model: nn.Module, data: TensorDataset) -> None:
    loader = DataLoader(data, batch_size=8)
    alone = calibrant.predict(model, loader)
    fitted = calibrant.fit("temperature", alone)
    assert alone.raw
    for network in (calibrant.MCDropout(model, members=2), calibrant.attach(model, fitted)):
        assert not calibrant.predict(network, loader).raw
    assert not fitted.predictions(alone).raw
