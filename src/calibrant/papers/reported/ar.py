"""AR: Tables 2 to 5 and the AUROCs of §5.5. Table 1 is the accuracies of the vanilla networks."""

from __future__ import annotations

from calibrant.papers.reported.claim import Claim, Pair, pairs
from calibrant.papers.reported.table import Source, table

TABLE1 = table(
    "ar/table1",
    "Table 1",
    "networks and their accuracy",
    "accuracy%",
    """
    # CIFAR-10
    ResNet-29  | table3/vanilla          | 91.4
    # CIFAR-100
    WRN-28-10  | table4/cifar100_vanilla | 79.2
    # ImageNet
    ResNet-101 | -                       | 77.7
    """,
)

TABLE2 = table(
    "ar/table2",
    "Table 2",
    "ECE of WRN-28-10, levels on the fly, mean ± deviation over 4 runs; Mix-n-Match is quoted from its authors",
    "ece%",
    """
    # CIFAR-10
    vanilla             | table2/cifar10_vanilla             | 2.49±0.10
    temperature scaling | table2/cifar10_vanilla@temperature | 0.80±0.05
    label smoothing     | table2/cifar10_smoothing           | 1.07±0.09
    AdaLS               | table2/cifar10_adals               | 1.23±0.02
    AR-AdaLS            | table2/cifar10_ar_adals            | 0.64±0.02
    mixup               | table2/cifar10_mixup               | 0.78±0.20
    CCAT                | table2/cifar10_ccat                | 2.37±0.07
    Mix-n-Match         | -                                  | 0.97
    ensemble of vanilla | table2/cifar10_ensemble_of_vanilla | 0.90
    # CIFAR-100
    vanilla             | table2/cifar100_vanilla             | 6.11±0.24
    temperature scaling | table2/cifar100_vanilla@temperature | 4.26±0.07
    label smoothing     | table2/cifar100_smoothing           | 2.76±0.26
    AdaLS               | table2/cifar100_adals               | 2.65±0.31
    AR-AdaLS            | table2/cifar100_ar_adals            | 2.27±0.16
    mixup               | table2/cifar100_mixup               | 1.69±0.08
    CCAT                | table2/cifar100_ccat                | 7.95±0.35
    Mix-n-Match         | -                                   | 2.80
    ensemble of vanilla | table2/cifar100_ensemble_of_vanilla | 2.21
    """,
)

TABLE3 = table(
    "ar/table3",
    "Table 3",
    "mean ECE over the shifts of CIFAR-10-C (19 types, ResNet-29) and ImageNet-C (15, ResNet-101), ± over 5 runs",
    "corruptions:ece%",
    """
    # CIFAR-10-C, one network
    vanilla              | table3/vanilla   | 16.7±0.5
    label smoothing      | table3/smoothing | 10.1±0.4
    AdaLS                | table3/adals     | 9.6±0.5
    AR-AdaLS             | table3/ar_adals  | 6.4±0.6
    # CIFAR-10-C, five networks
    ensemble of vanilla         | table3/ensemble_of_vanilla   | 6.5
    ensemble of label smoothing | table3/ensemble_of_smoothing | 4.6
    ensemble of AdaLS           | table3/ensemble_of_adals     | 5.2
    ensemble of AR-AdaLS        | table3/ensemble_of_ar_adals  | 5.5
    AR-AdaLS of ensemble        | table3/ar_adals_of_ensemble  | 4.4
    # ImageNet-C, one network
    vanilla              | table3/imagenet_vanilla | 10.7±0.5
    label smoothing      | table3/imagenet_smoothing | 8.1±0.4
    AdaLS                | table3/imagenet_adals | 8.0±0.2
    AR-AdaLS             | table3/imagenet_ar_adals | 6.9±0.2
    # ImageNet-C, five networks
    ensemble of vanilla         | table3/imagenet_ensemble_of_vanilla | 4.2
    ensemble of label smoothing | table3/imagenet_ensemble_of_smoothing | 4.7
    ensemble of AdaLS           | table3/imagenet_ensemble_of_adals | 4.8
    ensemble of AR-AdaLS        | table3/imagenet_ensemble_of_ar_adals | 5.1
    AR-AdaLS of ensemble        | table3/imagenet_ar_adals_of_ensemble | 4.0
    """,
)

