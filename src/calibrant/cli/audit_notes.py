"""Notes on what looks wrong in a file of predictions. They stand beside the numbers; nothing is changed."""

from __future__ import annotations

from calibrant.cli.audit_inputs import Audited
from calibrant.functional.probabilities import FLOOR


def notes(each: Audited) -> list[str]:
    """One sentence each; most files have none."""
    out = list(each.warnings)
    never = each.report.extras.get("impossible_labels")
    if never is not None:
        n, share = int(never["items"]), never["nll"]
        what = "1 item gives its label" if n == 1 else f"{n:,} items give their label"
        out.append(
            f"{what} a probability of {FLOOR:g} or less (0 counts as {FLOOR:g}), which adds {share:.4f} to the NLL"
        )
    return out
