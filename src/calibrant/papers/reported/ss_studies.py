"""SS: Tables B.1 to C.2, the studies on CIFAR-100 with all four networks.

Table B.2's kernel of 1 is Table B.1's tanh, with other numbers. The ResNet baselines of C.2 are not those of E.1.
"""

from __future__ import annotations

from calibrant.papers.reported.claim import Claim, Pair, pairs
from calibrant.papers.reported.table import Source, table

TABLE_B1 = table(
    "ss/table_b1",
    "Table B.1",
    "what is inserted at the end of the stages, with MC dropout on CIFAR-100; Prob is ReLU after the bound named",
    "nll accuracy% ece%",
    """
    # VGG-16, Prob alone
    nothing                     | table_b1/vgg16_none@dropout            | 1.133 68.8 3.66
    tanh                        | table_b1/vgg16_tanh@dropout            | 1.064 70.4 2.99
    ReLU6                       | table_b1/vgg16_relu6@dropout           | 1.093 69.8 4.26
    constant scaling            | table_b1/vgg16_constant@dropout        | 0.995 72.5 2.11
    # VGG-16, Blur and Prob
    Blur                        | table_b1/vgg16_blur@dropout            | 0.985 72.4 1.77
    Blur after tanh             | table_b1/vgg16_blur_tanh@dropout       | 0.984 72.7 2.07
    Blur after ReLU6            | table_b1/vgg16_blur_relu6@dropout      | 0.982 72.5 1.84
    Blur after constant scaling | table_b1/vgg16_blur_constant@dropout   | 0.991 72.9 1.03
    # VGG-19, Prob alone
    nothing                     | table_b1/vgg19_none@dropout            | 1.215 67.3 6.37
    tanh                        | table_b1/vgg19_tanh@dropout            | 1.131 69.2 5.23
    ReLU6                       | table_b1/vgg19_relu6@dropout           | 1.166 68.3 6.44
    constant scaling            | table_b1/vgg19_constant@dropout        | 0.997 72.5 1.09
    # VGG-19, Blur and Prob
    Blur                        | table_b1/vgg19_blur@dropout            | 1.039 71.1 3.12
    Blur after tanh             | table_b1/vgg19_blur_tanh@dropout       | 1.034 71.3 3.31
    Blur after ReLU6            | table_b1/vgg19_blur_relu6@dropout      | 1.038 71.3 3.84
    Blur after constant scaling | table_b1/vgg19_blur_constant@dropout   | 0.995 72.3 1.41
    # ResNet-18, Prob alone
    nothing                     | table_b1/resnet18_none@dropout         | 0.848 77.3 3.01
    tanh                        | table_b1/resnet18_tanh@dropout         | 0.838 77.7 2.92
    ReLU6                       | table_b1/resnet18_relu6@dropout        | 0.844 77.4 2.74
    constant scaling            | table_b1/resnet18_constant@dropout     | 0.825 77.7 1.87
    # ResNet-18, Blur and Prob
    Blur                        | table_b1/resnet18_blur@dropout         | 0.806 78.6 2.56
    Blur after tanh             | table_b1/resnet18_blur_tanh@dropout    | 0.801 78.9 2.56
    Blur after ReLU6            | table_b1/resnet18_blur_relu6@dropout   | 0.805 78.9 2.59
    Blur after constant scaling | table_b1/resnet18_blur_constant@dropout | 0.811 78.5 1.84
    # ResNet-50, Prob alone
    nothing                     | table_b1/resnet50_none@dropout         | 0.822 79.1 6.63
    tanh                        | table_b1/resnet50_tanh@dropout         | 0.812 79.3 6.74
    ReLU6                       | table_b1/resnet50_relu6@dropout        | 0.799 79.4 6.71
    constant scaling            | table_b1/resnet50_constant@dropout     | 0.788 79.6 5.22
    # ResNet-50, Blur and Prob
    Blur                        | table_b1/resnet50_blur@dropout         | 0.798 80.0 7.21
    Blur after tanh             | table_b1/resnet50_blur_tanh@dropout    | 0.800 80.1 7.25
    Blur after ReLU6            | table_b1/resnet50_blur_relu6@dropout   | 0.800 80.2 7.30
    Blur after constant scaling | table_b1/resnet50_blur_constant@dropout | 0.779 80.4 5.81
    """,
)

