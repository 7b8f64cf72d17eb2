"""A smooth map as a formula with its numbers, in JSON, for a program in another language.

`map_to_json(map)` gives `{"format", "version", "method", "classes", "formula", "impossible_stays", "parameters"}`. The
formula turns the logits z of one item into new logits z'; probabilities are softmax(z'). All numbers are float64 and
survive JSON exactly. Notation: K classes, p = softmax(z), ln 0 = −inf, σ(x) = 1/(1 + e^−x). `impossible_stays` says
that a class with z_k = −inf has z'_k = −inf, whatever the formula gives. The parameters of a chain are the forms to
apply one after the other.

Other maps (bins, steps, isotonic knots, splines, and any that has no line in `FORMS`) are refused; export them to ONNX
(`onnx_export.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from calibrant.errors import MapError
from calibrant.posthoc import dirichlet, one_vs_rest
from calibrant.posthoc.map import Chain, FittedMap
from calibrant.types import jsonable

FORMAT, VERSION = "calibrant closed form", 1

TEMPERED = "x_k = ln((1 − ε) softmax(z / T)_k + ε / K)"


@dataclass(frozen=True)
class ClosedForm:
    """A formula, the function that reads its parameters from a map, and whether −inf stays."""

    formula: str
    parameters: Callable[[Any], Mapping[str, Any]]
    impossible_stays: bool = True


FORMS: dict[str, ClosedForm] = {
    "identity": ClosedForm("z'_k = z_k", lambda m: {}),
    "pool": ClosedForm(
        "z'_k = ln((1/M) Σ_m softmax(z_m)_k) over M members; one member: z'_k = z_k", lambda m: {}, False
    ),
    "temperature": ClosedForm("z'_k = z_k / T", lambda m: {"T": m.temperature}),
    "vector": ClosedForm("z'_k = w_k z_k + b_k", lambda m: {"w": m.weight, "b": m.bias}),
    "matrix": ClosedForm(
        "u_k = max(z_k − max_j z_j, deepest);  x = u − mean(u);  z' = W x + b",
        lambda m: {"W": m.weight, "b": m.bias, "deepest": dirichlet.DEEPEST},
    ),
    "dirichlet": ClosedForm(
        "x_k = max(ln p_k, deepest);  z' = W x + b",
        lambda m: {"W": m.weight, "b": m.bias, "deepest": dirichlet.DEEPEST},
    ),
    "structured_vector": ClosedForm(
        f"{TEMPERED};  z'_k = w_k x_k + b_k",
        lambda m: {"T": m.temperature, "ε": m.epsilon, "w": m.scale, "b": m.bias},
    ),
    "structured_matrix": ClosedForm(
        f"{TEMPERED};  z' = W x + b",
        lambda m: {"T": m.temperature, "ε": m.epsilon, "W": m.weight, "b": m.bias},
    ),
    "ets": ClosedForm(
        "z'_k = ln(w_1 softmax(z / T)_k + w_2 p_k + w_3 / K)",
        lambda m: {"T": m.temperature, "w": m.weights},
    ),
    "platt": ClosedForm(
        "s_k = max(ln p_k, deepest) − max(ln(1 − p_k), deepest);  z'_k = ln σ(a_k s_k + b_k)",
        lambda m: {"a": m.a, "b": m.b, "deepest": -one_vs_rest.DEEPEST},
    ),
    "beta": ClosedForm(
        "z'_k = ln σ(a_k max(ln p_k, deepest) − b_k max(ln(1 − p_k), deepest) + c_k)",
        lambda m: {"a": m.a, "b": m.b, "c": m.c, "deepest": -one_vs_rest.DEEPEST},
    ),
    "order_preserving": ClosedForm(
        "x = ln softmax(z / T);  z'_k = g(x_k), g continuous with g(t_1) = 0 and slope s_0 below t_1, s_j between t_j "
        "and t_{j+1}, s_J above t_J",
        lambda m: {"T": m.temperature, "t": m.knots, "s": m.slopes},
    ),
}
"""Method of a map → its closed form. In the formulas ln(1 − p_k) is ln Σ_{j≠k} e^{z_j} − ln Σ_j e^{z_j}."""


def map_to_json(fitted: FittedMap) -> dict[str, Any]:
    """Return the closed form of a smooth map, in plain JSON types."""
    if isinstance(fitted, Chain):
        formula, stays = "z' = the forms of `maps`, applied first to last", False
        parameters: Mapping[str, Any] = {"maps": [map_to_json(part) for part in fitted.maps]}
    elif fitted.method in FORMS:
        form = FORMS[fitted.method]
        formula, stays, parameters = form.formula, form.impossible_stays, form.parameters(fitted)
    else:
        raise MapError(
            f"a {fitted.method} map has no closed form that calibrant can write; "
            "export it as .onnx, or fit a method that has one, such as temperature"
        )
    made: dict[str, Any] = jsonable(
        {
            "format": FORMAT,
            "version": VERSION,
            "method": fitted.method,
            "classes": fitted.classes,
            "formula": formula,
            "impossible_stays": stays,
            "parameters": parameters,
        }
    )
    return made