TABLE4 = table(
    "ar/table4",
    "Table 4",
    "CIFAR-100 and CIFAR-100-C, WRN-28-10: accuracy and ECE, clean and corrupted",
    "accuracy% corruptions:accuracy% ece% corruptions:ece%",
    """
    # CIFAR-100
    vanilla               | table4/cifar100_vanilla              | 79.2 52.0 6.1 18.2
    label smoothing       | table4/cifar100_smoothing            | 78.9 51.7 2.8 16.3
    temperature scaling   | table4/cifar100_vanilla@temperature  | 79.2 52.0 4.3 14.0
    AR-AdaLS, precomputed | table4/cifar100_ar_adals_precomputed | 79.3 52.2 2.6 14.2
    AR-AdaLS, on the fly  | table4/cifar100_ar_adals_on_the_fly  | 79.2 52.1 2.3 13.2
    """,
)

TABLE5 = table(
    "ar/table5",
    "Table 5",
    "variance over runs times 100, mean over the shifts of CIFAR-10-C and ImageNet-C, by intensity and over all",
    " ".join(f"intensity_{i}:variance%" for i in range(1, 6)) + " corruptions:variance%",
    """
    # CIFAR-10-C
    vanilla         | table5/vanilla   | 7.85 9.69 11.2 13.1 16.0 11.6
    label smoothing | table5/smoothing | 5.54 6.95 8.11 9.65 11.8 8.41
    AdaLS           | table5/adals     | 5.47 6.87 7.95 9.44 11.5 8.25
    AR-AdaLS        | table5/ar_adals  | 4.21 5.06 5.73 6.66 8.24 5.98
    # ImageNet-C
    vanilla         | table5/imagenet_vanilla | 5.28 6.39 7.37 8.23 8.29 7.11
    label smoothing | table5/imagenet_smoothing | 4.86 5.84 6.78 7.55 7.41 6.49
    AdaLS           | table5/imagenet_adals | 4.79 5.77 6.66 7.51 7.56 6.46
    AR-AdaLS        | table5/imagenet_ar_adals | 4.53 5.49 6.12 6.76 6.66 5.91
    """,
)

OOD = table(
    "ar/ood",
    "§5.5",
    "AUROC of telling CIFAR-100 from CIFAR-10, WRN-28-10, levels on the fly; by entropy, as in Fig. 4 (not said)",
    "cifar100:auroc_entropy",
    """
    # CIFAR-10 against CIFAR-100
    label smoothing | ood/cifar10_smoothing | 0.832±0.005
    mixup           | ood/cifar10_mixup     | 0.821±0.003
    AR-AdaLS        | ood/cifar10_ar_adals  | 0.885±0.003
    """,
)

TABLES = (TABLE1, TABLE2, TABLE3, TABLE4, TABLE5, OOD)

OTHERS = "CIFAR-10 and CIFAR-100, networks of others"
SCALED = {"": "", "+temperature": ", after temperature scaling"}

