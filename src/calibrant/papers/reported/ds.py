"""DS: Tables 1 to 4, Brier, ECE and AUROC times 100, mean ± deviation over 3 runs where the paper has them.

The baselines of Tables 2 and 4 differ, though both are a VGG-16 on CIFAR.
"""

from __future__ import annotations

from calibrant.papers.reported.claim import Claim, Pair, pairs
from calibrant.papers.reported.table import AS_TRAINED, Source, table

TABLE1 = table(
    "ds/table1",
    "Table 1",
    "ImageNet, ResNet-50: calibration and refinement",
    "brier% ece% auroc%",
    """
    # ImageNet, ResNet-50
    baseline               | table1/imagenet_resnet50_baseline                       | 33.54 3.83 86.39
    temperature            | table1/imagenet_resnet50_baseline@temperature[T=1.1]    | 33.42 2.44 86.31
    entropy regularisation | table1/imagenet_resnet50_entropy                        | 33.59 2.00 86.45
    label smoothing        | table1/imagenet_resnet50_smoothing                      | 33.63 5.35 85.22
    mixup                  | table1/imagenet_resnet50_mixup                          | 32.50 1.62 86.47
    focal loss             | table1/imagenet_resnet50_focal                          | 36.81 8.21 85.07
    """,
)

TABLE2 = table(
    "ds/table2",
    "Table 2",
    "CIFAR: calibration and refinement, mean ± deviation over 3 runs",
    "brier% ece% auroc%",
    """
    # CIFAR-10, VGG-16
    baseline | table2/cifar10_vgg16_baseline | 10.92±0.20 4.80±0.12 90.90±0.64
    temperature | table2/cifar10_vgg16_baseline@temperature[T=1.5] | 10.21±0.18 2.99±0.07 90.66±0.70
    entropy regularisation | table2/cifar10_vgg16_entropy | 10.58±0.08 4.29±0.01 89.22±0.40
    label smoothing | table2/cifar10_vgg16_smoothing | 10.60±0.10 3.93±0.26 78.31±1.36
    mixup | table2/cifar10_vgg16_mixup | 9.79±0.18 3.75±1.01 84.38±1.99
    focal loss | table2/cifar10_vgg16_focal | 10.88±0.16 3.48±0.06 84.50±0.50
    # CIFAR-10, ResNet-50
    baseline | table2/cifar10_resnet50_baseline | 7.12±0.12 2.69±0.07 93.80±0.04
    temperature | table2/cifar10_resnet50_baseline@temperature[T=1.5] | 6.73±0.12 1.35±0.09 93.71±0.01
    entropy regularisation | table2/cifar10_resnet50_entropy | 7.01±0.18 2.37±0.02 93.64±0.49
    label smoothing | table2/cifar10_resnet50_smoothing | 8.00±0.19 3.82±0.17 73.46±1.41
    mixup | table2/cifar10_resnet50_mixup | 6.35±0.15 2.67±0.27 90.10±1.36
    focal loss | table2/cifar10_resnet50_focal | 7.50±0.04 1.73±0.06 92.40±0.60
    # CIFAR-10, DenseNet-121
    baseline | table2/cifar10_densenet121_baseline | 7.43±0.13 2.83±0.12 92.12±0.18
    temperature | table2/cifar10_densenet121_baseline@temperature[T=1.5] | 7.03±0.12 2.04±0.19 91.60±0.06
    entropy regularisation | table2/cifar10_densenet121_entropy | 7.19±0.01 2.18±0.04 91.83±0.18
    label smoothing | table2/cifar10_densenet121_smoothing | 8.51±0.04 2.80±0.08 73.56±1.71
    mixup | table2/cifar10_densenet121_mixup | 6.82±0.01 3.67±0.36 88.98±0.02
    focal loss | table2/cifar10_densenet121_focal | 7.69±0.12 1.71±0.06 91.72±0.15
    # CIFAR-100, VGG-16
    baseline | table2/cifar100_vgg16_baseline | 43.26±0.94 16.29±1.39 84.97±0.45
    temperature | table2/cifar100_vgg16_baseline@temperature[T=1.5] | 39.18±0.55 6.46±1.10 84.31±0.53
    entropy regularisation | table2/cifar100_vgg16_entropy | 42.09±0.72 13.96±1.43 84.21±0.40
    label smoothing | table2/cifar100_vgg16_smoothing | 38.69±0.11 8.77±0.06 82.90±0.12
    mixup | table2/cifar100_vgg16_mixup | 38.18±0.64 7.68±1.17 83.60±0.51
    focal loss | table2/cifar100_vgg16_focal | 39.68±0.49 9.05±0.48 83.12±0.26
    # CIFAR-100, ResNet-50
    baseline | table2/cifar100_resnet50_baseline | 34.05±0.38 12.17±0.06 85.69±0.12
    temperature | table2/cifar100_resnet50_baseline@temperature[T=1.5] | 31.50±0.42 3.49±0.19 85.07±0.09
    entropy regularisation | table2/cifar100_resnet50_entropy | 32.56±0.59 9.80±0.12 85.41±0.19
    label smoothing | table2/cifar100_resnet50_smoothing | 32.07±0.20 6.21±0.13 81.96±0.64
    mixup | table2/cifar100_resnet50_mixup | 30.27±0.53 6.02±1.57 85.78±0.24
    focal loss | table2/cifar100_resnet50_focal | 30.61±0.33 3.98±0.48 85.91±0.24
    # CIFAR-100, DenseNet-121
    baseline | table2/cifar100_densenet121_baseline | 30.68±0.28 8.47±0.07 87.15±0.17
    temperature | table2/cifar100_densenet121_baseline@temperature[T=1.5] | 29.91±0.26 4.68±0.13 86.39±0.26
    entropy regularisation | table2/cifar100_densenet121_entropy | 30.50±0.33 6.10±0.11 86.78±0.12
    label smoothing | table2/cifar100_densenet121_smoothing | 33.01±0.33 8.22±0.02 81.36±0.50
    mixup | table2/cifar100_densenet121_mixup | 28.93±0.03 3.55±0.09 85.80±0.32
    focal loss | table2/cifar100_densenet121_focal | 29.90±0.03 3.06±0.16 86.50±0.01
    """,
)

