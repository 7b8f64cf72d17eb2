"""What users get wrong on the command line: exit code 2, one line that names the remedy, and nothing is written."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant import files
from calibrant.cli import run
from tests.cli.commands import Refused, make

HUGE = 2**70

MISTAKES = [
    ("fit {d}/cal.npz --method temprature", "did you mean 'temperature'"),
    ("fit {d}/cal.npz --method histogram --set bin=3", "did you mean 'bins'"),
    ("fit {d}/cal.npz --method histogram --set bins", "key=value"),
    ("fit {d}/cal.npz --method histogram --set bins=1e400", "must be a whole number"),
    ("fit {d}/cal.npz --method temperature --set T=nan", "must be a number"),
    ("fit {d}/cal.npz --method temperature --budget 3", "--budget belongs to"),
    ("fit {d}/cal.npz --budget -1", "budget=-1"),
    (f"fit {{d}}/cal.npz --method temperature --seed {HUGE}", f"seed={HUGE}; it must be a whole number of at most 64"),
    ("fit {d}/test.npz --method temperature", "allow-reuse"),
    ("apply {d}/map {d}/four.npz -o o.npz", "fitted for 3 classes, the predictions have 4"),
    ("apply {d}/map {d}/test.npz -o o.xyz", "o.xyz"),
    ("apply {d}/map {d}/test.npz -o folder", "Parquet"),
    ("apply {d}/none {d}/test.npz -o o.npz", "not a folder"),
    ("apply {d}/map {d}/test.npz --labels-key truth -o o.npz", "no key 'truth' for labels"),
    (f"audit {{d}}/p.parquet --no-intervals --bins {HUGE}", f"bins={HUGE}; it must be a whole number"),
    (f"audit {{d}}/p.parquet --no-intervals --stream --bins {HUGE}", f"bins={HUGE}; it must be a whole number"),
    (f"audit {{d}}/test.npz --seed {HUGE}", f"seed={HUGE}; it must be a whole number of at most 64 bits"),
    (f"compare {{d}}/test.npz {{d}}/test.npz --seed {HUGE}", f"seed={HUGE}; it must be a whole number"),
    ("audit {d}/test.npz --stream", "only Parquet"),
    ("audit {d}/test.npz --about positive", "test.npz: about='positive' needs exactly two classes"),
    ("audit {d}/p.parquet --stream --about positive", "p.parquet: about='positive' needs exactly two classes"),
    ("audit {d}/test.npz --html none/r.html", "none does not exist"),
    ("audit {d}/site.npz --by sites", "no key 'sites' for group; did you mean 'site'?"),
    ("audit {d}/site.npz --by row", "'row' has 900 different values; 2 to 100 are parts to compare"),
    ("audit {d}/p.parquet --by label --stream", "--by needs the items in memory"),
    ("audit {d}/few.npz --advise", "few.npz: 50 items are too few to split; pass --calibration FILE"),
    ("audit {d}/test.npz --plan 0", "width 0; pass the width"),
    ("audit", "(see `calibrant audit --help`)"),
    ("bench run", "(see `calibrant bench run --help`)"),
    ("auditt", "(see `calibrant --help`)"),
    ("evaluate test.npz", "did you mean `calibrant audit`?"),
    ("list metric", "unknown family 'metric'; did you mean 'metrics'?"),
    ("decide {d}/cal.npz", "give one of"),
    ("decide {d}/cal.npz --accuracy 1.5", "accuracy=1.5"),
    ("decide {d}/cal.npz --accuracy 0.99", "the best reachable"),
    ("decide {d}/cal.npz --accuracy 0.9999", "are needed"),
    ("decide {d}/cal.npz --set-coverage 0.9999", "9999 are needed"),
    ("decide {d}/cal.npz --accuracy 0.7 --by group", "no groups"),
    ("decide {d}/cal.npz --threshold 1", "no item has a confidence of 1 or more"),
    ("train digits/fokal -o r", "did you mean 'digits/focal'"),
    ("train digits/focal -o r --set network=mpl", "did you mean 'mlp'"),
    ("train digits/focal -o r --device npu", "unknown device 'npu'"),
    ("train pep/mnist_mlp -o r --data-root nowhere", "mnist: the data root"),
    ("train digits/focal", "-o"),
    ("predict nothing -o p.npz", "no model 'nothing'"),
    ("predict . -o p.npz", "is not a run"),
    ("predict torch.nn:Identity -o p.npz", "--data is missing"),
    ("predict torch.nn:Nothing -o p.npz", "no function or class 'Nothing'"),
    ("predict no.such.module:f -o p.npz", "importing 'no.such.module'"),
    ("predict torch.nn:Identity --data digits -o p.npz", "expected [N, K]"),
    ("predict torch.nn:Identity --data digits --split tset -o p.npz", "unknown split 'tset'"),
    ("predict torch.nn:Identity --data digits --mean x -o p.npz", "must be finite numbers"),
    ("predict torch.nn:Identity --data digits --mean 0,1 -o p.npz", "--mean has 2 numbers"),
    ("predict torch.nn:Identity@w.bin --data digits -o p.npz", "w.bin: no such file"),
    ("predict torch.nn:Identity --data digits --std 0,0 -o p.npz", "greater than 0"),
    ("predict {run} --data {d}/large.npz -o p.npz", "cannot read"),
    ("predict {run} --device tpu -o p.npz", "use auto, cpu or cuda"),
    ("predict {run} --ensemble pepp -o p.npz", "did you mean 'pep'"),
    ("predict {run} --ensemble dropout --features -o p.npz", "--features needs a single network"),
    ("predict {run} --ensemble deep -o p.npz", "several networks"),
    ("predict {run} --ensemble pep --fit-on test -o p.npz", "that is not the test split"),
    ("predict {run} --ensemble pep --sigma -1 -o p.npz", "sigma"),
    ("predict {run} --ensemble dropout --p 2 -o p.npz", "p=2"),
    ("predict {run} --ensemble dropout --where nowhere -o p.npz", "nowhere"),
    ("predict {run} --ensemble pep --where biases -o p.npz", "is unknown; use auto, conv, weights or all"),
    ("predict {run} --ensemble pep --distribution cauchy -o p.npz", "use gaussian or uniform"),
    ("predict {run} --ensemble pep --search golden --sigma 0.1 -o p.npz", "drop one of them"),
    ("predict {run} --ensemble pep --html no/such/r.html -o p.npz", "name a file in a folder that exists"),
    ("predict {run} --ensemble pep --html r.html --keep-members -o p.npz", "drop --keep-members"),
    ("predict {run} --window 3 -o p.npz", "--window is a setting of a stream; add --stream"),
    ("predict {run} --stream --decay 1.5 -o p.npz", "decay=1.5"),
    ("predict {run} --stream --scene-cut 0 -o p.npz", "scene_cut=0"),
    # an option of an ensemble is never ignored; this is said before the model, which does not exist, is loaded
    ("predict x.y:z --members 3 -o o.npz", "--members is a setting of --ensemble pep, dropout, deep and swag"),
    ("predict x.y:z --members 3 --ensemble swa -o o.npz", "changes nothing with swa"),
    ("predict x.y:z --members 3 --stream --ensemble temporal -o o.npz", "changes nothing with temporal; add one, or"),
    ("predict x.y:z --keep-members -o o.npz", "--keep-members is a setting of --ensemble; add that, or drop"),
    ("predict x.y:z --keep-members --stream --ensemble pep -o o.npz", "no members; drop --keep-members"),
    (
        "predict x.y:z --sigma 0.1 --stream -o o.npz",
        "--sigma is a setting of --ensemble pep; add that, or drop --sigma",
    ),
    ("predict x.y:z --fit-on validation --ensemble dropout -o o.npz", "--fit-on is a setting of --ensemble pep"),
    ("predict x.y:z --where all --ensemble deep -o o.npz", "--where is a setting of --ensemble pep and dropout"),
    ("predict x.y:z --save folder -o o.npz", "--save is a setting of --ensemble pep; add that, or drop --save"),
    ("stress {run} -o s --members 3", "--members is a setting of --ensemble"),
    ("stress {run} -o s --ensemble temporal", "test items are not a stream"),
    ("stress {run} -o s --suite corruption", "did you mean 'corruptions'"),
    ("stress {run} -o s --types fogg", "did you mean 'fog'"),
    ("stress {run} -o s --types ,", "types is empty"),
    ("stress {run} -o s --severities 0,3", "severities lie in 1 … 5"),
    ("stress {run} -o s --severities high", "whole numbers"),
    ("stress {run} -o s --subset 18", "subset of corruptions"),
    ("stress {run} -o s --suite natural", "--natural NAME"),
    ("stress {run} -o s --natural cifar", "natural-shift set"),
    ("stress {run} -o s --suite ood --outside cifar11", "unknown data set 'cifar11'"),
    ("stress {run} -o s --suite ood --outside nowhere.npz", "no such file of images"),
    ("stress {run} -o s --calibration test", "fit on another one"),
    ("stress {run} -o s --calibrators temprature", "did you mean 'temperature'"),
    ("stress {run} -o s --data digits[0-4]", "has 10 classes and digits[0-4] has 5"),
    ("stress {run} -o s --reference nowhere", "not a stress folder"),
    ("stress {run} -o s --corruptions {d}/map", "neither TYPE.npy with labels.npy nor TYPE/SEVERITY/CLASS"),
    ("stress {run} -o s --data {d}/digits-C", "pass --corruptions"),
    ("stress {run} -o s --data {d}/large.npz", "cannot read"),
    ("stress {run} -o s --corruptions {d}/digits-C", "labels.npy: not found"),
    ("stress {run} -o s --mean 0.1,0.2", "mean has 2 values for images of 1 channel;"),
    ("stress {run} -o s --rule {d}/map", "holds a fitted map, not a decision rule"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Predictions, a map, images of another size, and a folder of corruptions without labels."""

    d = tmp_path_factory.mktemp("mistakes")
    make(d / "cal.npz", 0, "calibration")
    make(d / "test.npz", 1, "test")
    make(d / "four.npz", 1, "test", k=4)
    files.write(d / "few.npz", files.read(d / "test.npz").take(torch.arange(50)))
    test = dict(np.load(d / "test.npz"))
    np.savez(d / "site.npz", **test, site=np.arange(900) % 3, row=np.arange(900))
    files.write(d / "p.parquet", files.read(d / "test.npz"))
    assert run(["fit", str(d / "cal.npz"), "--method", "temperature", "-o", str(d / "map")]) == 0
    np.savez(d / "large.npz", images=np.zeros((4, 28, 28), np.uint8), labels=np.arange(4))
    (d / "digits-C").mkdir()
    np.save(d / "digits-C" / "darker.npy", np.zeros((20, 8, 8, 1), np.uint8))
    return d


@pytest.mark.parametrize(("command", "words"), MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(
    command: str,
    words: str,
    folder: Path,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(shlex.split(command.format(d=folder, run=trained)), words)
    assert not list(tmp_path.iterdir())
