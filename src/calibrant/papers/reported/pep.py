"""PEP: Table 1 (networks of others on ImageNet), Table 2 (small networks, 25 runs) and the five classes of §3.2."""

from __future__ import annotations

from calibrant.papers.reported.claim import Claim, Pair, pairs
from calibrant.papers.reported.table import AS_TRAINED, Source, table

TABLE1 = table(
    "pep/table1",
    "Table 1",
    "ImageNet, networks trained by others: baseline, temperature scaling (T*) and PEP (σ*, 10 members)",
    "nll brier ece% error% temperature sigma",
    """
    # DenseNet121
    baseline            | -             | 1.030 0.357 3.47 25.73 -    -
    temperature scaling | -@temperature | 1.018 0.356 1.52 -     1.10 -
    PEP                 | -@pep         | 0.997 0.349 2.03 25.13 -    0.00194
    # DenseNet169
    baseline            | -             | 1.035 0.354 5.47 25.31 -    -
    temperature scaling | -@temperature | 1.007 0.350 1.75 -     1.23 -
    PEP                 | -@pep         | 0.940 0.331 2.35 23.74 -    0.00290
    # InceptionV3
    baseline            | -             | 0.994 0.328 1.80 22.96 -    -
    temperature scaling | -@temperature | 0.975 0.328 4.19 -     0.91 -
    PEP                 | -@pep         | 0.950 0.317 2.46 22.26 -    0.00194
    # ResNet50
    baseline            | -             | 1.084 0.365 5.08 26.09 -    -
    temperature scaling | -@temperature | 1.057 0.362 1.97 -     1.19 -
    PEP                 | -@pep         | 1.023 0.350 2.94 25.18 -    0.00260
    # VGG16
    baseline            | -             | 1.199 0.399 2.52 29.39 -    -
    temperature scaling | -@temperature | 1.193 0.399 2.08 -     1.09 -
    PEP                 | -@pep         | 1.164 0.391 1.64 28.83 -    0.00184
    # VGG19
    baseline            | -             | 1.176 0.394 4.77 28.99 -    -
    temperature scaling | -@temperature | 1.171 0.394 4.50 -     1.09 -
    PEP                 | -@pep         | 1.165 0.391 4.48 28.75 -    0.00103
    """,
)

TABLE2 = table(
    "pep/table2",
    "Table 2",
    "small networks under six methods, mean ± deviation over 25 runs",
    "nll brier ece% error%",
    """
    # MNIST, MLP
    baseline            | table2/mnist_mlp             | 0.096±0.01 0.037±0.00 1.324±0.16 2.264±0.22
    PEP                 | table2/mnist_mlp@pep         | 0.079±0.01 0.035±0.00 0.528±0.12 2.286±0.24
    temperature scaling | table2/mnist_mlp@temperature | 0.074±0.01 0.035±0.00 0.415±0.10 2.264±0.22
    MC dropout          | table2/mnist_mlp_dropout@dropout     | 0.094±0.00 0.040±0.00 2.569±0.17 2.452±0.14
    SWA                 | table2/mnist_mlp@swa         | 0.067±0.00 0.032±0.00 0.536±0.08 2.082±0.10
    deep ensemble       | table2/mnist_mlp_deep        | 0.044±0.00 0.020±0.00 0.839±0.08 1.285±0.05
    # MNIST, CNN
    baseline            | table2/mnist_cnn             | 0.036±0.00 0.016±0.00 0.517±0.07 0.990±0.13
    PEP                 | table2/mnist_cnn@pep         | 0.034±0.00 0.015±0.00 0.366±0.08 0.990±0.12
    temperature scaling | table2/mnist_cnn@temperature | 0.032±0.00 0.015±0.00 0.259±0.06 0.990±0.13
    MC dropout          | table2/mnist_cnn_dropout@dropout     | 0.031±0.00 0.014±0.00 0.832±0.06 0.842±0.06
    SWA                 | table2/mnist_cnn@swa         | 0.028±0.00 0.013±0.00 0.282±0.04 0.868±0.06
    deep ensemble       | table2/mnist_cnn_deep        | 0.021±0.00 0.010±0.00 0.287±0.05 0.659±0.03
    # Fashion-MNIST, CNN
    baseline            | table2/fashion_cnn             | 0.360±0.01 0.137±0.01 5.269±0.22 8.420±0.32
    PEP                 | table2/fashion_cnn@pep         | 0.275±0.01 0.127±0.01 1.784±0.54 8.522±0.34
    temperature scaling | table2/fashion_cnn@temperature | 0.271±0.01 0.126±0.00 1.098±0.18 8.420±0.32
    MC dropout          | table2/fashion_cnn_dropout@dropout     | 0.218±0.01 0.111±0.00 1.466±0.30 7.692±0.34
    SWA                 | table2/fashion_cnn@swa         | 0.277±0.01 0.121±0.00 3.988±0.11 7.734±0.11
    deep ensemble       | table2/fashion_cnn_deep        | 0.198±0.00 0.096±0.00 0.942±0.13 6.508±0.10
    # CIFAR-10, CNN
    baseline            | table2/cifar10_cnn             | 1.063±0.03 0.469±0.01 11.718±0.72 33.023±0.68
    PEP                 | table2/cifar10_cnn@pep         | 0.982±0.02 0.450±0.01 4.599±0.82  32.949±0.74
    temperature scaling | table2/cifar10_cnn@temperature | 0.956±0.02 0.447±0.01 1.318±0.26  33.023±0.68
    MC dropout          | table2/cifar10_cnn_dropout@dropout     | 0.798±0.01 0.381±0.01 7.109±0.62  27.207±0.66
    SWA                 | table2/cifar10_cnn@swa         | 0.827±0.01 0.373±0.00 8.655±0.29  26.004±0.36
    deep ensemble       | table2/cifar10_cnn_deep        | 0.709±0.00 0.335±0.00 8.867±0.23  22.880±0.21
    # CIFAR-100, CNN
    baseline            | table2/cifar100_cnn             | 2.685±0.03 0.795±0.01 9.780±0.69  64.843±0.69
    PEP                 | table2/cifar100_cnn@pep         | 2.651±0.03 0.786±0.01 5.535±0.50  64.789±0.69
    temperature scaling | table2/cifar100_cnn@temperature | 2.606±0.03 0.782±0.01 2.012±0.31  64.843±0.69
    MC dropout          | table2/cifar100_cnn_dropout@dropout     | 2.435±0.03 0.768±0.01 12.608±0.59 60.772±0.58
    SWA                 | table2/cifar100_cnn@swa         | 2.314±0.02 0.723±0.00 7.180±0.48  58.092±0.42
    deep ensemble       | table2/cifar100_cnn_deep        | 2.159±0.01 0.695±0.00 11.954±0.29 53.917±0.30
    """,
)

