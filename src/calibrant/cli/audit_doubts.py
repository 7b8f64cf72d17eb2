"""What looks like a slip in a file of predictions. It is said beside the numbers; nothing is changed or guessed."""

from __future__ import annotations

from calibrant.cli.audit_inputs import Audited
from calibrant.functional.border import FLOOR
from calibrant.types import Predictions

CLOSE = 1e-3
"""How near to 1 every row must sum for logits to look like probabilities."""


def doubts(each: Audited) -> list[str]:
    """A sentence for each, with the remedy; none for most files, and for streams, which keep no items."""
    out = []
    if each.predictions is not None and probabilities_as_logits(each.predictions):
        out.append(
            "every row of these logits is in 0…1 and sums to 1; if they are probabilities, the numbers are wrong: "
            "say so by --probs-key NAME, or save them as 'probs'"
        )
    never = each.report.extras.get("impossible_labels")
    if never is not None:
        n, share = int(never["items"]), never["nll"]
        what = "1 item gives its label" if n == 1 else f"{n:,} items give their label"
        out.append(
            f"{what} a probability of {FLOOR:g} or less (0 counts as {FLOOR:g}): {share:.4f} of the NLL is theirs"
        )
    return out


def probabilities_as_logits(p: Predictions) -> bool:
    """Softmaxed twice is the commonest slip. Raw scores of two columns or more, a probability vector in each row."""
    if p.logits is None or not p.raw or p.binary:
        return False
    for rows in (p.logits[..., :100, :], p.logits):  # a look at the first settles it for almost every file
        if not bool((rows >= 0).all()) or not bool(((rows.double().sum(-1) - 1).abs() <= CLOSE).all()):
            return False
    return True
