"""Formats `--help` as plain text of 80 columns: options in groups, and each switch by the word that changes it."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from calibrant.errors import InputError

GROUPS = {
    "How files are read": (
        *("logits_key", "probs_key", "labels_key", "predicted_key", "confidence_key"),
        *("labels", "class_axis", "ignore_index"),
    ),
    "Streams": ("stream", "workers", "ray", "exact", "window", "decay", "scene_cut"),
    "Data": ("data", "data_root", "split", "limit", "mean", "std"),
    "Ensemble": (
        *("ensemble", "members", "keep_members", "sigma", "where", "distribution", "search", "fit_on", "p", "save"),
    ),
}
"""Title → the options under it, for every verb. All other options come first."""
KINDS = {"str": "TEXT", "path": "PATH", "int": "N", "float": "NUMBER"}


class Verb(TyperCommand):
    """A verb whose help shows options in groups."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(row(p, ctx)[0] for p in self.params if p.param_type_name == "argument")]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        params = self.get_params(ctx)
        groups = {title: [p for p in params if p.name in names] for title, names in GROUPS.items()}
        groups = {title: found for title, found in groups.items() if len(found) > 1}  # one alone is no group
        rest = [p for p in params if not any(p in found for found in groups.values())]
        first = {"Arguments": "argument", "Options": "option"}
        groups = {title: [p for p in rest if p.param_type_name == kind] for title, kind in first.items()} | groups
        for title, found in groups.items():
            if found:
                with formatter.section(title):
                    formatter.write_dl([row(p, ctx) for p in found], col_max=26)


MEANT = {"evaluate": "audit", "calibrate": "fit", "recalibrate": "fit"}
"""What people type → the verb that they mean. Python and other tools use these names."""


class Verbs(TyperGroup):
    """A group of verbs, whose help shows one whole sentence per verb."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in MEANT and args[0] not in self.commands:
            raise InputError(f"no verb {args[0]!r}; did you mean `calibrant {MEANT[args[0]]}`?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.help or verb.short_help or "") for name, verb in self.commands.items()])


def row(p: Any, ctx: Any) -> tuple[str, str]:
    """The option as it is typed, and its help. A switch is shown by the word that changes its default."""
    about = p.help or ""
    if p.param_type_name == "argument":
        return (p.metavar or p.name).upper().rstrip("….") + ("…" if p.nargs == -1 else ""), about
    if getattr(p, "is_flag", False):
        return ", ".join(p.secondary_opts if p.default is True and p.secondary_opts else p.opts), about
    written, about = p.get_help_record(ctx)
    written = re.sub(r"<(?:list\[)?(\w+)(?: range)?\]?>", lambda kind: KINDS.get(kind[1], kind[1].upper()), written)
    return written, re.sub(r"(; )?x>=[\d.]+", "", about).replace("  []", "").replace("  [", " [")
