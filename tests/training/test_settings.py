"""Recipes from tables, TOML files and --set, and the errors that name a wrong key."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.data import load
from calibrant.errors import CalibrantError, FileError, InputError, UnknownNameError
from calibrant.nn import MODELS
from calibrant.training import RECIPES, Recipe, read
from calibrant.training.components import components, known_values, make
from calibrant.training.recipe import digest
from calibrant.training.settings import Choice, build, setting

if TYPE_CHECKING:
    from torch import Tensor


def test_every_recipe_survives_json() -> None:
    for name, recipe in RECIPES.items():
        again = build(Recipe, json.loads(json.dumps(recipe.plain())))
        assert again == recipe and again.key() == recipe.key(), name
        assert recipe.title and recipe.name == name


@pytest.fixture(scope="module")
def known() -> dict[str, Any]:
    return known_values(load("digits"))


def test_every_recipe_names_things_that_exist(known: dict[str, Any]) -> None:
    for name, whole in RECIPES.items():
        for settings, recipe in whole.points():
            assert recipe.network.name in MODELS, name
            made = components(recipe, known)
            assert len(made.penalties) == recipe.members, name
            for key, value in settings.items():
                assert recipe.with_settings({key: value}) == recipe, name


def test_the_constants_of_the_papers() -> None:
    """Spot checks against the text of the papers, not against the table."""
    ss = RECIPES["ss/cifar10_resnet18"]
    lr = ss.optimiser.lr
    assert (lr, ss.optimiser.momentum, ss.optimiser.weight_decay, ss.batch, ss.epochs) == (0.1, 0.9, 5e-4, 128, 200)
    rates = [lr * ss.schedule.factor(e * 100, 100, 200) for e in (1, 59, 60, 130, 160, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.02, 0.004, 0.0008, 0.0008])
    assert ss.schedule.factor(0, 100, 200) == pytest.approx(0.01)  # one epoch of warm-up
    ar = RECIPES["ar/cifar10_resnet29"]
    rates = [ar.optimiser.lr * ar.schedule.factor(e, 1, 200) for e in (0, 79, 80, 120, 160, 180, 199)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-5, 1e-6, 0.5e-6, 0.5e-6])
    large = RECIPES["ss/imagenet_resnet18_dropout_smooth"]
    assert (large.epochs, large.batch, large.network.options["dropout"]) == (90, 256, 0.05)
    assert large.network.options["smooth"] == {"kernel": (1, 1), "prob": "tanh", "tau": 10.0}
    assert RECIPES["ss/cifar100_resnet18_dropout"].network.options["dropout"] == 0.3
    assert RECIPES["ar/cifar100_wrn28_10_smoothing"].targets.options["epsilon"] == 0.07
    assert len(RECIPES["rc/cifar10_resnet32_focal"].points()) == 5
    assert RECIPES["ds/cifar10_vgg16_focal"].schedule.gamma == 0.1 and RECIPES["ds/cifar10_vgg16"].schedule.gamma == 0.2
    assert RECIPES["pep/cifar10_cnn"].epochs == 15 and RECIPES["pep/cifar10_cnn_deep"].members == 10


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("optimiser.lrr=1", UnknownNameError, "'optimiser.lrr'; did you mean 'optimiser.lr'"),
        ("los=focal", UnknownNameError, "did you mean 'loss'"),
        ("epochs=1.5", InputError, "epochs=1.5 must be a whole number"),
        ("epochs=true", InputError, "epochs=True must be a whole number"),
        ("epochs=0", InputError, "epochs is 0"),
        ("augment.crop_padding=-3", InputError, "augment.crop_padding is -3"),
        ("optimiser.lr=inf", InputError, "optimiser.lr is inf"),
        ("optimiser.beta1=1.5", InputError, "optimiser.beta1 and beta2"),
        ("schedule.warmup=-1", InputError, "schedule.warmup"),
        ("schedule.gamma=nan", InputError, "schedule.gamma=nan must be a number"),
        ("optimiser.lr=fast", InputError, "optimiser.lr='fast' must be a number"),
        ("optimiser.lr=-1", InputError, "optimiser.lr is -1"),
        ("optimiser.name=sdg", InputError, "'sgd' or 'adam'"),
        ("penalties=mmce", InputError, "penalties='mmce' must be a list"),
        ("penalties.0.weight=1", InputError, "has 0 entries"),
        ("optimiser=3", InputError, "optimiser=3 must be a table"),
        ("loss=[1]", InputError, "loss=[1] must be a name"),
        ("schedule.name=multistep", InputError, "needs schedule.milestones"),
        ("epochs", InputError, "not key=value"),
        ("data.sizes={", InputError, "not valid TOML"),
        ("epochs.more=1", InputError, "has no keys"),
        ("selection={grid={}}", InputError, "selection.grid"),
        ("selection={grid={seed=[1]}, criterion='eec'}", UnknownNameError, "did you mean 'ece'"),
    ],
)
def test_what_a_user_can_get_wrong(text: str, error: type[CalibrantError], says: str) -> None:
    with pytest.raises(error) as caught:
        read("digits/cross_entropy", [text])
    assert says in str(caught.value)


def test_set_replaces_a_choice_or_one_of_its_options() -> None:
    assert read("digits/focal", ["loss.gamma=5"]).loss == Choice("focal", {"gamma": 5})
    assert read("digits/focal", ["loss=cross_entropy"]).loss == Choice("cross_entropy")
    assert read("digits/cross_entropy", ["penalties=[{name='mmce', weight=2.0}]"]).penalties[0].name == "mmce"
    assert read("digits/lp_norm", ["penalties.0.weight=0.5"]).penalties[0].options["weight"] == 0.5
    assert read("digits/focal", ["augment.flip=false"]).augment is not None


def test_toml_files_and_their_base(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "digits/focal"\nepochs = 3\n[optimiser]\nlr = 0.5\n[loss]\nname = "focal"\ngamma = 1\n')
    recipe = read(file, ["seed=4"])
    assert (recipe.epochs, recipe.optimiser.lr, recipe.optimiser.name, recipe.seed) == (3, 0.5, "adam", 4)
    assert recipe.loss == Choice("focal", {"gamma": 1})
    file.write_text('network = "mlp"\n[optimizer]\nlr = 1\n')
    with pytest.raises(UnknownNameError, match=r"mine.toml.*did you mean 'optimiser'"):
        read(file)
    file.write_text("epochs = 3\n")
    with pytest.raises(InputError, match="'network' is missing"):
        read(file)
    file.write_text("epochs = ")
    with pytest.raises(FileError, match="not valid TOML"):
        read(file)
    with pytest.raises(FileError, match="none.toml: no such file"):
        read(tmp_path / "none.toml")


def own_penalty(names: list | None = None, by: Tensor | None = None) -> Any:  # type: ignore[type-arg]
    return names


def untyped_penalty(names: list | None = None) -> Any:  # type: ignore[type-arg]
    return names


@pytest.mark.parametrize("penalty", [own_penalty, untyped_penalty, functools.partial(untyped_penalty)])
def test_types_that_are_unknown_or_not_of_toml_are_not_checked(penalty: Any) -> None:
    assert make({"own": penalty}, Choice("own", {"names": ["b"]}), "penalties.0", {}) == ("b",)


def test_a_missing_attack_is_an_error() -> None:
    with pytest.raises(InputError, match="needs attack"):
        components(read("digits/focal", ["transforms=['ccat']"]), {"classes": 10, "items": 9, "std": None})


def test_the_key_depends_on_the_content_only() -> None:
    a = read("digits/focal", ["loss.gamma=3"])
    assert a.key() == read("digits/focal", ["loss.gamma=3.0", "name=other", "about=else"]).key()
    assert a.key() != read("digits/focal", ["loss.gamma=3.1"]).key()
    assert digest({"b": 1.0, "a": [2]}) == digest({"a": (2.0,), "b": 1})


@hypothesis.settings(max_examples=30)
@given(st.dictionaries(st.text("abcxyz", min_size=1, max_size=8), st.integers() | st.floats(-9, 9) | st.booleans()))
def test_set_reads_what_toml_writes(table: dict[str, Any]) -> None:
    for key, value in table.items():
        text = str(value).lower() if isinstance(value, bool) else repr(value)
        assert setting(f"{key}={text}") == (key, value)


DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(("page", "count"), [("training.md", 2), ("ar-adals.md", 1)])
def test_the_recipes_of_the_documentation_are_recipes(page: str, count: int, tmp_path: Path) -> None:
    text = (DOCS / page).read_text("utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == count
    for block in blocks:
        (tmp_path / "r.toml").write_text(block)
        assert read(tmp_path / "r.toml").points()
        assert set(tomllib.loads(block)) - {"base"} <= {f.name for f in fields(Recipe)}
    assert set(re.findall(r"calibrant train ([a-z][\w-]*/\w+)", text)) <= {*RECIPES}