TABLE3 = table(
    "ds/table3",
    "Table 3",
    "natural shift: VGG-16 trained on CIFAR-10, tested on CIFAR-10.1 and CIFAR-10.2, over 3 runs",
    "cifar10_1:brier% cifar10_1:ece% cifar10_1:auroc% cifar10_2:brier% cifar10_2:ece% cifar10_2:auroc%",
    """
    # VGG-16 trained on CIFAR-10
    baseline | table3/vgg16_baseline | 24.50±1.23 11.28±0.71 86.23±0.91 34.25±0.73 16.32±0.60 83.39±1.72
    TS | table3/vgg16_baseline@temperature[T=1.5] | 22.68±1.18 8.16±1.18 86.10±0.90 31.83±0.73 13.07±0.66 83.06±1.91
    entropy regularisation | table3/vgg16_entropy | 23.70±0.58 10.16±0.27 84.32±1.19 34.23±1.26 15.60±0.59 81.85±0.19
    label smoothing | table3/vgg16_smoothing | 23.60±0.07 6.84±0.09 77.44±0.91 32.37±0.08 11.26±0.19 74.05±2.85
    mixup | table3/vgg16_mixup | 20.89±0.71 6.87±0.60 84.76±1.24 29.35±0.75 9.77±1.79 80.25±1.67
    focal loss | table3/vgg16_focal | 25.13±0.69 10.51±0.29 80.55±0.89 33.05±0.36 14.61±0.29 77.74±1.18
    """,
)

TABLE3_IMAGENET = table(
    "ds/table3_imagenet",
    "Table 3, ImageNet-v2",
    "natural shift: ResNet-50 trained on ImageNet, tested on ImageNet-v2",
    "imagenet_v2:brier% imagenet_v2:ece% imagenet_v2:auroc%",
    """
    # ResNet-50 trained on ImageNet
    baseline               | table1/imagenet_resnet50_baseline                       | 49.46 9.03 85.30
    temperature            | table1/imagenet_resnet50_baseline@temperature[T=1.1]    | 48.80 6.70 85.30
    entropy regularisation | table1/imagenet_resnet50_entropy                        | 48.74 4.47 85.30
    label smoothing        | table1/imagenet_resnet50_smoothing                      | 48.09 3.01 83.68
    mixup                  | table1/imagenet_resnet50_mixup                          | 47.85 5.19 84.82
    focal loss             | table1/imagenet_resnet50_focal                          | 51.15 4.80 83.10
    """,
)

TABLE4 = table(
    "ds/table4",
    "Table 4",
    "ConfidNet on VGG-16, mean ± deviation over 3 runs",
    "ece% auroc%",
    """
    # CIFAR-100
    baseline  | table4/cifar100_vgg16           | 19.12±0.13 85.18±0.21
    ConfidNet | table4/cifar100_vgg16@confidnet | 13.95±2.7  86.0±0.18
    # CIFAR-10
    baseline  | table4/cifar10_vgg16            | 5.38±0.15  92.5±0.01
    ConfidNet | table4/cifar10_vgg16@confidnet  | 4.1±0.2    92.55±0.1
    """,
)

TABLES = (TABLE1, TABLE2, TABLE3, TABLE3_IMAGENET, TABLE4)

CLAIMS = (
    Claim(
        "ds/calibration",
        "§5.1, Table 2",
        "Methods for calibration lower the ECE.",
        "Unsurprisingly, calibration approaches attain lower calibration errors.",
        pairs(TABLE2, ["ece"]),
    ),
    Claim(
        "ds/refinement",
        "§5.1, Table 2",
        "Methods for calibration rank errors worse, label smoothing worst of all.",
        "another important observation to note is the poor refinement performance than the baseline across the board. "
        "[…] LS consistently acquires the lowest refinement performance",
        pairs(TABLE2, ["auroc"]),
    ),
    Claim(
        "ds/shift",
        "§5.2, Table 3",
        "Under natural shift, refinement is worse too.",
        "the trend of worsening refinement continues for models under data shift as well",
        pairs(TABLE3, ["cifar10_1:auroc", "cifar10_2:auroc"]),
    ),
    Claim(
        "ds/confidnet",
        "§A.2, Table 4",
        "ConfidNet improves refinement and calibration.",
        "Not only does CFN provide better refinement, it is also able to reduce the calibration errors over the "
        "datasets.",
        (
            *pairs(TABLE4, ["ece", "auroc"]),
            *(
                Pair(
                    f"CIFAR-10 and CIFAR-100, networks of others: ConfidNet − {against}",
                    Source("ds/networks/*", "confidnet"),
                    Source("ds/networks/*", variant),
                    metric,
                    sign,
                    unlike="ResNets on CIFAR-10 and CIFAR-100 that others trained, instead of VGG-16",
                )
                for against, variant in (
                    ("baseline", AS_TRAINED),
                    ("temperature scaling", "temperature"),
                    ("TrustScore", "trust_score"),
                )
                for metric, sign in (("ece", -1), ("auroc", 1))
            ),
        ),
    ),
)
