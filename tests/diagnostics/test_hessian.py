"""Hessians against dense ones in float64, estimators against matrices with known spectra, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import wasserstein_distance
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.data import DataLoader, TensorDataset

from calibrant.cli.probes.hessian import TOLERANCE
from calibrant.diagnostics import hessian_density, hessian_spectrum, hessian_trace
from calibrant.diagnostics.curvature import Curvature, Loss
from calibrant.errors import InputError
from calibrant.functional.krylov import Eigenpairs, lanczos, power_iteration, quadrature
from calibrant.functional.trace import hutchinson, hutchpp

RNG = torch.Generator().manual_seed(0)
X = torch.randn(24, 5, generator=RNG, dtype=torch.float64)
Y = torch.arange(24) % 3


class Dense:
    """A matrix that counts its products."""

    device, dtype = torch.device("cpu"), torch.float64

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.size, self.products = matrix, len(matrix), 0

    def __matmul__(self, v: Tensor) -> Tensor:
        self.products += 1
        return self.matrix @ v


def with_spectrum(values: Tensor) -> Dense:
    q = torch.linalg.qr(torch.randn(len(values), len(values), generator=RNG, dtype=torch.float64))[0]
    return Dense(q @ torch.diag(values) @ q.T)


def network(*layers: nn.Module, width: int = 8) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first, last = nn.Linear(5, width), nn.Linear(width, 3)
    return nn.Sequential(first, *(layers or (nn.Tanh(),)), last).double()


def as_function(model: nn.Module, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return the logits of x as a function of the flat parameters, and these parameters."""
    names, held = zip(*model.named_parameters(), strict=True)
    sizes = [p.numel() for p in held]

    def logits(theta: Tensor) -> Tensor:
        parts = [c.view_as(p) for c, p in zip(theta.split(sizes), held, strict=True)]
        return torch.func.functional_call(model, dict(zip(names, parts, strict=True)), (x,))

    return logits, torch.cat([p.detach().reshape(-1) for p in held])


def dense_hessian(model: nn.Module, x: Tensor, y: Tensor, loss: Loss = F.cross_entropy) -> Tensor:
    logits, theta = as_function(model, x)
    return torch.autograd.functional.hessian(lambda t: loss(logits(t), y), theta)


def products(operator: Curvature) -> Tensor:
    return torch.stack([operator @ unit for unit in torch.eye(operator.size, dtype=torch.float64)], 1)


def test_the_largest_eigenvalue_is_that_of_the_dense_hessian() -> None:
    model = network()
    found = hessian_spectrum(model, [(X, Y)], k=1)
    truth = torch.linalg.eigvalsh(dense_hessian(model, X, Y))
    assert abs(float(found.eigenvalues[0, 0] - truth[-1])) < 1e-6


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_each_mini_batch_has_its_own_top_eigenvalues_and_vectors(weight_decay: float) -> None:
    model = network()
    batches = [(X[:10], Y[:10]), (X[10:], Y[10:])]
    found = hessian_spectrum(model, batches, k=4, weight_decay=weight_decay, vectors=True)
    for i, (x, y) in enumerate(batches):
        dense = dense_hessian(model, x, y) + weight_decay * torch.eye(found.vectors.shape[-1], dtype=torch.float64)
        truth = torch.linalg.eigvalsh(dense).flip(0)[:4]
        torch.testing.assert_close(found.eigenvalues[i], truth, atol=1e-6, rtol=0)
        u = found.vectors[i].T
        residual = (dense @ u - u * found.eigenvalues[i]).norm(dim=0)
        torch.testing.assert_close(residual, found.residuals[i], atol=1e-8, rtol=1e-5)
        assert ((found.eigenvalues[i][:, None] - torch.linalg.eigvalsh(dense)).abs().amin(1) <= residual + 1e-12).all()


def test_the_tolerance_of_the_probe_gives_largest_eigenvalues_to_1e_3() -> None:
    for seed in (0, 6):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 3)).double()
        optimiser = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(20 * seed):
            optimiser.zero_grad()
            F.cross_entropy(model(X), Y).backward()
            optimiser.step()
        truth = torch.linalg.eigvalsh(dense_hessian(model, X, Y)).flip(0)
        found = hessian_spectrum(model, (X, Y), k=3, tol=TOLERANCE, seed=seed)
        assert (found.eigenvalues[0] - truth[:3]).abs().max() < 1e-3 * truth.abs().max()
        assert found.products < hessian_spectrum(model, (X, Y), k=3, seed=seed).products


