"""Attacks: (predictor, x) → x', inputs moved until the prediction changes; robustness is how far that is (AR §3)."""

from calibrant.attacks.attack import Attack, AttackResult
from calibrant.attacks.bounds import Bounds
from calibrant.attacks.cw import CarliniWagner
from calibrant.attacks.ddn import DDN
from calibrant.attacks.deepfool import DeepFool
from calibrant.attacks.fgsm import FGSM
from calibrant.attacks.frequency_fgsm import FrequencyFGSM
from calibrant.attacks.measures import Strength, assess, attack_success_rate, median_distance
from calibrant.attacks.pgd import PGD
from calibrant.attacks.robustness import RULERS, levels, robustness
from calibrant.errors import suggest_names

ATTACKS: dict[str, type[Attack]] = {
    "fgsm": FGSM,
    "pgd": PGD,
    "cw": CarliniWagner,
    "ddn": DDN,
    "deepfool": DeepFool,
    "frequency_fgsm": FrequencyFGSM,
}

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
    "DeepFool",
    "FrequencyFGSM",
    "Strength",
    "assess",
    "attack_success_rate",
    "levels",
    "median_distance",
    "robustness",
]

suggest_names(__name__)
