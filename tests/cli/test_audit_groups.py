"""`audit --by COLUMN` and `--plan WIDTH`, from every format to the terminal, JSON and the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from calibrant.cli import run

SITES = ("Aarhus", "Bergen", "Córdoba", "Đà Nẵng")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    rng = np.random.default_rng(0)
    site = rng.choice(4, 1200, p=[0.4, 0.3, 0.2, 0.1])
    z = rng.normal(0, 1.5, (1200, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    z *= np.where(site == 2, 5.0, 1.0)[:, None]
    scores = {f"logit_{k}": z[:, k] for k in range(3)}
    return pa.table({**scores, "label": y, "site": np.array(SITES)[site], "row": np.arange(1200)})


QUICK = ("--metrics", "accuracy,gap,ece", "--seed", "1")


def test_every_format_names_the_worst_group(table: pa.Table, capsys: pytest.CaptureFixture[str]) -> None:
    pyarrow.csv.write_csv(table, "x.csv")
    pq.write_table(table, "x.parquet")
    z = np.stack([table[f"logit_{k}"].to_numpy() for k in range(3)], 1)
    np.savez("x.npz", logits=z, labels=table["label"].to_numpy(), site=np.array(table["site"].to_pylist()))
    seen = []
    for path in ("x.csv", "x.parquet", "x.npz"):
        assert run(["audit", path, "--by", "site", "--json", *QUICK]) == 0
        seen.append(json.loads(capsys.readouterr().out)[0]["by"])
    assert seen[0] == seen[1] == seen[2]
    assert seen[0]["column"] == "site" and seen[0]["worst"] == "Córdoba"
    assert [g["group"] for g in seen[0]["groups"]] == sorted(SITES)
    assert sum(g["n"] for g in seen[0]["groups"]) == 1200
    for g in seen[0]["groups"]:
        assert g["p"] <= g["p_holm"] <= 1 and g["metrics"]["gap"]["low"] < g["metrics"]["gap"]["high"]


def test_the_terminal_and_the_report(table: pa.Table, capsys: pytest.CaptureFixture[str]) -> None:
    pq.write_table(table, "x.parquet")
    assert run(["audit", "x.parquet", "--by", "site", "--plan", "0.01", "--html", "r.html", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "worst site: Córdoba says " in out and "after correcting for 4 groups" in out
    rows = {line.split()[0]: line for line in out.splitlines() if line and line.split()[0] in SITES}
    assert len(rows) >= 3 and all(len(line.rstrip()) <= 80 for line in out.splitlines() if "%  " in line)
    assert "items for 0.01" in out
    page = Path("r.html").read_text("utf-8")
    assert "Is it worse for some site?" in page and "Worst site: Córdoba" in page
    panel = page[page.index("Is it worse for some site?") :]
    assert all(name in panel[: panel.index("</svg>")] for name in SITES), "the forest plot has a row for each"