def test_products_are_the_dense_hessian_gauss_newton_and_fisher() -> None:
    model = network(width=3)
    logits, theta = as_function(model, X)
    jacobian = torch.autograd.functional.jacobian(logits, theta)  # [N, K, P]
    p = torch.softmax(logits(theta), -1)
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    slopes = torch.einsum("nk,nkp->np", p - F.one_hot(Y, 3), jacobian)
    truth = {
        "hessian": dense_hessian(model, X, Y),
        "gauss_newton": torch.einsum("nkp,nkl,nlq->pq", jacobian, middle, jacobian) / len(X),
        "fisher": slopes.T @ slopes / len(X),
    }
    for kind, matrix in truth.items():
        for batches, chunk in ([(X, Y)], None), ([(X[:9], Y[:9]), (X[9:], Y[9:])], 9):
            operator = Curvature(model, batches, kind=kind, chunk=chunk)
            torch.testing.assert_close(products(operator), matrix, atol=1e-10, rtol=1e-8)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_tied_weights_count_once_and_frozen_ones_count() -> None:
    tied, frozen = Tied().double(), network()
    frozen[0].weight.requires_grad_(False)
    for model, size in (tied, 25 + 5 + 5 + 18), (frozen, 75):
        dense = dense_hessian(model, X, Y)
        assert Curvature(model, [(X, Y)]).size == len(dense) == size
        found = hessian_spectrum(model, (X, Y), k=2).eigenvalues[0]
        torch.testing.assert_close(found, torch.linalg.eigvalsh(dense).flip(0)[:2], atol=1e-6, rtol=0)


def test_the_loss_may_have_a_penalty_and_soft_targets() -> None:
    def loss(logits: Tensor, q: Tensor) -> Tensor:
        return F.cross_entropy(logits, q) + 0.1 * logits.norm(dim=-1).mean()

    q, model = torch.softmax(torch.randn(24, 3, generator=RNG, dtype=torch.float64), -1), network()
    truth = torch.linalg.eigvalsh(dense_hessian(model, X, q, loss) + 0.3 * torch.eye(75))[-1]
    found = hessian_spectrum(model, (X, q), loss=loss, weight_decay=0.3).largest[0]
    assert float(found) == pytest.approx(float(truth), abs=1e-6)


def test_the_model_and_the_generators_are_left_as_found() -> None:
    model = network(nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5))
    model.train()[1].eval()
    model[0].bias.requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes, flags = [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]
    state = torch.get_rng_state()
    hessian_spectrum(model, [(X, Y)], k=2)
    hessian_density(model, [(X, Y)], steps=5, probes=1)
    hessian_trace(model, DataLoader(TensorDataset(X, Y), batch_size=12), products=6, kind="fisher")
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes and [p.requires_grad for p in model.parameters()] == flags
    assert torch.equal(state, torch.get_rng_state()) and all(p.grad is None for p in model.parameters())


def test_a_callers_autocast_does_not_take_digits() -> None:
    model, batch = network().float(), (X.float(), Y)
    exact = hessian_spectrum(model, batch).largest, hessian_density(model, batch, steps=6).nodes
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = hessian_spectrum(model, batch).largest, hessian_density(model, batch, steps=6).nodes
        trace = hessian_trace(model, batch).value
    assert all(map(torch.equal, inside, exact)) and trace == hessian_trace(model, batch).value


def test_batch_norm_uses_its_statistics_and_dropout_one_mask_per_batch() -> None:
    normed = network(nn.BatchNorm1d(8), nn.Tanh())
    truth = torch.linalg.eigvalsh(dense_hessian(normed.eval(), X, Y))[-1]
    assert hessian_spectrum(normed.train(), (X, Y)).largest[0] == pytest.approx(float(truth), abs=1e-6)
    dropped = network(nn.Tanh(), nn.Dropout(0.5))
    off = torch.linalg.eigvalsh(dense_hessian(dropped.eval(), X, Y))[-1]
    assert hessian_spectrum(dropped, (X, Y), dropout=False).largest[0] == pytest.approx(float(off), abs=1e-6)
    twice = hessian_spectrum(dropped, [(X, Y), (X, Y)]).largest
    assert twice[0] != twice[1] != pytest.approx(float(off)) and twice[0] != pytest.approx(float(off))
    assert torch.equal(twice, hessian_spectrum(dropped, [(X, Y), (X, Y)]).largest)


def test_a_batch_that_does_not_fit_is_split_with_the_same_result() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.largest = network(), 0

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 7:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            self.largest = max(self.largest, len(x))
            return self.inner(x)

    small = Small()
    whole = hessian_spectrum(small.inner, (X, Y), k=2).eigenvalues
    torch.testing.assert_close(hessian_spectrum(small, (X, Y), k=2).eigenvalues, whole, atol=1e-9, rtol=0)
    assert small.largest == 6


