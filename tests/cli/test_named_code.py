"""A file never runs code: a `module:factory` in a run or a recipe is used only if the user repeats it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from calibrant.cli import run
from calibrant.errors import InputError
from calibrant.nn import build
from calibrant.training import How, read, train
from tests.cli.commands import Refused

SMALL = ["--set", "epochs=1", "--set", "network.hidden=[8]", "--device", "cpu"]
MODULE = """
from pathlib import Path
import torch
from torch.utils.data import TensorDataset

Path("imported").touch()

def parts():
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 10
    x = torch.rand(120, 1, 8, 8, generator=rng) / 2 + y[:, None, None, None] / 20
    return TensorDataset(x, y)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a user's module, which each test imports anew."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_code.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "their_code", raising=False)
    return tmp_path


def forget(here: Path) -> None:
    sys.modules.pop("their_code", None)
    (here / "imported").unlink(missing_ok=True)


@pytest.fixture
def made(here: Path, trained_by_their_code: Path) -> Path:
    """A run whose data are another module's; the module is not imported yet."""
    shutil.copytree(trained_by_their_code, here / "made")
    return here / "made"


@pytest.fixture(scope="module")
def trained_by_their_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "their_code.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["train", "digits/cross_entropy", *SMALL, "--data", "their_code:parts", "-o", "made"]) == 0
    sys.modules.pop("their_code")
    yield folder / "made"


@pytest.mark.parametrize(
    "verb",
    [
        ["predict", "made", "-o", "p.npz"],
        ["stress", "made", "-o", "s", "--types", "fog", "--severities", "1"],
        ["probe", "made", "--limit", "20", "--levels", "2"],
        ["train", "made", "-o", "again", "--device", "cpu"],
    ],
)
def test_a_run_is_data(here: Path, made: Path, verb: list[str], refused: Refused) -> None:
    """The error states the words to type, and with them the verb works, on the run's own split."""
    refused(verb, "--data their_code:parts")
    assert not Path("imported").exists() and "their_code" not in sys.modules
    assert run([*verb, "--data", "their_code:parts"]) == 0
    assert str(here) not in sys.path
    if verb[0] == "predict":
        assert np.array_equal(np.load("p.npz")["labels"], np.load("made/test.npz")["labels"])


def test_a_recipe_file_is_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text('base = "digits/cross_entropy"\n[data]\nname = "their_code:parts"\n')
    assert run(["train", "mine.toml", *SMALL, "-o", "a"]) == 2
    assert "--data their_code:parts" in capsys.readouterr().err
    assert run(["train", "mine.toml", *SMALL, "-o", "a", "--set", "data.name=othermod:parts"]) == 2  # is not there
    assert run(["train", "mine.toml", *SMALL, "-o", "a", "--set", "data.sizes={test=20}"]) == 2
    assert not Path("imported").exists() and not Path("a").exists()
    assert run(["train", "mine.toml", *SMALL, "-o", "a", "--set", "data.name=their_code:parts"]) == 0
    assert run(["train", "mine.toml", *SMALL, "-o", "b", "--set", "data={name='their_code:parts'}"]) == 0


def test_a_recipe_in_python_is_data_too(here: Path) -> None:
    """A recipe may come from anywhere; only `factory` is the caller's own."""
    recipe = read("digits/cross_entropy", ["data.name=their_code:parts", "epochs=1", "network.hidden=[8]"])
    with pytest.raises(InputError, match="--data their_code:parts"):
        train(recipe, here / "run", How(device="cpu", quiet=True))
    assert not Path("imported").exists()
    train(recipe, here / "run", How(device="cpu", quiet=True, factory="their_code:parts"))


def test_a_stored_recipe_has_no_base(made: Path) -> None:
    """`base` would name another file."""
    table = json.loads(Path("made/recipe.json").read_text())
    Path("based.json").write_text(json.dumps({**table, "base": "digits/focal"}))
    assert run(["train", "based.json", "-o", "other"]) == 2


@pytest.mark.parametrize("option", ["checkpoint_path", "pretrained_cfg"])
def test_a_network_has_no_options_that_load_files(option: str) -> None:
    with pytest.raises(InputError, match=f"{option} names files"):
        build("timm:resnet18", classes=2, **{option: "evil.pth"})


NETWORK = """
from pathlib import Path
from torch import nn

Path("imported").touch()

def net(width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
"""


@pytest.mark.parametrize("word", ["network.name=their_code:net", "network=their_code:net"])
def test_a_users_network_is_trained(word: str, here: Path, refused: Refused) -> None:
    """The options of the recipe's network are dropped; those of the factory can be set."""
    Path("their_code.py").write_text(NETWORK)
    words = ["--set", word, "--set", "network.width=12", "--set", "epochs=1", "--device", "cpu"]
    assert run(["train", "digits/cross_entropy", *words, "-o", "made"]) == 0
    assert json.loads(Path("made/recipe.json").read_text())["network"] == {"name": "their_code:net", "width": 12}
    forget(here)
    for verb in (["predict", "made", "-o", "p.npz"], ["train", "made", "-o", "again"]):
        refused(verb, "their_code:net", "repeat it")
        assert not Path("imported").exists()
    assert run(["predict", "their_code:net@made", "-o", "p.npz", "--device", "cpu"]) == 0
    assert np.allclose(np.load("p.npz")["logits"], np.load("made/test.npz")["logits"], atol=1e-5)
    assert run(["train", "made", "-o", "again", "--set", "network.name=their_code:net", "--device", "cpu"]) == 0
    assert np.array_equal(np.load("again/test.npz")["logits"], np.load("made/test.npz")["logits"])


def test_a_recipe_file_does_not_run_a_network(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text('base = "digits/cross_entropy"\nnetwork = "their_code:net"\n')
    assert run(["train", "mine.toml", "-o", "a"]) == 2
    assert "--set network.name=their_code:net" in capsys.readouterr().err and not Path("a").exists()
    assert not Path("imported").exists()
