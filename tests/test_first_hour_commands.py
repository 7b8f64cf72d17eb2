"""Jobs of a newcomer's first hour on the command line, each in at most five commands (Python's: test_first_hour.py)."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from calibrant import predictions
from calibrant.cli import run
from tests.hurried import hurried

JOBS: dict[str, tuple[str, str]] = {
    "is my model overconfident?": ("calibrant audit test.npz", "overconfident: says "),
    "and from a spreadsheet?": ("calibrant audit answers.csv", "300 items · 3 classes"),
    "every number there is": ("calibrant audit test.npz --all --no-intervals", "fpr95"),
    "numbers for a script": ("calibrant audit test.npz --json --no-intervals", '"ece"'),
    "a page for my colleague": (
        "calibrant audit test.npz --html report.html",
        "the report, for a browser: report.html",
    ),
    "which hospital is worst?": ("calibrant audit answers.csv --by hospital", "hospital"),
    "how many items do I need?": ("calibrant audit test.npz --plan 0.02", "items for 0.02"),
    "stop a bad model in CI": ("calibrant audit test.npz --fail-if 'ece.low > 0.9'", "passes"),
    "fix it, and see that it helped": (
        "calibrant fit calibration.npz --method temperature -o map\n"
        "calibrant apply map test.npz -o calibrated.npz\n"
        "calibrant compare test.npz calibrated.npz",
        "better in nll",
    ),
    "fix a spreadsheet, and keep its columns": (
        "calibrant fit answers.csv --method temperature -o map\n"
        "calibrant apply map answers.csv -o fixed.csv\n"
        "calibrant audit fixed.csv --by hospital --allow-reuse",
        "hospital",
    ),
    "which fix is best?": ("calibrant audit test.npz --calibration calibration.npz --no-intervals", "Use "),
    "where do I set the threshold?": (
        "calibrant decide calibration.npz --accuracy 0.7 -o rule\ncalibrant audit test.npz --rule rule --no-intervals",
        "in line with the promise",
    ),
    "a set of answers that holds the truth": (
        "calibrant decide calibration.npz --set-coverage 0.9 -o sets\ncalibrant apply sets test.npz -o with-sets.npz",
        "classes in a set on average",
    ),
    "my predictions are Parquet, with class names": (
        "calibrant audit answers.parquet --labels-key species --no-intervals",
        "3 classes: owl, cat, dog",
    ),
    "train a network of my own, and ensemble it": (
        "calibrant train digits/focal -o mine --set epochs=1 --set network.name=mymod:net\n"
        "calibrant predict mymod:net@mine --ensemble pep --members 2 --sigma 0.01 -o pep.npz\n"
        "calibrant compare mine/test.npz pep.npz --metrics nll,ece",
        "pep.npz: 450 items of test, 10 classes, pep of 2",
    ),
    "take the fix to another language": (
        "calibrant fit calibration.npz --method temperature -o map\ncalibrant export map -o map.json",
        "written to map.json",
    ),
    "what is there?": ("calibrant list\ncalibrant list losses", "inverse_focal"),
    "train one that is better": (
        "calibrant train digits/focal -o run --set epochs=1",
        "next: calibrant audit run/test.npz",
    ),
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overconfident predictions of three classes, as two files and as a table with a column of hospitals."""
    hurried(monkeypatch)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for split in ("calibration", "test"):
        z = rng.normal(0, 1.5, (900, 3))
        y = (z + rng.gumbel(size=z.shape)).argmax(1)
        predictions(3 * z, y, split=split).save(f"{split}.npz")
    rows = [",".join(map(str, [*z[i], y[i], ("south", "north")[i % 2]])) for i in range(300)]
    names, scores = np.array(["owl", "cat", "dog"]), np.exp(z) / np.exp(z).sum(1, keepdims=True)
    columns = {f"prob_{name}": scores[:, i] for i, name in enumerate(names)}
    parquet.write_table(pyarrow.table(columns | {"species": names[y]}), "answers.parquet")
    Path("mymod.py").write_text(
        "import torch\n\ndef net():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("answers.csv").write_text("\n".join(["logit_0,logit_1,logit_2,label,hospital", *rows, ""]))


@pytest.mark.parametrize("job", JOBS)
def test_a_job_of_the_first_hour(job: str, files: None, capsys: pytest.CaptureFixture[str]) -> None:
    commands, expected = JOBS[job]
    assert len(commands.splitlines()) <= 5
    for line in commands.splitlines():
        assert run(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert expected in " ".join(out.split())
    if "--json" in commands:
        assert json.loads(out)[0]["n"] == 900