@pytest.mark.parametrize(("size", "k"), [(40, 1), (200, 5), (6, 6)])
def test_lanczos_finds_known_spectra_within_its_bound(size: int, k: int) -> None:
    values = torch.randn(size, generator=RNG, dtype=torch.float64) ** 3
    found = lanczos(with_spectrum(values), k, RNG)
    truth = values.sort(descending=True).values[:k]
    assert found.converged and ((found.values - truth).abs() <= found.residuals + 1e-12).all()
    torch.testing.assert_close(found.values, truth, atol=1e-6 * float(values.abs().max()), rtol=0)
    gram = found.vectors @ found.vectors.T
    torch.testing.assert_close(gram, torch.eye(k, dtype=torch.float64), atol=1e-9, rtol=0)


def test_lanczos_holds_a_bounded_basis_and_reports_when_it_has_not_converged() -> None:
    values = torch.linspace(0, 1, 300, dtype=torch.float64)  # no gap: many products
    few = lanczos(with_spectrum(values), 2, RNG, basis=8, most=12)
    assert not few.converged and few.products == 12 and (few.residuals > 1e-3).any()
    done = lanczos(with_spectrum(values), 2, RNG, basis=8)
    torch.testing.assert_close(done.values, values.flip(0)[:2], atol=1e-6, rtol=0)
    assert lanczos(with_spectrum(torch.ones(30, dtype=torch.float64)), 2, RNG).values.tolist() == pytest.approx([1, 1])


def test_lanczos_needs_half_the_products_of_power_iteration_for_the_same_true_error() -> None:
    bulk = 0.3 * torch.rand(396, generator=RNG, dtype=torch.float64)
    outliers = torch.tensor([5.0, 4.6, 4.1, 3.0], dtype=torch.float64)  # beside the bulk, as in trained networks
    dense = with_spectrum(torch.cat([outliers, bulk]))

    def reached(method: Callable[..., Eigenpairs]) -> int:
        history = method(dense, 1, torch.Generator().manual_seed(7), tol=1e-9, most=200).history
        return next(n for n, value in enumerate(history, 1) if abs(value - 5) < 5e-3)

    assert 2 * reached(lanczos) <= reached(power_iteration)


class Rank1:
    """3 u uᵀ over as many float32 numbers as a small ResNet-18 has; the product itself is taken in float64."""

    size, device, dtype = 4_000_000, torch.device("cpu"), torch.float32

    def __init__(self) -> None:
        self.u = F.normalize(torch.randn(self.size, generator=RNG, dtype=torch.float64), dim=0)

    def __matmul__(self, v: Tensor) -> Tensor:
        return (3 * self.u * (self.u @ v.double())).float()


def test_eigenvalues_of_millions_of_float32_parameters_keep_their_digits() -> None:
    matrix = Rank1()
    assert float(lanczos(matrix, 1, RNG, tol=1e-6, basis=4, most=3).values[0]) == pytest.approx(3, rel=2e-6)
    assert float(power_iteration(matrix, 1, RNG, tol=1e-6).values[0]) == pytest.approx(3, rel=2e-6)


def test_the_density_is_near_the_true_spectrum() -> None:
    values = torch.cat([torch.randn(190, generator=RNG), torch.tensor([30.0, 20, 15, 12, 9, 8, 7, 6, 5, 4])]).double()
    found = quadrature(with_spectrum(values), 40, 20, RNG)
    assert found.weights.sum(1).tolist() == pytest.approx([1] * 20)
    distance = wasserstein_distance(values, found.nodes.reshape(-1), None, found.weights.reshape(-1))
    assert distance < 0.03 * float(values.std()) + 0.05  # measured: 0.06
    at = torch.linspace(-40, 80, 4001, dtype=torch.float64)
    assert torch.trapezoid(found.density(at, 0.5), at) == pytest.approx(1, abs=1e-6)
    model = network()
    of_model = hessian_density(model, (X, Y), steps=30, probes=30)
    truth = torch.linalg.eigvalsh(dense_hessian(model, X, Y))
    distance = wasserstein_distance(truth, of_model.nodes.reshape(-1), None, of_model.weights.reshape(-1))
    assert distance < 0.1 * float(truth.std())


