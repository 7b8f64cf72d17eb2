"""SS: Tables E.1 to E.4 and the training losses of §E.1; Tables B.1 to C.2, the studies, are in `ss_studies.py`.

Tables 1 and 2 of the paper repeat rows of C.1 and E.4. The differences that the paper prints in brackets are wrong in
several rows of B.2, C.2, E.1 and E.4. Fig. 3 is drawn only; what the text says of it is a claim.
"""

from __future__ import annotations

from dataclasses import replace

from calibrant.papers.reported import ss_studies
from calibrant.papers.reported.claim import Claim, Pair, pairs
from calibrant.papers.reported.table import Source, table

TABLE_E1 = table(
    "ss/table_e1",
    "Table E.1",
    "spatial smoothing in image classification; MC dropout: 50 passes",
    "nll accuracy% ece%",
    """
    # VGG-19, CIFAR-10
    plain     | table_e1/cifar10_vgg19                             | 0.401 93.1 3.80
    smoothing | table_e1/cifar10_vgg19_smooth                      | 0.376 93.2 5.49
    # VGG-19, CIFAR-10, MC dropout
    plain     | table_e1/cifar10_vgg19_dropout@dropout             | 0.238 92.6 3.55
    smoothing | table_e1/cifar10_vgg19_dropout_smooth@dropout      | 0.197 93.3 0.68
    # ResNet-18, CIFAR-10
    plain     | table_e1/cifar10_resnet18                          | 0.182 95.2 2.75
    smoothing | table_e1/cifar10_resnet18_smooth                   | 0.173 95.4 2.31
    # ResNet-18, CIFAR-10, MC dropout
    plain     | table_e1/cifar10_resnet18_dropout@dropout          | 0.157 95.2 1.14
    smoothing | table_e1/cifar10_resnet18_dropout_smooth@dropout   | 0.144 95.5 1.04
    # VGG-16, CIFAR-100
    plain     | table_e1/cifar100_vgg16                            | 2.047 71.6 19.2
    smoothing | table_e1/cifar100_vgg16_smooth                     | 1.878 72.2 20.5
    # VGG-16, CIFAR-100, MC dropout
    plain     | table_e1/cifar100_vgg16_dropout@dropout            | 1.133 68.8 3.66
    smoothing | table_e1/cifar100_vgg16_dropout_smooth@dropout     | 1.034 71.4 1.06
    # VGG-19, CIFAR-100
    plain     | table_e1/cifar100_vgg19                            | 2.016 67.6 21.2
    smoothing | table_e1/cifar100_vgg19_smooth                     | 1.851 71.7 20.2
    # VGG-19, CIFAR-100, MC dropout
    plain     | table_e1/cifar100_vgg19_dropout@dropout            | 1.215 67.3 6.37
    smoothing | table_e1/cifar100_vgg19_dropout_smooth@dropout     | 1.071 70.4 2.15
    # ResNet-18, CIFAR-100
    plain     | table_e1/cifar100_resnet18                         | 0.886 77.9 4.97
    smoothing | table_e1/cifar100_resnet18_smooth                  | 0.863 78.9 4.40
    # ResNet-18, CIFAR-100, MC dropout
    plain     | table_e1/cifar100_resnet18_dropout@dropout         | 0.848 77.3 3.01
    smoothing | table_e1/cifar100_resnet18_dropout_smooth@dropout  | 0.801 78.9 2.56
    # ResNet-50, CIFAR-100
    plain     | table_e1/cifar100_resnet50                         | 0.835 79.9 8.88
    smoothing | table_e1/cifar100_resnet50_smooth                  | 0.834 80.7 9.29
    # ResNet-50, CIFAR-100, MC dropout
    plain     | table_e1/cifar100_resnet50_dropout@dropout         | 0.822 79.1 6.63
    smoothing | table_e1/cifar100_resnet50_dropout_smooth@dropout  | 0.800 80.1 7.25
    # ResNeXt-50, CIFAR-100
    plain     | table_e1/cifar100_resnext50                        | 0.804 80.6 8.23
    smoothing | table_e1/cifar100_resnext50_smooth                 | 0.825 80.8 9.41
    # ResNeXt-50, CIFAR-100, MC dropout
    plain     | table_e1/cifar100_resnext50_dropout@dropout        | 0.762 80.5 5.67
    smoothing | table_e1/cifar100_resnext50_dropout_smooth@dropout | 0.759 80.7 6.62
    # ResNet-18, ImageNet
    plain     | table_e1/imagenet_resnet18                         | 1.210 70.3 1.62
    smoothing | table_e1/imagenet_resnet18_smooth                  | 1.183 70.6 1.22
    # ResNet-18, ImageNet, MC dropout
    plain     | table_e1/imagenet_resnet18_dropout@dropout         | 1.215 70.0 1.39
    smoothing | table_e1/imagenet_resnet18_dropout_smooth@dropout  | 1.190 70.6 2.25
    # ResNet-50, ImageNet
    plain     | table_e1/imagenet_resnet50                         | 0.949 76.0 2.97
    smoothing | table_e1/imagenet_resnet50_smooth                  | 0.916 76.9 3.46
    # ResNet-50, ImageNet, MC dropout
    plain     | table_e1/imagenet_resnet50_dropout@dropout         | 0.945 76.0 1.89
    smoothing | table_e1/imagenet_resnet50_dropout_smooth@dropout  | 0.905 77.0 2.49
    # ResNeXt-50, ImageNet
    plain     | table_e1/imagenet_resnext50                        | 0.919 77.7 3.63
    smoothing | table_e1/imagenet_resnext50_smooth                 | 0.907 78.0 4.60
    # ResNeXt-50, ImageNet, MC dropout
    plain     | table_e1/imagenet_resnext50_dropout@dropout        | 0.895 77.7 2.53
    smoothing | table_e1/imagenet_resnext50_dropout_smooth@dropout | 0.887 78.1 3.28
    """,
)

