"""The promise of docs/extending.md: a method is one file and one line in a table. Each family gets one here.

In a copy of the package, every addition writes one file and one line of a table, nothing else. One process then lists
the families and uses each new method.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import calibrant
from calibrant.cli.list_ import FAMILIES

PACKAGE = Path(calibrant.__file__).parent


@dataclass(frozen=True)
class Addition:
    """A new file and a new line in `table`, which is (file of the table, its text up to the opening bracket)."""

    file: str
    code: str
    table: tuple[str, str]
    line: str
    use: str  # an expression that is true if the method works
    imported: str | None = None  # what the table takes from the file

    @property
    def name(self) -> str:
        """The name that `calibrant list` shows."""
        stem = Path(self.file).stem
        return "digits/mine" if stem == "mine" else stem

    def add(self, package: Path) -> None:
        path = package / self.file
        assert not path.exists()
        path.write_text(f'"""One more."""\n\nfrom __future__ import annotations\n\n{self.code}', "utf-8")
        table = package / self.table[0]
        source = table.read_text("utf-8")
        assert source.count(self.table[1]) == 1, f"{table} has no {self.table[1]!r}"
        source = source.replace(self.table[1], f"{self.table[1]}{self.line}, ")
        if self.imported is not None:
            place = source.index("\nfrom calibrant") + 1
            module, _, name = self.file.removesuffix(".py").replace("/", ".").rpartition(".")
            where = (
                f"calibrant.{module}" if "RECIPES = " in self.code else f"calibrant.{module}.{name}"
            )  # a module itself
            source = f"{source[:place]}from {where} import {self.imported}\n{source[place:]}"
        table.write_text(source, "utf-8")


ADDED: dict[str, Addition] = {
    "losses": Addition(
        "losses/squared.py",
        "from dataclasses import dataclass\n\nimport torch\n\n\n@dataclass(frozen=True)\nclass Squared:\n"
        '    """Brier loss."""\n\n    def __call__(self, logits, q):\n'
        "        return (torch.softmax(logits, -1) - q).square().sum(-1)\n",
        ("losses/__init__.py", "Criterion]] = {"),
        '"squared": Squared',
        "run('digits/cross_entropy', **{'loss.name': 'squared'})",
        "Squared",
    ),
    "penalties": Addition(
        "losses/largest.py",
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Largest:\n"
        '    """The largest logit, on average."""\n\n    weight: float = 0.01\n\n'
        "    def __call__(self, logits, batch):\n        return self.weight * logits.amax(-1).mean()\n",
        ("losses/__init__.py", "Penalty]] = {"),
        '"largest": Largest',
        "run('digits/cross_entropy', penalties=[{'name': 'largest'}])",
        "Largest",
    ),
    "ensembles": Addition(
        "ensembles/twice.py",
        "from contextlib import contextmanager\nfrom dataclasses import dataclass\nfrom typing import Any\n\n"
        "from calibrant.ensembles.ensemble import Ensemble, evaluating\n\n\n"
        "@dataclass(frozen=True, eq=False)\nclass Twice(Ensemble):\n"
        '    """A network and its mirror image."""\n\n    model: Any\n    size = 2\n    options = ("members",)\n\n'
        "    @classmethod\n    def build(cls, given):\n        return cls(given.network('twice'))\n\n"
        "    @contextmanager\n    def member(self, j):\n        with evaluating(self.model) as network:\n"
        "            yield (lambda x: network(x.flip(-1))) if j else network\n",
        ("ensembles/__init__.py", "type[Ensemble]] = {"),
        '"twice": Twice',
        "calibrant.ensembles.ENSEMBLES['twice'](network).members(images)[1].allclose(network(images.flip(-1)))"
        " and Ensembling('twice', members=2).check() is None",
        "Twice",
    ),
    "attacks": Addition(
        "attacks/fade.py",
        "from dataclasses import dataclass\nfrom typing import ClassVar\n\n"
        "from calibrant.attacks.attack import Attack\n\n\n@dataclass(frozen=True, kw_only=True)\nclass Fade(Attack):\n"
        '    """Every pixel towards black."""\n\n    nearest: ClassVar[bool] = False\n    steps: ClassVar[int] = 1\n\n'
        '    def begin(self, task):\n        return {"point": task.origin.clone()}\n\n'
        '    def step(self, task, state, seen):\n        return {"point": task.origin * 0.5}\n',
        ("attacks/__init__.py", "type[Attack]] = {"),
        '"fade": Fade',
        "calibrant.attacks.ATTACKS['fade']()(network, images).allclose(images / 2)",
        "Fade",
    ),
    "metrics": Addition(
        "metrics/certain.py",
        "def certain(scores):\n"
        '    """Whether an answer is surer than 99%."""\n    return (scores.confidence > 0.99).double()\n',
        ("metrics/__init__.py", "for m in ("),
        'Metric("certain", "answers surer than 99%", "calibration", "low", Mean(certain), default=False)',
        "calibrant.evaluate(z, y, metrics=['certain'])['certain'].value"
        " == float((torch.softmax(z.double(), 1).amax(1) > 0.99).double().mean())",
        "certain",
    ),
    "perturbations": Addition(
        "shifts/dimming.py",
        "from typing import ClassVar\n\nfrom calibrant.shifts.perturbation import Perturbation\n\n\n"
        "class Dimming(Perturbation):\n"
        '    """Darker in every frame."""\n\n    name: ClassVar[str] = "dimming"\n\n'
        "    def sequence(self, x, frames, numbers):\n        for i in range(frames):\n            yield x * 0.9**i\n",
        ("shifts/__init__.py", "type[Perturbation]] = {"),
        '"dimming": Dimming',
        "calibrant.shifts.PERTURBATIONS['dimming']()(images, 3, 0)[2].allclose(0.81 * images)",
        "Dimming",
    ),
    "targets": Addition(
        "targets/halved.py",
        "from calibrant.targets.fixed import Smoothing\n\n\nclass Halved(Smoothing):\n"
        '    """Half the mass on the label."""\n\n    epsilon: float = 0.5\n',
        ("targets/__init__.py", "TargetPolicy]] = {"),
        '"halved": Halved',
        "run('digits/cross_entropy', **{'targets.name': 'halved'})",
        "Halved",
    ),
    "transforms": Addition(
        "transforms/mirrored.py",
        "class Mirrored:\n"
        '    """Every image mirrored."""\n\n    mixes_labels = False\n\n'
        "    def __call__(self, model, x, q, index, rng):\n        return x.flip(-1), q\n",
        ("transforms/__init__.py", "BatchTransform]] = {"),
        '"mirrored": Mirrored',
        "run('digits/cross_entropy', transforms=[{'name': 'mirrored'}])",
        "Mirrored",
    ),
    "calibrators": Addition(
        "posthoc/halving.py",
        "from dataclasses import dataclass\nfrom typing import ClassVar\n\nimport torch\n\n"
        "from calibrant.posthoc.calibrator import Calibrator, certified\n"
        "from calibrant.posthoc.map import FittedMap\n\n\n"
        "@dataclass(frozen=True, eq=False)\nclass HalvingMap(FittedMap):\n"
        '    """z / 2."""\n\n    method: ClassVar[str] = "halving"\n    keeps_label: ClassVar[bool] = True\n\n'
        "    def transform(self, logits):\n        return logits / 2\n\n\n"
        "@dataclass(frozen=True)\nclass Halving(Calibrator):\n"
        '    """Half of every logit."""\n\n    name: ClassVar[str] = "halving"\n    map: ClassVar = HalvingMap\n'
        "    cost: ClassVar[int] = 1\n\n    def solve(self, p):\n        return HalvingMap(record=certified({}))\n",
        ("posthoc/__init__.py", "_TABLE: tuple[type[Calibrator], ...] = ("),
        "Halving",
        "saved_and_loaded(calibrant.fit('halving', z, y))(z).equal(z.double() / 2)",
        "Halving",
    ),
    "confidences": Addition(
        "posthoc/norms.py",
        "from dataclasses import dataclass\nfrom typing import ClassVar\n\nimport torch\nfrom torch import Tensor\n\n"
        "from calibrant.posthoc.calibrator import certified\n"
        "from calibrant.posthoc.confidence_model import ConfidenceMap, ConfidenceModel, features_of\n\n\n"
        "@dataclass(frozen=True, eq=False)\nclass NormsMap(ConfidenceMap):\n"
        '    """Sure of items with large features."""\n\n    scale: Tensor\n    method: ClassVar[str] = "norms"\n\n'
        "    @property\n    def width(self):\n        return len(self.scale)\n\n"
        "    def confidence(self, features, predicted, logits=None):\n"
        "        return torch.tanh((features * self.scale).norm(dim=1))\n\n\n"
        "@dataclass(frozen=True)\nclass Norms(ConfidenceModel):\n"
        '    """Confidence from the norm of the features."""\n\n    name: ClassVar[str] = "norms"\n'
        "    map: ClassVar = NormsMap\n\n    def solve(self, p):\n"
        '        x = features_of(p, "norms")\n'
        "        return NormsMap(1 / x.double().std(0), record=certified({}))\n",
        ("posthoc/__init__.py", "_MODELS: tuple[type[ConfidenceModel], ...] = ("),
        "Norms",
        "float(calibrant.fit('norms', featured).predictions(featured).confidence.max()) <= 1",
        "Norms",
    ),
    "shifts": Addition(
        "shifts/darkness.py",
        "from typing import ClassVar\n\nfrom calibrant.shifts.corruption import Corruption\n\n\n"
        "class Darkness(Corruption):\n"
        '    """Less light."""\n\n    name: ClassVar[str] = "darkness"\n'
        "    strengths: ClassVar = {32: (0.9, 0.8, 0.7, 0.6, 0.5), 224: (0.9, 0.8, 0.7, 0.6, 0.5)}\n\n"
        "    def distort(self, x, severity, numbers):\n        return x * self.strength(x, severity)\n",
        ("shifts/__init__.py", "SHIFTS: dict[str, type[Corruption]] = {"),
        '"darkness": Darkness',
        "calibrant.shifts.SHIFTS['darkness']()(torch.ones(2, 3, 32, 32), 5, 0).allclose(torch.tensor(0.5))",
        "Darkness",
    ),
    "diagnostics": Addition(
        "diagnostics/parameters.py",
        "def parameters(model):\n"
        '    """How many parameters a network has."""\n    return sum(p.numel() for p in model.parameters())\n',
        ("diagnostics/__init__.py", "DIAGNOSTICS: dict[str, Callable[..., Any]] = {"),
        '"parameters": parameters',
        "calibrant.diagnostics.DIAGNOSTICS['parameters'](torch.nn.Linear(3, 2)) == 8",
        "parameters",
    ),
    "datasets": Addition(
        "data/dots.py",
        "import torch\n\nfrom calibrant.data.records import DatasetSpec, Layout, Part, Raw, numbered_classes\n"
        "from calibrant.types import Split\n\n\ndef read_dots(root):\n"
        "    y = torch.arange(60) % 2\n    x = (y * 200).to(torch.uint8)[:, None, None, None].expand(60, 1, 8, 8)\n"
        "    return Raw({Split.TRAIN: Part.of(x.clone(), y, Split.TRAIN)})\n\n\n"
        'DOTS = DatasetSpec(name="dots", title="bright and dark", layouts=(Layout((), read_dots, "made"),),\n'
        "    classes=numbered_classes(2), shape=(1, 8, 8), mean=(0.4,), std=(0.4,),\n"
        '    sizes={"validation": 10, "calibration": 10, "test": 10})\n',
        ("data/__init__.py", "for spec in ("),
        "DOTS",
        "len(calibrant.data.load('dots')['test']) == 10",
        "DOTS",
    ),
    "models": Addition(
        "nn/linear.py",
        "from torch import nn\n\n\ndef linear(classes, in_channels, size, layers):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * size[0] * size[1], classes))\n",
        ("nn/__init__.py", "MODELS: dict[str, Network] = {"),
        '"linear": Network("one linear layer", linear)',
        "run('digits/cross_entropy', **{'network.name': 'linear'})",
        "linear",
    ),
    "recipes": Addition(
        "training/recipes/mine.py",
        "from calibrant.training.recipes.digits import variant\n\n"
        'RECIPES = (variant("mine", "one epoch", epochs=1),)\n',
        ("training/recipes/__init__.py", "_FILES = ("),
        "mine",
        "run('digits/mine')",
        "mine",
    ),
    "verbs": Addition(
        "cli/greet.py",
        'from calibrant.cli.console import say\n\n\ndef greet() -> None:\n    """Say hello."""\n    say("hello")\n',
        ("cli/__init__.py", "VERBS: dict[str, str] = {"),
        '"greet": "Say hello"',
        "subprocess.run([sys.executable, '-m', 'calibrant.cli', 'greet'], capture_output=True).stdout == b'hello\\n'",
        None,
    ),
}
"""Family of `calibrant list` → its addition."""

SCRIPT = """
import json, subprocess, sys
from pathlib import Path
import torch, calibrant
from calibrant.cli.ensemble_options import Ensembling
from calibrant.cli.list_ import rows
from calibrant.training import RECIPES
from calibrant.training.run import How, train

