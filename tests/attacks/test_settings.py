"""Settings may be numbers of any library. Anything else is refused, in one line, before an attack begins."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
import torch

from calibrant.attacks import ATTACKS, DDN, FGSM, PGD, Bounds, CarliniWagner, DeepFool, assess
from calibrant.errors import InputError
from tests.attacks.conftest import Victim

NUMERIC = [
    (name, field.name, str(field.type).partition(" | ")[0])
    for name, attack in ATTACKS.items()
    for field in fields(attack)
    if str(field.type).partition(" | ")[0] in ("int", "float", "bool")
]
KINDS = {"int": "a whole number", "float": "a number", "bool": "True or False"}
NO_NUMBERS = ["a", b"1", [1], {}, 1j, object(), math.nan, -math.inf, 10**400, torch.tensor([1.0, 2.0]), np.zeros(2)]
ALSO_WRONG = {"int": [True, 1.5, 2.0], "float": [True], "bool": [1, 0.0]}


@pytest.mark.parametrize("name", ATTACKS)
def test_settings_that_are_not_numbers_are_named(name: str) -> None:
    make: Any = ATTACKS[name]
    wrong = [(s, kind, value) for n, s, kind in NUMERIC if n == name for value in [*NO_NUMBERS, *ALSO_WRONG[kind]]]
    for setting, kind, value in wrong:
        with pytest.raises(InputError, match=f"{setting}=.* (must be {KINDS[kind]}|is not one of)") as error:
            make(**{setting: value})
        assert "\n" not in str(error.value) and len(str(error.value)) < 200


def test_numbers_of_other_libraries_are_converted() -> None:
    given: dict[str, Any] = {"epsilon": np.float32(0.25), "iterations": np.int64(3), "seed": torch.tensor(5), "norm": 2}
    made = PGD(**given, random_start=np.bool_(False))  # type: ignore[arg-type]
    assert made == PGD(epsilon=0.25, iterations=3, seed=5, norm=2.0, random_start=False)
    kinds = [type(v) for v in (made.epsilon, made.iterations, made.seed, made.norm, made.random_start)]
    assert kinds == [float, int, int, float, bool]


@dataclass(frozen=True, kw_only=True)
class Own(DDN):
    """A custom attack with settings that are not numbers, that may be infinite, or that are computed."""

    rate: float | list[float] = 0.5
    mode: bool | str = "auto"
    budget: float = math.inf
    width: int | None = None
    twice: float = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "twice", 2 * self.alpha)


def test_settings_of_a_custom_attack() -> None:
    made = Own(rate=[0.1, 0.2], budget=math.inf, width=np.int64(3))  # type: ignore[arg-type]
    assert (made.mode, made.twice, made.width) == ("auto", 2.0, 3) and type(made.width) is int
    for slip in ({"budget": "a"}, {"budget": math.nan}, {"width": 1.5}, {"alpha": math.inf}):
        with pytest.raises(InputError, match=next(iter(slip))):
            Own(**slip)


@pytest.mark.parametrize(
    ("attack", "given", "says"),
    [
        (FGSM, {"batch": 0}, "batch=0 must be 1 or more"),
        (FGSM, {"engine": None}, "engine=None is unknown; use 'auto' or 'eager' or 'graph'"),
        (CarliniWagner, {"iterations": 0}, "iterations=0 must be 1 or more"),
        (CarliniWagner, {"lr": 0.0}, "lr=0.0 must be positive"),
        (CarliniWagner, {"kappa": -1.0}, "kappa=-1.0 must be 0 or more"),
        (CarliniWagner, {"initial_c": 0.0}, "initial_c=0.0 must be positive"),
        (PGD, {"alpha": -1.0}, "alpha=-1.0 must be positive"),
        (PGD, {"epsilon": -0.1}, "epsilon=-0.1 must be 0 or more"),
        (PGD, {"norm": 1.0}, "norm=1.0 is not one of PGD's; use 2 or float('inf')"),
        (PGD, {"maximise": "confidense"}, "maximise='confidense' is unknown; use 'loss' or 'confidence'"),
        (DDN, {"gamma": 1.0}, "gamma=1.0 must be below 1"),
        (DDN, {"alpha": -2.0}, "alpha=-2.0 must be positive"),
        (DeepFool, {"candidates": 0}, "candidates=0 must be 1 or more"),
    ],
)
def test_only_the_wrong_setting_is_named(attack: type, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        attack(**given)
    assert str(caught.value) == says


@pytest.mark.parametrize("kind", [torch.uint8, torch.uint16, torch.uint64, torch.int16, np.uint16, list])
def test_labels_are_whole_numbers_of_any_kind(kind: Any, victim: Victim) -> None:
    attack, y = FGSM(bounds=victim.bounds), victim.y[:8]
    given: Any = y.to(kind) if isinstance(kind, torch.dtype) else y.tolist() if kind is list else y.numpy().astype(kind)
    assert torch.equal(attack(victim.model, victim.x[:8], given), attack(victim.model, victim.x[:8], y))
    assert assess(victim.model, attack, victim.x[:8], given) == assess(victim.model, attack, victim.x[:8], y)


def test_inputs_of_another_precision_than_the_weights_are_named(victim: Victim) -> None:
    """NumPy's float64 is a usual mistake. The model itself reports other errors about its inputs."""
    attack = DDN(bounds=victim.bounds)
    with pytest.raises(InputError, match=r"x is torch.float64 .* weights are torch.float32; pass x.to"):
        attack.run(victim.model, victim.x.double())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        attack.run(victim.model, victim.x[..., :7])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_at_the_bounds_are_accepted(dtype: torch.dtype, victim: Victim) -> None:
    """With CIFAR's constants, black and white are up to half a percent outside the bounds after normalising and
    back."""
    box = Bounds(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
    grey = (torch.arange(256) / 255).reshape(-1, 1, 1, 1).expand(256, 3, 1, 1)
    x = box.inputs(grey, dtype)
    assert bool((box.denormalised(x.double()) > 1 + 1e-4).any() | (box.denormalised(x.double()) < -1e-4).any())
    torch.testing.assert_close(box.pixels(x), grey, atol=0.005, rtol=0)
    for outside in (box.inputs(1.02 * grey, dtype), torch.full((1, 3, 1, 1), torch.inf, dtype=dtype)):
        with pytest.raises(InputError, match="outside the bounds"):
            box.pixels(outside)
    one = Bounds(mean=(0.4914,), std=(0.2023,))
    fed = one.inputs(victim.bounds.pixels(victim.x[:8]), dtype)
    strength = assess(copy.deepcopy(victim.model).to(dtype), FGSM(bounds=one), fed, victim.y[:8])
    assert strength.accuracy > 0.5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"low": -math.inf, "high": math.inf}, r"\[-inf, inf\] must be finite.*for example Bounds\(-3, 3\)"),
        ({"low": math.nan}, "bounds: low=nan must be a number"),
        ({"low": 1.0, "high": 0.0}, "low < high"),
        ({"high": None}, "bounds: high=None must be a number"),
        ({"mean": "0.5"}, "bounds: mean='0.5' must be a number"),
        ({"mean": (0.5, math.nan)}, "bounds: mean=nan must be a number, and finite"),
        ({"std": ()}, "bounds: std=.* must be one number per channel"),
        ({"std": 0.0}, "must be positive"),
    ],
)
def test_wrong_bounds_are_named(arguments: dict[str, Any], says: str) -> None:
    """In an infinite box the searches have no scale; their distances were a third too large."""
    with pytest.raises(InputError, match=says):
        Bounds(**arguments)


def test_bounds_take_one_constant_or_one_per_channel() -> None:
    assert Bounds(mean=0.3, std=0.4) == Bounds(mean=(0.3,), std=(0.4,))  # type: ignore[arg-type]
    assert Bounds(mean=torch.full((3, 1, 1), 0.5)).mean == (0.5, 0.5, 0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="mean has 2 entries"):
        FGSM(bounds=Bounds(mean=(0.1, 0.2)))(torch.nn.Linear(3, 2), torch.rand(2, 3))
    with pytest.raises(InputError, match=r"bounds=\(0, 1\): an attack takes bounds=calibrant.attacks.Bounds"):
        DDN(bounds=(0, 1))(torch.nn.Linear(3, 2), torch.rand(2, 3))  # type: ignore[arg-type]