SECTION_E1 = table(
    "ss/section_e1",
    "§E.1",
    "NLL on the training data of CIFAR-100, ResNet-18 with MC dropout",
    "train:nll",
    """
    # ResNet-18, CIFAR-100, MC dropout
    plain     | training/resnet18@dropout        | 0.0220
    smoothing | training/resnet18_smooth@dropout | 0.0194
    """,
)

TABLE_E2 = table(
    "ss/table_e2",
    "Table E.2",
    "ResNet-50 on ImageNet under attack: accuracy and attack success rate (ASR); the budgets are not given",
    "accuracy% success_rate%",
    """
    # FGSM
    plain     | table_e2/imagenet_resnet50@attack_fgsm                        | 28.3 62.9
    smoothing | table_e2/imagenet_resnet50_smooth@attack_fgsm                 | 30.3 60.5
    # FGSM, MC dropout
    plain     | table_e2/imagenet_resnet50_dropout@attack_fgsm+dropout        | 30.3 59.8
    smoothing | table_e2/imagenet_resnet50_dropout_smooth@attack_fgsm+dropout | 32.6 57.4
    # PGD
    plain     | table_e2/imagenet_resnet50@attack_pgd                         | 7.5 90.1
    smoothing | table_e2/imagenet_resnet50_smooth@attack_pgd                  | 9.0 88.2
    # PGD, MC dropout
    plain     | table_e2/imagenet_resnet50_dropout@attack_pgd+dropout         | 12.2 83.7
    smoothing | table_e2/imagenet_resnet50_dropout_smooth@attack_pgd+dropout  | 13.7 82.1
    """,
)

