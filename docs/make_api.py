"""The page of the Python API, made from the public surface whenever the site is built (an mkdocs hook)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import calibrant

HEAD = """# Python API

Everything public, by name: `import calibrant` loads nothing heavy, and each name loads its module on first use.
"""


FAMILIES = {
    "losses": ("Losses", "`calibrant.losses.Focal(gamma=3)(logits, labels)` in your own loop, or by name in a recipe."),
    "penalties": ("Penalties", "Added to a loss: `calibrant.losses.MMCE()(logits, labels)`."),
    "targets": ("Targets", "Labels become soft targets: `calibrant.targets.Smoothing(classes=10)(labels, index)`."),
    "transforms": ("Transforms", "Batches become other batches: `calibrant.transforms.Mixup()`."),
    "ensembles": ("Ensembles", "Predictors that pool members: `calibrant.PEP.fit(model, calibration)`."),
    "calibrators": ("Calibrators", "`calibrant.fit(NAME, logits, labels)` with these settings as keywords."),
    "confidences": ("Confidences", "They replace the confidence, never the label: `calibrant.fit(NAME, predictions)`."),
    "rules": ("Rules", "What `calibrant.decide` returns; each is called with logits."),
    "attacks": ("Attacks", "`calibrant.attacks.PGD(…)`."),
}
"""Family → its title, and how a member is used. The members come from the tables, under their names in a recipe."""


def page() -> str:
    public = (section(name, getattr(calibrant, name)) for name in calibrant.__all__)
    return "\n".join([HEAD, *public, *(family(name) for name in FAMILIES)])


def family(name: str) -> str:
    """All methods of a table: name, signature, docstring."""
    title, how = FAMILIES[name]
    lines = [f"## {title}", "", how, ""]
    for key, thing in tables()[name].items():
        lines += [f"### {key}", "", *code(signature(getattr(thing, "__name__", key), thing)), "", prose(thing), ""]
    return "\n".join(lines)


def tables() -> dict[str, Any]:
    return {
        "losses": calibrant.losses.LOSSES,
        "penalties": calibrant.losses.PENALTIES,
        "targets": calibrant.targets.TARGETS,
        "transforms": calibrant.transforms.TRANSFORMS,
        "ensembles": calibrant.ensembles.ENSEMBLES,
        "calibrators": calibrant.posthoc.CALIBRATORS,
        "confidences": calibrant.posthoc.CONFIDENCES,
        "rules": calibrant.decisions.RULES,
        "attacks": calibrant.attacks.ATTACKS,
    }


def section(name: str, thing: Any) -> str:
    """Signature and docstring of one public name; of a class, its public methods as well."""
    lines = [f"## {name}", "", f"`{calibrant._PUBLIC[name]}`", "", *code(signature(name, thing)), "", prose(thing), ""]
    if inspect.isclass(thing):
        for method, function in vars(thing).items():
            plain = function.__func__ if isinstance(function, classmethod) else function
            if not method.startswith("_") and inspect.isfunction(plain) and plain.__doc__:
                lines += [*code(signature(f"{name}.{method}", plain)), "", prose(plain), ""]
    return "\n".join(lines)


def signature(name: str, thing: Any) -> str:
    if inspect.isclass(thing) and issubclass(thing, StrEnum):
        return f"{name}: {' | '.join(thing)}"
    if inspect.isclass(thing) and issubclass(thing, Warning):
        return f"{name}({thing.__base__.__name__})"
    found = inspect.signature(thing)
    parts = list(arguments(found))
    result = "" if inspect.isclass(thing) else f" -> {annotation(found.return_annotation)}"
    line = f"{name}({', '.join(parts)}){result}"
    return line if len(line) <= 72 else "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){result}"])


def arguments(found: inspect.Signature) -> Iterator[str]:
    starred = False
    for p in found.parameters.values():
        if p.name in ("self", "cls"):
            continue
        if p.kind is p.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        mark = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        typed = "" if p.annotation is p.empty else f": {annotation(p.annotation)}"
        yield f"{mark}{p.name}{typed}{default(p.default)}"


def default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    text = repr(value.value) if isinstance(value, StrEnum) else repr(value)
    return " = …" if text.startswith("<") else f" = {text}"


def annotation(written: Any) -> str:
    """As it stands in the source, without the modules."""
    text = written if isinstance(written, str) else getattr(written, "__name__", str(written))
    return re.sub(r"\b(\w+\.)+(?=\w)", "", text)


def code(text: str) -> list[str]:
    return ["```python", text, "```"]


def prose(thing: Any) -> str:
    """The docstring, with its indented equations left as they are."""
    return inspect.getdoc(thing) or ""


MEASURED = {
    "coverage.md": "Do the intervals cover?",
    "coverage_few.md": "… of few errors",
    "coverage_paired.md": "… of differences",
    "coverage_shift.md": "… under shift",
    "race.md": "The race of calibrators",
    "race_auto.md": "What choosing costs",
}
"""Pages that long benchmarks write: in the navigation, under Evidence, when they are there."""


def on_config(config: Any) -> Any:
    """mkdocs calls this first."""
    there = [{title: name} for name, title in MEASURED.items() if (Path(config["docs_dir"]) / name).exists()]
    next(part["Evidence"] for part in config["nav"] if "Evidence" in part).extend(there)
    return config


def on_files(files: Any, config: Any) -> Any:
    """mkdocs calls this before it builds."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "api.md", content=page()))
    return files