CLAIMS = (
    Claim(
        "ar/unrobust",
        "§3.1, Fig. 1",
        "Images that are easily attacked are calibrated worse.",
        "adversarially unrobust data points, where small adversarial perturbations to the input are able to fool the "
        "classifier into wrong predictions, are more likely to have poorly calibrated and unstable predictions",
        (
            Pair(
                "CIFAR-10, vanilla: least robust tenth − most robust tenth",
                Source("ar/figure1/vanilla", "level_0"),
                Source("ar/figure1/vanilla", "level_9"),
                "ece",
                1,
            ),
            *(
                Pair(
                    f"{OTHERS}{after}: least robust tenth − most robust tenth",
                    Source("ar/networks/*", f"level_0{variant}"),
                    Source("ar/networks/*", f"level_9{variant}"),
                    metric,
                    1,
                )
                for variant, after in SCALED.items()
                for metric in ("ece", "ece_debiased")
            ),
        ),
    ),
    Claim(
        "ar/control",
        "§4, footnote 1; the control is ours",
        "Robustness tells more about calibration than confidence does: of two equally confident images, the one "
        "that is attacked more easily is calibrated worse.",
        "Note, predicted confidence is not a good indicator for splitting the training dataset as the model can easily "
        "overfit to the training data and their predicted confidence are all close to 100%.",
        tuple(
            Pair(
                f"{OTHERS}{after}: {says}",
                Source("ar/networks/*", f"{method}{variant}"),
                Source("ar/networks/*", f"{base}{variant}"),
                metric,
                1,
            )
            for variant, after in SCALED.items()
            for method, base, metric, says in (
                ("less_robust", "more_robust", "gap", "of equal confidence, less robust − more robust"),
                ("level_0", "confidence_0", "ece_debiased", "least robust tenth − least confident tenth"),
            )
        ),
    ),
    Claim(
        "ar/clean",
        "§5.2, Table 2",
        "On clean data AR-AdaLS has a lower ECE than the other single networks.",
        "by differentiating the training data based on their adversarial robustness, AR-AdaLS effectively reduces the "
        "calibration error compared to other single-model based methods without significant change in accuracy",
        tuple(
            p
            for base in ("vanilla", "temperature scaling", "label smoothing", "AdaLS")
            for p in pairs(TABLE2, ["ece"], ["AR-AdaLS"], against=base)
        ),
    ),
    Claim(
        "ar/shift",
        "§5.3, Table 3",
        "Under corruption AR-AdaLS has a lower ECE than the other single networks.",
        "we can see that AR-AdaLS significantly outperforms other single-model based methods with the lowest ECE",
        tuple(
            p
            for base in ("vanilla", "label smoothing", "AdaLS")
            for p in pairs(TABLE3, ["corruptions:ece"], ["AR-AdaLS"], against=base)
        ),
    ),
    Claim(
        "ar/ensemble",
        "§5.3, Table 3",
        "AR-AdaLS of an ensemble is calibrated best under corruption.",
        "AR-AdaLS of Ensemble, which adaptively adjusts smoothing to keep the ensemble models well calibrated, "
        "performs "
        "the best under distributional shift",
        pairs(TABLE3, ["corruptions:ece"], ["AR-AdaLS of ensemble"]),
    ),
    Claim(
        "ar/stability",
        "§5.4, Table 5",
        "AR-AdaLS varies less from run to run.",
        "AR-AdaLS can effectively reduce the variance of a model compared to a vanilla model and label smoothing",
        tuple(
            p
            for base in ("vanilla", "label smoothing")
            for p in pairs(TABLE5, ["corruptions:variance"], ["AR-AdaLS"], against=base)
        ),
    ),
    Claim(
        "ar/ood",
        "§5.5",
        "AR-AdaLS tells CIFAR-100 from CIFAR-10 better than label smoothing and mixup.",
        "The AUROC score of standard label smoothing and mixup is 0.832±0.005 and 0.821±0.003 respectively, "
        "whereas our "
        "AR-AdaLS achieves 0.885±0.003.",
        tuple(
            p
            for base in ("label smoothing", "mixup")
            for p in pairs(OOD, ["cifar100:auroc_entropy"], ["AR-AdaLS"], against=base)
        ),
    ),
    Claim(
        "ar/levels",
        "§5.6, Fig. 5",
        "Ten levels of robustness are better than one.",
        "there is a significant drop in calibration error (ECE) when we increase the number of adversarial robustness "
        "subsets R from 1, where R = 1 denotes AdaLS",
        tuple(
            Pair(
                f"CIFAR-10{'-C' if variant == 'corruptions' else ''}: R = 10 − R = 1",
                Source("ar/table3/ar_adals", variant),
                Source("ar/figure5/levels_1", variant),
                "ece",
                -1,
            )
            for variant in ("as_trained", "corruptions")
        ),
    ),
)