TABLE_E3 = table(
    "ss/table_e3",
    "Table E.3",
    "ResNet-18 on CIFAR-10-P: consistency and cross-entropy consistency (CEC)",
    "perturbations:consistency% perturbations:cross_entropy_consistency%",
    """
    # one network
    plain     | table_e3/cifar10_resnet18                              | 97.9 1.03
    smoothing | table_e3/cifar10_resnet18_smooth                       | 98.2 1.16
    # deep ensemble of 5
    plain     | table_e3/cifar10_resnet18_deep                         | 98.7 1.22
    smoothing | table_e3/cifar10_resnet18_smooth_deep                  | 98.9 1.33
    # MC dropout, 50 passes
    plain     | table_e3/cifar10_resnet18_dropout@dropout              | 98.2 1.29
    smoothing | table_e3/cifar10_resnet18_dropout_smooth@dropout       | 98.4 1.34
    """,
)

TABLE_E4 = table(
    "ss/table_e4",
    "Table E.4",
    "semantic segmentation on CamVid; MC dropout: 50 passes, one pass a frame with temporal smoothing",
    "nll accuracy% ece% consistency%",
    """
    # U-Net, CamVid
    plain                | table_e4/camvid_unet                           | 0.354 92.3 4.95 95.1
    spatial              | table_e4/camvid_unet_smooth                    | 0.318 92.4 4.54 95.5
    temporal             | table_e4/camvid_unet@temporal                  | 0.290 92.5 3.18 96.3
    spatial and temporal | table_e4/camvid_unet_smooth@temporal           | 0.278 92.5 3.03 96.6
    # U-Net, CamVid, MC dropout
    plain                | table_e4/camvid_unet_dropout@dropout           | 0.298 92.5 4.20 95.4
    spatial              | table_e4/camvid_unet_dropout_smooth@dropout    | 0.284 92.6 3.96 95.6
    temporal             | table_e4/camvid_unet_dropout@temporal          | 0.273 92.6 3.23 96.4
    spatial and temporal | table_e4/camvid_unet_dropout_smooth@temporal   | 0.260 92.6 2.71 96.5
    """,
)

HEADS = (ss_studies.TABLE_C1_TRAINING, ss_studies.TABLE_C1)
TABLE1 = replace(
    ss_studies.TABLE_C1,
    name="ss/table1",
    where="Table 1",
    caption="ResNet-50 on CIFAR-100: NLL on training and test data with two heads",
    columns=tuple(c for t in HEADS for c in t.columns if c.metric == "nll"),
    rows=tuple(
        replace(trained, numbers={**trained.numbers, **tested.numbers})  # a cell of training data has test data too
        for trained, tested in zip(*(t.rows for t in HEADS), strict=True)
        if trained.block == "ResNet-50" and trained.label in ("GAP", "MLP")
    ),
)

TABLE2 = replace(
    TABLE_E4,
    name="ss/table2",
    where="Table 2",
    caption="semantic segmentation on CamVid with MC dropout",
    rows=tuple(
        replace(r, experiment=r.experiment.replace("table_e4", "table2"))
        for r in TABLE_E4.rows
        if r.block.endswith("MC dropout")
    ),
)

TABLES = (TABLE1, TABLE2, *ss_studies.TABLES, TABLE_E1, SECTION_E1, TABLE_E2, TABLE_E3, TABLE_E4)

