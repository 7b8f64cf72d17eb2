"""RC: Tables 1 and 2. The coefficients of both were chosen by ECE on test. Fig. 6 is drawn only, so it has no numbers.

The paper's filled and hollow triangles (significant at 0.05 by its t-test, or not) are one sign in our copy:
▲ and ▼ here say only on which side of cross-entropy the mean lies.
"""

from __future__ import annotations

from calibrant.papers.reported.claim import Claim, Pair, pairs
from calibrant.papers.reported.table import AS_TRAINED, Source, table

ORACLE = "the paper chose the coefficients of label smoothing, L1 and focal loss by ECE on test"

TABLE1 = table(
    "rc/table1",
    "Table 1",
    "ECE (15 bins) and accuracy of regularised losses, mean ± deviation over 5 runs",
    "ece% accuracy%",
    """
    # SVHN, ResNet-32
    cross-entropy          | table1/svhn_cross_entropy     | 3.03±0.16  95.00±0.27
    label smoothing 0.01   | table1/svhn_smoothing         | 1.84±0.19  95.21±0.23
    L1 norm 0.01           | table1/svhn_l1                | 1.85±0.04  95.29±0.13
    focal loss 1           | table1/svhn_focal             | 1.01±0.21  94.77±0.19
    # CIFAR-10, ResNet-32
    cross-entropy          | table1/cifar10_cross_entropy  | 6.43±0.22  90.46±0.23
    label smoothing 0.05   | table1/cifar10_smoothing      | 2.72±0.32  90.09±0.41
    L1 norm 0.05           | table1/cifar10_l1             | 2.93±0.39  90.06±0.59
    focal loss 3           | table1/cifar10_focal          | 3.00±0.26  87.84±0.17
    # CIFAR-100, ResNet-32
    cross-entropy          | table1/cifar100_cross_entropy | 19.53±0.36 64.64±0.43
    label smoothing 0.09   | table1/cifar100_smoothing     | 2.27±0.48  63.73±0.67
    L1 norm 0.01           | table1/cifar100_l1            | 8.07±0.44  63.07±0.29
    focal loss 5           | table1/cifar100_focal         | 2.34±0.35  60.36±0.44
    # 20 Newsgroups, 1-D CNN
    cross-entropy          | table1/news20_cross_entropy   | 20.82±0.93 72.85±0.89
    label smoothing 0.09   | table1/news20_smoothing       | 5.85±0.64  72.81±0.26
    L1 norm 0.01           | table1/news20_l1              | 13.31±0.56 73.61±0.80
    focal loss 5           | table1/news20_focal           | 3.82±0.51  59.17±1.81
    """,
    oracle=ORACLE,
)

TABLE2 = table(
    "rc/table2",
    "Table 2",
    "ECE after temperature scaling (TS), its temperature, and ECE after histogram binning (HB), over 5 runs",
    "temperature:ece% temperature:temperature histogram:ece%",
    """
    # SVHN, ResNet-32
    cross-entropy          | table1/svhn_cross_entropy     | 0.72±0.26  1.82 0.68±0.22
    label smoothing 0.01   | table1/svhn_smoothing         | 1.35±0.11▲ 1.11 0.70±0.21▲
    L1 norm 0.01           | table1/svhn_l1                | 1.22±0.08▲ 1.12 0.73±0.20▲
    focal loss 1           | table1/svhn_focal             | 0.80±0.22▲ 1.10 0.96±0.14▲
    # CIFAR-10, ResNet-32
    cross-entropy          | table1/cifar10_cross_entropy  | 0.95±0.19  2.51 0.74±0.15
    label smoothing 0.05   | table1/cifar10_smoothing      | 2.54±0.11▲ 0.96 0.94±0.21▲
    L1 norm 0.05           | table1/cifar10_l1             | 2.71±0.36▲ 0.95 1.16±0.54▲
    focal loss 3           | table1/cifar10_focal          | 1.39±0.28▲ 0.76 1.65±0.31▲
    # CIFAR-100, ResNet-32
    cross-entropy          | table1/cifar100_cross_entropy | 1.35±0.19  2.19 1.27±0.27
    label smoothing 0.09   | table1/cifar100_smoothing     | 1.37±0.27▲ 1.04 2.01±0.22▲
    L1 norm 0.01           | table1/cifar100_l1            | 3.92±0.21▲ 1.24 1.56±0.44▲
    focal loss 5           | table1/cifar100_focal         | 2.14±0.42▲ 0.97 1.83±0.30▲
    # 20 Newsgroups, 1-D CNN
    cross-entropy          | table1/news20_cross_entropy   | 3.11±0.33  4.18 2.52±0.47
    label smoothing 0.09   | table1/news20_smoothing       | 5.22±0.60▲ 1.06 2.67±0.82▲
    L1 norm 0.01           | table1/news20_l1              | 2.71±0.25▼ 1.48 2.61±0.95▲
    focal loss 5           | table1/news20_focal           | 3.77±0.41▲ 0.89 3.16±0.97▲
    """,
    oracle=ORACLE,
)

TABLES = (TABLE1, TABLE2)

INVERSE_FOCAL = {
    variant: tuple(
        Pair(
            f"{title}: inverse focal loss 2 − cross-entropy",
            Source(f"rc/figure6/{data}_inverse_focal_2", variant),
            Source(f"rc/table1/{data}_cross_entropy", variant),
            "ece",
            sign,
        )
        for data, title in (
            ("svhn", "SVHN"),
            ("cifar10", "CIFAR-10"),
            ("cifar100", "CIFAR-100"),
            ("news20", "20 Newsgroups"),
        )
    )
    for variant, sign in ((AS_TRAINED, 1), ("temperature", -1))
}

CLAIMS = (
    Claim(
        "rc/regularised",
        "§3.1, Table 1",
        "As trained, every regularised loss has a lower ECE than cross-entropy.",
        "it is obvious that the regularization methods significantly decrease the ECE on all datasets, compared with "
        "the standard CE loss",
        pairs(TABLE1, ["ece"]),
    ),
    Claim(
        "rc/calibratable",
        "§4, Table 2",
        "After temperature scaling or histogram binning, cross-entropy has the lowest ECE.",
        "The standard CE loss achieves the best calibration performance on most cases. […] despite the "
        "regularized models "
        "can produce better calibrated predictions, it is harder to further improve them with post-hoc "
        "calibration methods",
        pairs(TABLE2, ["temperature:ece", "histogram:ece"]),
    ),
    Claim(
        "rc/temperatures",
        "§4, Table 2",
        "Networks trained with cross-entropy need the highest temperatures.",
        "The searched temperatures of models trained with the CE loss are significantly higher than those of "
        "other losses",
        pairs(TABLE2, ["temperature:temperature"]),
    ),
    Claim(
        "rc/inverse_focal_raw",
        "§5.2, Fig. 6",
        "As trained, inverse focal loss has a higher ECE than cross-entropy.",
        "The ECEs of inverse focal loss are larger than CE and focal loss in most cases.",
        INVERSE_FOCAL[AS_TRAINED],
    ),
    Claim(
        "rc/inverse_focal",
        "§5.2, Fig. 6",
        "After temperature scaling, inverse focal loss has a lower ECE than cross-entropy on CIFAR.",
        "On CIFAR-10 and CIFAR-100, the ECE results of inverse focal loss are better than that of the standard CE loss",
        tuple(p for p in INVERSE_FOCAL["temperature"] if "CIFAR" in p.label),
    ),
)