TABLE_B2 = table(
    "ss/table_b2",
    "Table B.2",
    "size of the blur's kernel, with MC dropout on CIFAR-100",
    "nll accuracy% ece%",
    """
    # VGG-16
    kernel of 1 | table_b2/vgg16_k1@dropout    | 1.087 69.8 3.43
    kernel of 2 | table_b2/vgg16_k2@dropout    | 1.034 71.4 1.06
    kernel of 3 | table_b2/vgg16_k3@dropout    | 0.986 72.7 1.03
    kernel of 5 | table_b2/vgg16_k5@dropout    | 1.018 72.0 1.32
    # VGG-19
    kernel of 1 | table_b2/vgg19_k1@dropout    | 1.096 69.8 4.74
    kernel of 2 | table_b2/vgg19_k2@dropout    | 1.071 70.4 2.15
    kernel of 3 | table_b2/vgg19_k3@dropout    | 1.026 71.9 2.56
    kernel of 5 | table_b2/vgg19_k5@dropout    | 1.032 71.6 2.16
    # ResNet-18
    kernel of 1 | table_b2/resnet18_k1@dropout | 0.840 77.6 2.63
    kernel of 2 | table_b2/resnet18_k2@dropout | 0.801 78.9 2.56
    kernel of 3 | table_b2/resnet18_k3@dropout | 0.822 78.7 2.86
    kernel of 5 | table_b2/resnet18_k5@dropout | 0.837 78.4 3.05
    # ResNet-50
    kernel of 1 | table_b2/resnet50_k1@dropout | 0.814 79.5 6.56
    kernel of 2 | table_b2/resnet50_k2@dropout | 0.806 80.0 7.35
    kernel of 3 | table_b2/resnet50_k3@dropout | 0.796 79.9 7.38
    kernel of 5 | table_b2/resnet50_k5@dropout | 0.816 79.4 7.38
    """,
)

TABLE_C1 = table(
    "ss/table_c1",
    "Table C.1",
    "the head, with MC dropout on CIFAR-100, on test data",
    "nll accuracy% ece%",
    """
    # VGG-16
    GAP   | table_c1/vgg16_gap@dropout       | 1.030 72.3 3.24
    MLP   | table_c1/vgg16_mlp@dropout       | 1.133 68.8 3.66
    GMaxP | table_c1/vgg16_max@dropout       | 1.050 72.2 3.60
    GMedP | table_c1/vgg16_median@dropout    | 1.042 72.2 3.35
    # VGG-19
    GAP   | table_c1/vgg19_gap@dropout       | 1.035 71.9 1.46
    MLP   | table_c1/vgg19_mlp@dropout       | 1.215 67.3 6.37
    GMaxP | table_c1/vgg19_max@dropout       | 1.063 71.5 2.10
    GMedP | table_c1/vgg19_median@dropout    | 1.051 71.7 1.70
    # ResNet-18
    GAP   | table_c1/resnet18_gap@dropout    | 0.841 77.5 2.92
    MLP   | table_c1/resnet18_mlp@dropout    | 1.040 74.8 9.55
    GMaxP | table_c1/resnet18_max@dropout    | 0.905 76.3 5.23
    GMedP | table_c1/resnet18_median@dropout | 0.889 76.4 5.03
    # ResNet-50
    GAP   | table_c1/resnet50_gap@dropout    | 0.822 79.1 6.63
    MLP   | table_c1/resnet50_mlp@dropout    | 1.029 76.9 11.8
    GMaxP | table_c1/resnet50_max@dropout    | 0.887 77.2 5.67
    GMedP | table_c1/resnet50_median@dropout | 0.849 78.5 6.29
    """,
)

TABLE_C1_TRAINING = table(
    "ss/table_c1_training",
    "Table C.1",
    "the head, with MC dropout on CIFAR-100, on training data",
    "train:nll train:error% train:ece%",
    """
    # VGG-16
    GAP   | training/vgg16_gap@dropout       | 0.0852 0.461 6.75
    MLP   | training/vgg16_mlp@dropout       | 0.5492 13.1 13.8
    GMaxP | training/vgg16_max@dropout       | 0.0846 0.470 6.67
    GMedP | training/vgg16_median@dropout    | 0.0867 0.501 6.80
    # VGG-19
    GAP   | training/vgg19_gap@dropout       | 0.1825 2.50 10.4
    MLP   | training/vgg19_mlp@dropout       | 0.7144 17.7 14.8
    GMaxP | training/vgg19_max@dropout       | 0.1939 2.85 10.6
    GMedP | training/vgg19_median@dropout    | 0.1938 2.80 10.6
    # ResNet-18
    GAP   | training/resnet18_gap@dropout    | 0.0124 0.0287 1.19
    MLP   | training/resnet18_mlp@dropout    | 0.0076 0.0347 7.22
    GMaxP | training/resnet18_max@dropout    | 0.0113 0.0233 1.41
    GMedP | training/resnet18_median@dropout | 0.0156 0.0347 1.46
    # ResNet-50
    GAP   | training/resnet50_gap@dropout    | 0.0061 0.0220 0.48
    MLP   | training/resnet50_mlp@dropout    | 0.0071 0.0370 8.53
    GMaxP | training/resnet50_max@dropout    | 0.0074 0.0313 1.09
    GMedP | training/resnet50_median@dropout | 0.0053 0.0287 0.47
    """,
)