CLAIMS = (
    Claim(
        "ss/two_members",
        "§3.1, Fig. 3",
        "Two members with smoothing have an NLL as low as fifty without.",
        "the NLL of “MC dropout + spatial smoothing” with an ensemble size of 2 is comparable to or even better "
        "than that "
        "of MC dropout with an ensemble size of 50",
        tuple(
            Pair(
                f"{title}: 2 members with smoothing − 50 without",
                Source(f"ss/table_e1/{name}_dropout_smooth", "extras/curve/nll/1"),
                Source(f"ss/table_e1/{name}_dropout", "dropout"),
                "nll",
                -1,
            )
            for name, title in (
                ("cifar100_resnet18", "ResNet-18, CIFAR-100"),
                ("cifar10_resnet18", "ResNet-18, CIFAR-10"),
                ("cifar100_vgg16", "VGG-16, CIFAR-100"),
            )
        ),
    ),
    Claim(
        "ss/nll",
        "§E.1, Table E.1",
        "Spatial smoothing lowers the NLL and raises the accuracy.",
        "spatial smoothing improves both accuracy and uncertainty in most cases. In particular, it improves the "
        "predictive "
        "performance of all models with MC dropouts",
        pairs(TABLE_E1, ["nll", "accuracy"]),
    ),
    Claim(
        "ss/ece",
        "§E.1, Table E.1",
        "What spatial smoothing does to ECE, in the paper's table.",
        "Spatial smoothing improves both accuracy and uncertainty at the same time.",
        pairs(TABLE_E1, ["ece"]),
    ),
    Claim(
        "ss/corruption",
        "§3.1, Fig. 9 and E.2",
        "Spatial smoothing lowers the NLL under corruption, at every ensemble size.",
        "They consistently indicates that spatial smoothing improves not only the efficiency but corruption robustness "
        "across a whole range of ensemble size.",
        tuple(
            Pair(
                f"{title}: smoothing − plain",
                Source(f"ss/figure9/{data}_resnet18{network}_smooth{few}", f"corruptions_15{ensemble}"),
                Source(f"ss/figure9/{data}_resnet18{network}{few}", f"corruptions_15{ensemble}"),
                "nll",
                -1,
            )
            for data, name in (("cifar100", "CIFAR-100-C"), ("cifar10", "CIFAR-10-C"))
            for network, few, ensemble, title in (
                ("", "", "", f"ResNet-18, {name}"),
                ("_dropout", "_2", "+dropout", f"ResNet-18, {name}, MC dropout of 2"),
                ("_dropout", "", "+dropout", f"ResNet-18, {name}, MC dropout of 10"),
            )
        ),
    ),
    Claim(
        "ss/attack",
        "§E.2, Table E.2",
        "Spatial smoothing keeps more accuracy under attack.",
        "both MC dropout and spatial smoothing improve robustness against adversarial attacks",
        (
            *pairs(TABLE_E2, ["accuracy"]),
            *(
                Pair(
                    f"{attack.upper()}, ResNet-18, CIFAR-100{title}: smoothing − plain",
                    Source(f"ss/table_e2/cifar100_resnet18{dropout}_smooth", f"attack_{attack}{variant}"),
                    Source(f"ss/table_e2/cifar100_resnet18{dropout}", f"attack_{attack}{variant}"),
                    "accuracy",
                    1,
                    unlike="ResNet-18 on CIFAR-100 instead of ResNet-50 on ImageNet",
                )
                for attack in ("fgsm", "pgd")
                for dropout, variant, title in (("", "", ""), ("_dropout", "+dropout", ", MC dropout"))
            ),
        ),
    ),
    Claim(
        "ss/consistency",
        "§E.2, Table E.3",
        "Spatial smoothing makes predictions steadier from frame to frame.",
        "MC dropout and deep ensemble improve consistency, and spatial smoothing improves consistency of both "
        "deterministic and Bayesian NNs",
        pairs(TABLE_E3, ["perturbations:consistency"]),
    ),
    Claim(
        "ss/video",
        "§3.2, Table E.4",
        "On video, spatial and temporal smoothing both lower the NLL, and are complementary.",
        "the result reveals that spatial smoothing and temporal smoothing […] are complementary",
        pairs(TABLE_E4, ["nll", "consistency"]),
    ),
    *ss_studies.CLAIMS,
    Claim(
        "ss/training_loss",
        "§E.1",
        "Spatial smoothing lowers the training loss: it does not regularise.",
        "spatial smoothing does not regularize NNs, and it reduces the training loss",
        pairs(SECTION_E1, ["train:nll"]),
    ),
)
