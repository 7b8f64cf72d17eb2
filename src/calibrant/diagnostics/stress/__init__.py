"""A predictor under shift: the cells of a suite, their images, their logits (stored, resumable), and the numbers."""

from __future__ import annotations

from calibrant.diagnostics.stress.analysis import Outcome, analyse
from calibrant.diagnostics.stress.cells import SUITES, Cell, Choice, planned
from calibrant.diagnostics.stress.material import Material
from calibrant.diagnostics.stress.run import run
from calibrant.diagnostics.stress.store import Folder
from calibrant.diagnostics.stress.subject import Subject

__all__ = ["SUITES", "Cell", "Choice", "Folder", "Material", "Outcome", "Subject", "analyse", "planned", "run"]
