"""Pure tensors → tensors: binning, scores, ranking, pooling, decomposition. No models, no files."""

from calibrant.errors import suggest_names
from calibrant.functional.binning import BinSums, bin_sums, equal_mass, equal_width
from calibrant.functional.decomposition import Identity, Murphy, ece_identity, murphy_brier, murphy_nll
from calibrant.functional.inputs import predictions
from calibrant.functional.novelty import entropy
from calibrant.functional.pooling import Disagreement, disagreement, pool
from calibrant.functional.probabilities import FLOOR
from calibrant.functional.ranking import Ranking, rank, run_weights
from calibrant.functional.scores import Classwise, Scores, merge, reduce

__all__ = [
    "FLOOR",
    "BinSums",
    "Classwise",
    "Disagreement",
    "Identity",
    "Murphy",
    "Ranking",
    "Scores",
    "bin_sums",
    "disagreement",
    "ece_identity",
    "entropy",
    "equal_mass",
    "equal_width",
    "merge",
    "murphy_brier",
    "murphy_nll",
    "pool",
    "predictions",
    "rank",
    "reduce",
    "run_weights",
]

suggest_names(__name__)
