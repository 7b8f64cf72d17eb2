"""What each metric means, in words for someone who has never met it. A test holds it to the table of metrics."""

from __future__ import annotations

from calibrant.display import HEADLINE as HEADLINE

MEANING: dict[str, str] = {
    "accuracy": "How often the predicted class is the right one.",
    "nll": "The price paid for the probability given to the truth: −log of it, on average. Confident errors cost most.",
    "brier": "Squared distance between the predicted probabilities and what happened, summed over classes (0 to 2).",
    "ece": "How far confidence is from accuracy, on average over groups of similar confidence.",
    "ece_mass": "The same, with bins that hold equally many items instead of equally wide ones.",
    "ece_classwise": "The same for every class's own probability, averaged over classes: it sees more than the winner.",
    "ece_max": "The distance in the single worst bin. Noisy when that bin holds few items.",
    "ece_l2": "The same distance, but large errors weigh more (root mean square).",
    "ece_over": "The part of ECE from bins that are too sure.",
    "ece_under": "The part of ECE from bins that are not sure enough.",
    "oe": "Excess confidence, weighted by the confidence itself: being too sure hurts most where it is most trusted.",
    "ece_debiased": "ECE less what pure chance adds to it. ECE of a perfect model is never quite 0; this one can be.",
    "ks": "The largest error that builds up when going through the items by confidence; needs no bins.",
    "gap": "Average confidence minus accuracy. Above zero: too sure. Below: not sure enough.",
    "auroc": "The chance that a random correct answer is surer than a random error. 50% is a coin, 100% is perfect.",
    "aupr_success": "Precision of the surest answers, averaged over all thresholds.",
    "aupr_error": "Precision in finding errors by checking the least sure answers first, averaged over thresholds.",
    "aurc": "The error rate of what is accepted, averaged over all shares of items one might accept.",
    "eaurc": "How much of that a perfect ordering with the same accuracy would save. 0 is perfect.",
    "fpr95": "The share of errors let through when the threshold keeps 95% of the correct answers.",
}

BETTER = {"low": "Lower is better", "high": "Higher is better", "zero": "Closer to zero is better"}
ARROW = {"low": "↓", "high": "↑", "zero": "→0"}

FAMILY = {
    "proper": "Overall quality",
    "calibration": "Calibration: does it mean what it says?",
    "refinement": "Refinement: does confidence rank errors below correct answers?",
}
