"""The closed form of a smooth map, applied by an interpreter in pure Python."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import calibrant
from calibrant.cli import run
from calibrant.errors import MapError
from calibrant.posthoc import CALIBRATORS, Calibrator, FittedMap, Identity
from calibrant.posthoc.calibrator import Composition
from calibrant.posthoc.export import FORMS, map_to_json
from calibrant.posthoc.onnx_export import run_onnx
from tests.posthoc.simulated import need_onnx, simulated

SMOOTH = sorted(set(FORMS) & set(CALIBRATORS))
Row = list[float]


# --- a reference interpreter: what docs/deployment.md says, in pure Python -------------------------------------------


def log_sum(z: Row) -> float:
    top = max(z)
    return -math.inf if top == -math.inf else top + math.log(math.fsum(math.exp(v - top) for v in z))


def log_softmax(z: Row) -> Row:
    total = log_sum(z)
    return [v - total for v in z]


def log_rest(z: Row) -> Row:
    """ln(1 − p_k)."""
    total = log_sum(z)
    return [log_sum(z[:k] + z[k + 1 :]) - total for k in range(len(z))]


def log_sigmoid(x: float) -> float:
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))


def product(w: list[Row], x: Row, b: Row) -> Row:
    return [math.fsum(wij * xj for wij, xj in zip(row, x, strict=True)) + bi for row, bi in zip(w, b, strict=True)]


def piecewise(x: float, t: Row, s: Row) -> float:
    if x <= t[0]:
        return s[0] * (x - t[0])
    height = 0.0
    for j in range(1, len(t)):
        if x <= t[j]:
            return height + s[j] * (x - t[j - 1])
        height += s[j] * (t[j] - t[j - 1])
    return height + s[len(t)] * (x - t[-1])


def apply_form(form: dict[str, Any], z: Row) -> Row:
    q, k, method = form["parameters"], len(z), form["method"]
    if method == "chain":
        for part in q["maps"]:
            z = apply_form(part, z)
        return z
    out = z
    if method in ("temperature", "ets", "structured_vector", "structured_matrix", "order_preserving"):
        hot = log_softmax([v / q["T"] for v in z])
    if method == "temperature":
        out = [v / q["T"] for v in z]
    elif method == "vector":
        out = [w * v + b if v > -math.inf else v for w, v, b in zip(q["w"], z, q["b"], strict=True)]
    elif method == "matrix":
        u = [max(v - max(z), q["deepest"]) for v in z]
        out = product(q["W"], [v - math.fsum(u) / k for v in u], q["b"])
    elif method == "dirichlet":
        out = product(q["W"], [max(v, q["deepest"]) for v in log_softmax(z)], q["b"])
    elif method in ("structured_vector", "structured_matrix"):
        x = [math.log((1 - q["ε"]) * math.exp(v) + q["ε"] / k) for v in hot]
        if method == "structured_vector":
            out = [w * v + b for w, v, b in zip(q["w"], x, q["b"], strict=True)]
        else:
            out = product(q["W"], x, q["b"])
    elif method == "ets":
        w = q["w"]
        p = log_softmax(z)
        out = [math.log(w[0] * math.exp(a) + w[1] * math.exp(b) + w[2] / k) for a, b in zip(hot, p, strict=True)]
    elif method in ("platt", "beta"):
        lp = [max(v, q["deepest"]) for v in log_softmax(z)]
        lr = [max(v, q["deepest"]) for v in log_rest(z)]
        c = q["b"] if method == "platt" else q["c"]
        slope = q["a"] if method == "platt" else q["b"]
        out = [log_sigmoid(a * x - s * y + o) for a, x, s, y, o in zip(q["a"], lp, slope, lr, c, strict=True)]
    elif method == "order_preserving":
        out = [piecewise(v, q["t"], q["s"]) if v > -math.inf else v for v in hot]
    else:
        assert method == "identity"
    if form["impossible_stays"]:
        out = [-math.inf if v == -math.inf else o for v, o in zip(z, out, strict=True)]
    return out


def probabilities(z: Row) -> Row:
    return [math.exp(v) for v in log_softmax(z)]


# --- tests -----------------------------------------------------------------------------------------------------------


def agree(m: FittedMap, rows: torch.Tensor) -> None:
    form = json.loads(json.dumps(map_to_json(m), allow_nan=False))
    assert form["format"] == "calibrant closed form" and form["version"] == 1 and form["formula"]
    want = torch.softmax(m(rows), -1)
    for z, row in zip(rows.tolist(), want.tolist(), strict=True):
        assert probabilities(apply_form(form, z)) == pytest.approx(row, abs=1e-9)


EDGES = torch.tensor(
    [[60.0, -60.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, -torch.inf, -1.0, -torch.inf], [700.0, 650.0, 640.0, -700.0]],
    dtype=torch.float64,
)


@pytest.mark.parametrize("name", SMOOTH)
def test_pure_python_reproduces_the_map(name: str) -> None:
    m = CALIBRATORS[name]().fit(simulated(900, scale=2.0))
    agree(m, torch.cat([simulated(60, scale=2.0, seed=1).logits, EDGES]))
    assert map_to_json(m)["classes"] == 4 and map_to_json(m)["method"] == name


def test_chains_and_the_identity() -> None:
    both: Calibrator = Composition(CALIBRATORS["temperature"](), CALIBRATORS["vector"]())
    agree(both.fit(simulated(900, scale=2.0)), simulated(40, scale=2.0, seed=2).logits)
    agree(Identity(), simulated(10, scale=2.0, seed=3).logits)


def test_every_map_has_a_formula_or_is_refused_by_name() -> None:
    for name, cls in CALIBRATORS.items():
        m = cls().fit(simulated(900, scale=2.0))
        if name in FORMS:
            map_to_json(m)
        else:
            with pytest.raises(MapError, match=f"a {m.method} map has no closed form .* export it as .onnx"):
                map_to_json(m)


def test_the_docs_hold_every_formula() -> None:
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text("utf-8")
    for name, form in FORMS.items():
        assert f"| `{name}` | `{form.formula}` |" in page, f"docs/deployment.md does not have the formula of {name}"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted = CALIBRATORS["temperature"]().fit(simulated(900, scale=2.0))
    fitted.save(tmp_path / "map")
    assert run(["export", str(tmp_path / "map"), "-o", str(tmp_path / "map.json"), "--json"]) == 0
    form = json.loads((tmp_path / "map.json").read_text("utf-8"))
    assert form["parameters"]["T"] == float(fitted.tensors()["temperature"])
    capsys.readouterr()
    for folder, words in (("map", "unknown format '.txt'; use .json or .onnx"), ("nothing", "is not a folder")):
        code, err = run(["export", str(tmp_path / folder), "-o", str(tmp_path / "map.txt")]), capsys.readouterr().err
        assert code == 2 and words in err and err.count("\n") == 1 and not (tmp_path / "map.txt").exists()


def test_a_map_alone_as_onnx(tmp_path: Path) -> None:
    need_onnx()
    fitted, z = CALIBRATORS["histogram"]().fit(simulated(900, scale=2.0)), simulated(30, scale=2.0, seed=4).logits
    path = calibrant.export(fitted, tmp_path / "map.onnx")
    got, want = (torch.softmax(t.double(), 1) for t in (run_onnx(path, z.float()), fitted(z.float())))
    assert torch.allclose(got, want, atol=1e-5)


def test_every_python_block_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_onnx()
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text("utf-8")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)), {})
    assert (tmp_path / "calibrated.onnx").stat().st_size > 1000