folder = Path(sys.argv[1])
g = torch.Generator().manual_seed(0)
z = 3 * torch.randn(200, 3, generator=g)
y = torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]
featured = calibrant.predictions(z, y, features=torch.randn(200, 4, generator=g), split="calibration")
images = torch.rand(8, 1, 8, 8, generator=g)
network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))

def saved_and_loaded(fitted):
    fitted.save(folder / "map")
    return calibrant.load(folder / "map")

def run(recipe, **settings):
    changed = RECIPES[recipe].with_settings({"epochs": 1, **settings})
    return train(changed, folder / str(len(list(folder.iterdir()))), How(device="cpu", quiet=True))["epochs"] == 1

for family, (name, use) in json.loads(sys.argv[2]).items():
    listed = dict(rows(family))
    assert name in listed and listed[name], (family, name)
    found = eval(use)
    assert found is True, (family, found)
"""


def test_every_family_has_an_addition() -> None:
    elsewhere = {"novelty", "papers"}  # a score is a function beside others; a paper is more than a file
    assert set(FAMILIES) - set(ADDED) == elsewhere


def test_a_method_is_one_file_and_one_line(tmp_path: Path) -> None:
    package = tmp_path / "src" / "calibrant"
    shutil.copytree(PACKAGE, package)
    for addition in ADDED.values():
        addition.add(package)
    uses = {family: (a.name, a.use) for family, a in ADDED.items()}
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    words = [sys.executable, "-c", SCRIPT, str(tmp_path), json.dumps(uses)]
    done = subprocess.run(words, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
