"""What looks like a slip in a file of predictions. It is said beside the numbers; nothing is changed or guessed."""

from __future__ import annotations

from calibrant.cli.audit_inputs import Audited
from calibrant.functional.probabilities import FLOOR


def doubts(each: Audited) -> list[str]:
    """A sentence for each, with the remedy; none for most files."""
    out = list(each.warnings)
    never = each.report.extras.get("impossible_labels")
    if never is not None:
        n, share = int(never["items"]), never["nll"]
        what = "1 item gives its label" if n == 1 else f"{n:,} items give their label"
        out.append(
            f"{what} a probability of {FLOOR:g} or less (0 counts as {FLOOR:g}): {share:.4f} of the NLL is theirs"
        )
    return out
