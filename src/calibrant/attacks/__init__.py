"""Attacks: (predictor, x) → x', inputs moved until the prediction changes; robustness is how far that is (AR §3)."""

from calibrant.attacks.attack import Attack, AttackResult
from calibrant.attacks.bounds import Bounds
from calibrant.attacks.cw import CarliniWagner
from calibrant.attacks.ddn import DDN
from calibrant.attacks.fgsm import FGSM
from calibrant.attacks.levels import levels
from calibrant.attacks.pgd import PGD
from calibrant.attacks.robustness import RULERS, robustness

ATTACKS: dict[str, type[Attack]] = {"fgsm": FGSM, "pgd": PGD, "cw": CarliniWagner, "ddn": DDN}

__all__ = [
    "ATTACKS",
    "DDN",
    "FGSM",
    "PGD",
    "RULERS",
    "Attack",
    "AttackResult",
    "Bounds",
    "CarliniWagner",
    "levels",
    "robustness",
]