TABLE_C2 = table(
    "ss/table_c2",
    "Table C.2",
    "pre-activation on CIFAR-100",
    "nll accuracy% ece%",
    """
    # VGG-16
    post-activation | table_c2/vgg16                           | 2.047 71.6 19.2
    pre-activation  | table_c2/vgg16_preact                    | 1.827 72.5 19.8
    # VGG-16, MC dropout
    post-activation | table_c2/vgg16_dropout@dropout           | 1.133 68.8 3.66
    pre-activation  | table_c2/vgg16_preact_dropout@dropout    | 1.036 71.7 3.55
    # VGG-19
    post-activation | table_c2/vgg19                           | 2.016 67.6 21.2
    pre-activation  | table_c2/vgg19_preact                    | 1.799 64.4 17.2
    # VGG-19, MC dropout
    post-activation | table_c2/vgg19_dropout@dropout           | 1.215 67.3 6.37
    pre-activation  | table_c2/vgg19_preact_dropout@dropout    | 1.084 70.1 4.23
    # ResNet-18
    post-activation | table_c2/resnet18                        | 0.983 77.1 7.75
    pre-activation  | table_c2/resnet18_preact                 | 0.934 77.6 8.04
    # ResNet-18, MC dropout
    post-activation | table_c2/resnet18_dropout@dropout        | 0.937 76.9 5.11
    pre-activation  | table_c2/resnet18_preact_dropout@dropout | 0.872 77.6 5.53
    # ResNet-50
    post-activation | table_c2/resnet50                        | 0.880 79.0 8.35
    pre-activation  | table_c2/resnet50_preact                 | 0.870 79.4 8.27
    # ResNet-50, MC dropout
    post-activation | table_c2/resnet50_dropout@dropout        | 0.831 78.6 6.06
    pre-activation  | table_c2/resnet50_preact_dropout@dropout | 0.819 79.5 6.29
    """,
)

TABLES = (TABLE_B1, TABLE_B2, TABLE_C1, TABLE_C1_TRAINING, TABLE_C2)


def _training_ensemble(baseline: str, method: str, words: str) -> Pair:
    """Fig. D.3b has no numbers: only the sign is known. The MLP is not in the paper."""
    mlp = method.startswith("mnist_mlp")
    ours = [f"ss/{row if '/' in row else f'figure_d3/{row}'}" for row in (method, baseline)]
    return Pair(
        f"{'MNIST, MLP' if mlp else 'ResNet-18'}: {words}",
        Source(ours[0], "dropout"),
        Source(ours[1], "dropout"),
        "nll",
        -1,
        unlike="an MLP on MNIST, which the paper does not have" if mlp else "",
    )


CLAIMS = (
    Claim(
        "ss/bounds",
        "§B.1, Table B.1",
        "A bounded activation before the blur lowers the NLL.",
        "The results indicate that upper-bounded functions with ReLU tend to improve accuracy and uncertainty "
        "at the same "
        "time.",
        pairs(TABLE_B1, ["nll"]),
    ),
    Claim(
        "ss/head",
        "§C.1, Table C.1",
        "Global average pooling is better than an MLP as a head.",
        "On both the training and the test dataset, most predictive performance of MLP is worse than that of GAP.",
        pairs(TABLE_C1, ["nll"]),
    ),
    Claim(
        "ss/preactivation",
        "§C.2, Table C.2",
        "Pre-activation lowers the NLL.",
        "The results suggests that pre-activation improves both accuracy and uncertainty in most cases.",
        pairs(TABLE_C2, ["nll"]),
    ),
    Claim(
        "ss/blur_alone",
        "§F, Fig. F.1",
        "In a pre-activation network, blur alone harms and blur after Prob helps.",
        "Blur alone harms the predictive performance, although Prob + Blur improves it.",
        tuple(
            Pair(
                f"{title}: {words} − nothing",
                Source(f"ss/figure_f1/{network}_{what}", "dropout"),
                Source(f"ss/figure_f1/{network}_none", "dropout"),
                "nll",
                sign,
            )
            for network, title in (("vgg16", "VGG-16"), ("resnet18", "ResNet-18"))
            for what, words, sign in (("blur", "blur", 1), ("prob_blur", "Prob and blur", -1))
        ),
    ),
    Claim(
        "ss/training_ensemble",
        "§D.4, Fig. D.3b",
        "Averaging several passes with dropout in training lowers the test NLL.",
        "training phase ensemble significantly improves the predictive performance",
        tuple(_training_ensemble("resnet18_passes_1", f"resnet18_passes_{n}", f"{n} passes − 1") for n in (2, 3, 5))
        + tuple(
            _training_ensemble("mnist_mlp_0.5_passes_1", f"mnist_mlp_0.5_passes_{n}", f"{n} passes − 1")
            for n in (2, 3, 5)
        ),
    ),
    Claim(
        "ss/rather_than_less_dropout",
        "§D.4",
        "In training, averaging passes is better than a lower dropout rate.",
        "it is better to ensemble predictions than to lower the MC dropout rate",
        (
            _training_ensemble("figure_a1/plain_0.1", "resnet18_passes_3", "3 passes − dropout of 0.1"),
            *(
                _training_ensemble(
                    f"mnist_mlp_{rate}_passes_1", "mnist_mlp_0.5_passes_3", f"3 passes − dropout of {rate}"
                )
                for rate in (0.25, 0.1)
            ),
        ),
    ),
)