OOD = table(
    "pep/ood",
    "§3.2",
    "symmetrised KL between the entropies of five trained and five foreign classes of CIFAR-10",
    "entropy_kl",
    """
    # CIFAR-10, WRN-28-10
    baseline            | ood/wide_resnet28_10             | 0.47
    PEP                 | ood/wide_resnet28_10@pep         | 0.72
    temperature scaling | ood/wide_resnet28_10@temperature | 0.71
    """,
)

TABLES = (TABLE1, TABLE2, OOD)

CLAIMS = (
    Claim(
        "pep/nll",
        "§3.2, Table 2",
        "PEP lowers the NLL of every network.",
        "For all cases, it can be seen that PEP achieves better calibration in terms of lower NLL compared to "
        "the baseline.",
        pairs(TABLE2, ["nll"], ["PEP"]),
    ),
    Claim(
        "pep/others",
        "§3.2, Table 2",
        "Temperature scaling and MC dropout lower the NLL too.",
        "Compared to the baseline, temperature scaling and MCD improve calibration in terms of NLL for all three "
        "experiments.",
        pairs(TABLE2, ["nll"], ["temperature scaling", "MC dropout"]),
    ),
    Claim(
        "pep/deep",
        "§3.2, Table 2",
        "Deep ensembles have the best NLL and the fewest errors; here against SWA, the next best.",
        "Deep Ensembles achieves the best NLL and classification errors in all the experiments.",
        pairs(TABLE2, ["nll", "error"], ["deep ensemble"], against="SWA"),
    ),
    Claim(
        "pep/pretrained",
        "§3.1, Table 1",
        "On networks trained by others, PEP has a lower NLL than the baseline and temperature scaling.",
        "For all the pre-trained networks, except VGG19, PEP achieves statistically significant improvements in "
        "calibration compared to the baseline and temperature scaling.",
        tuple(
            Pair(
                f"{networks}: PEP − {against}",
                Source(f"pep/networks/{rows}", "pep"),
                Source(f"pep/networks/{rows}", variant),
                "nll",
                -1,
                unlike="other networks and data than the paper's six on ImageNet",
            )
            for rows, networks in (
                ("cifar10_*", "CIFAR-10, four ResNets of others"),
                ("cifar100_*", "CIFAR-100, two ResNets of others"),
                ("imagenet_efficientnet_lite0", "ImageNet, EfficientNet-Lite0"),
            )
            for variant, against in ((AS_TRAINED, "baseline"), ("temperature", "temperature scaling"))
        ),
    ),
    Claim(
        "pep/ood",
        "§3.2",
        "PEP tells five foreign classes from five trained ones better.",
        "The results show that using PEP, KLD increased from 0.47 (baseline) to 0.72. In the same experiment "
        "temperature "
        "scaling increased KLD to 0.71.",
        (
            *pairs(OOD, ["entropy_kl"], ["PEP", "temperature scaling"]),
            *(
                Pair(
                    f"CIFAR-10, small CNN: {title} − baseline",
                    Source("pep/ood/cifar_cnn", variant),
                    Source("pep/ood/cifar_cnn"),
                    "entropy_kl",
                    1,
                    unlike="the small CNN instead of WRN-28-10",
                )
                for variant, title in (("pep", "PEP"), ("temperature", "temperature scaling"))
            ),
        ),
    ),
)