def test_the_interval_of_the_trace_covers_it() -> None:
    model = network()
    truth = float(dense_hessian(model, X, Y).trace())
    found = hessian_trace(model, (X, Y), products=30)
    low, high = found.interval()
    assert low <= truth <= high and high - low < abs(truth)
    values = torch.cat([torch.tensor([50.0, 20, 10, 8]), torch.rand(96, generator=RNG) - 0.4]).double()
    dense = with_spectrum(values)
    covered = 0
    for seed in range(200):
        low, high = hutchpp(dense, 30, torch.Generator().manual_seed(seed)).interval()
        covered += low <= float(values.sum()) <= high
    assert covered / 200 > 0.88


def test_the_error_of_hutchinsons_trace_is_that_of_random_signs() -> None:
    """Var[vᵀAv] = 2 Σ_{i≠j} a_ij² for a symmetric A."""
    a = torch.randn(30, 30, generator=RNG, dtype=torch.float64)
    a += a.T.clone()
    found = hutchinson(Dense(a), 400, torch.Generator().manual_seed(2))
    error = float(2 * (a - a.diag().diag()).square().sum() / 400) ** 0.5
    assert found.standard_error == pytest.approx(error, rel=0.15)
    assert abs(found.value - float(a.trace())) < 4 * error


def test_a_start_at_another_eigenvector_does_not_hide_the_largest() -> None:
    dense = with_spectrum(torch.cat([torch.tensor([5.0, 4.6]), 3 * torch.rand(98, generator=RNG)]).double())
    second = torch.linalg.eigh(dense.matrix)[1][:, -2]
    for near in (second, torch.zeros_like(second)):  # the gradient of a loss at its minimum is zero
        assert float(lanczos(dense, 1, RNG, near=near).values[0]) == pytest.approx(5, abs=1e-5)


def test_the_gradient_is_that_of_autograd_whatever_the_chunks() -> None:
    model = network(nn.Tanh())
    truth = torch.autograd.grad(F.cross_entropy(model(X), Y), list(model.parameters()))
    for chunk in (None, 7):
        operator = Curvature(model, [(X[:9], Y[:9]), (X[9:], Y[9:])], weight_decay=0.1, chunk=chunk)
        torch.testing.assert_close(operator.gradient(), torch.cat([t.reshape(-1) for t in truth]))


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @once_differentiable
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        return 2 * g * ctx.saved_tensors[0]


@torch.library.custom_op("calibrant_test::cube_backward", mutates_args=())
def cube_backward(x: Tensor, g: Tensor) -> Tensor:
    return 3 * g * x**2


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):  # type: ignore[no-untyped-def]
        return cube_backward(ctx.saved_tensors[0], g)


class Squares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Once.apply(x)


@pytest.mark.parametrize(
    ("loss", "layer", "says"),
    [
        (lambda z, y: (z.argmax(-1) == y).double().mean(), nn.Tanh(), "does not depend on the parameters"),
        (lambda z, y: F.cross_entropy(z, y) / 0, nn.Tanh(), "the loss of a batch is inf"),
        (F.cross_entropy, Squares(), "Once has no second derivative.*calibrant.reference"),
        (lambda z, y: F.cross_entropy(Cubed.apply(z), y), nn.Tanh(), "cube_backward.default has no second derivative"),
    ],
)
def test_what_has_no_second_derivative_is_named(loss: object, layer: nn.Module, says: str) -> None:
    with pytest.raises(InputError, match=says):
        hessian_spectrum(network(layer), (X, Y), loss=loss)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="not finite"):
        lanczos(Dense(torch.full((4, 4), torch.nan, dtype=torch.float64)), 1, RNG)
    with pytest.raises(InputError, match="k=76 eigenvalues of a matrix of side 75"):
        hessian_spectrum(network(), (X, Y), k=76)
    with pytest.raises(InputError, match="no batches"):
        hessian_spectrum(network(), [])
    with pytest.raises(InputError, match="24 inputs but 5 labels"):
        hessian_spectrum(network(), (X, Y[:5]))
    with pytest.raises(InputError, match="chunk=0"):
        hessian_spectrum(network(), (X, Y), chunk=0)
    for label in (99, -1):
        with pytest.raises(InputError, match=f"label {label}; the classes of the model are 0 … "):
            hessian_spectrum(network(), (X, torch.full_like(Y, label)))
    with pytest.raises(InputError, match=r"torch.bfloat16 keeps too few digits for curvature; pass model.float\(\)"):
        hessian_spectrum(network().bfloat16(), (X.bfloat16(), Y))
    with pytest.raises(KeyError, match="did you mean 'gauss_newton'"):
        hessian_spectrum(network(), (X, Y), kind="gauss_newtn")
