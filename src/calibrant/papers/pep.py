"""PEP, "PEP: Parameter Ensembling by Perturbation": Table 2, small networks under six methods.

`calibrant bench run` measures a row's network as trained and after temperature scaling; the other columns (PEP,
MC dropout, SWA, deep ensembles) share its trainings and are measured by `benchmarks/pep_table2.py`.
"""

from __future__ import annotations

from calibrant.papers.experiment import AS_TRAINED, Experiment, Paper
from calibrant.training.recipes import RECIPES
from calibrant.training.settings import Choice

ROWS = ("mnist_mlp", "mnist_cnn", "fashion_cnn", "cifar10_cnn", "cifar100_cnn")

# column → metric → the five rows; ECE and error in percent. Temperature scaling has the baseline's errors.
TABLE2 = {
    AS_TRAINED: {
        "nll": (0.096, 0.036, 0.360, 1.063, 2.685),
        "brier": (0.037, 0.016, 0.137, 0.469, 0.795),
        "ece": (1.324, 0.517, 5.269, 11.718, 9.780),
        "error": (2.264, 0.990, 8.420, 33.023, 64.843),
    },
    "pep": {
        "nll": (0.079, 0.034, 0.275, 0.982, 2.651),
        "brier": (0.035, 0.015, 0.127, 0.450, 0.786),
        "ece": (0.528, 0.366, 1.784, 4.599, 5.535),
        "error": (2.286, 0.990, 8.522, 32.949, 64.789),
    },
    "temperature": {
        "nll": (0.074, 0.032, 0.271, 0.956, 2.606),
        "brier": (0.035, 0.015, 0.126, 0.447, 0.782),
        "ece": (0.415, 0.259, 1.098, 1.318, 2.012),
    },
    "dropout": {
        "nll": (0.094, 0.031, 0.218, 0.798, 2.435),
        "brier": (0.040, 0.014, 0.111, 0.381, 0.768),
        "ece": (2.569, 0.832, 1.466, 7.109, 12.608),
        "error": (2.452, 0.842, 7.692, 27.207, 60.772),
    },
    "swa": {
        "nll": (0.067, 0.028, 0.277, 0.827, 2.314),
        "brier": (0.032, 0.013, 0.121, 0.373, 0.723),
        "ece": (0.536, 0.282, 3.988, 8.655, 7.180),
        "error": (2.082, 0.868, 7.734, 26.004, 58.092),
    },
    "deep": {
        "nll": (0.044, 0.021, 0.198, 0.709, 2.159),
        "brier": (0.020, 0.010, 0.096, 0.335, 0.695),
        "ece": (0.839, 0.287, 0.942, 8.867, 11.954),
        "error": (1.285, 0.659, 6.508, 22.880, 53.917),
    },
}


def reported(row: str) -> dict[str, dict[str, float]]:
    """What Table 2 says of a row: column → metric → fraction (errors as accuracies)."""
    at = ROWS.index(row)
    out: dict[str, dict[str, float]] = {}
    for column, metrics in TABLE2.items():
        named = {metric: values[at] for metric, values in metrics.items()}
        out[column] = {"nll": named["nll"], "brier": named["brier"], "ece": named["ece"] / 100}
        if "error" in named:
            out[column]["accuracy"] = 1 - named["error"] / 100
    return out


def experiment(row: str) -> Experiment:
    return Experiment(
        paper="pep",
        table="table2",
        row=row,
        recipe=RECIPES[f"pep/{row}"],
        seeds=25,
        calibrators=("temperature",),
        reported=reported(row),
        note="batch and learning rate ours; the paper tunes on the whole held-out set, we on half of it",
    )


# §3.2: symmetrised KL between the entropies of five trained and five foreign classes of CIFAR-10, WRN-28-10
OOD = {AS_TRAINED: 0.47, "pep": 0.72, "temperature": 0.71}


def five_classes(network: str) -> Experiment:
    """Out-of-distribution detection; `benchmarks/stress_runs.py` measures `entropy_kl`, `bench run` the rest."""
    own = "" if network == "wide_resnet28_10" else "NOT the paper's network, WRN-28-10; "
    told = {} if network != "wide_resnet28_10" else {name: {"entropy_kl": kl} for name, kl in OOD.items()}
    return Experiment(
        paper="pep",
        table="ood",
        row=network,
        recipe=RECIPES[f"pep/ood_{network}"],
        ensemble=Choice("pep"),
        calibrators=("temperature",),
        reported=told,
        note=f"{own}which five classes, the bins of entropy and the schedule are not given: classes 0–4, 30 log bins",
    )


PAPER = Paper(
    "pep",
    "PEP: Parameter Ensembling by Perturbation",
    (*(experiment(row) for row in ROWS), five_classes("cifar_cnn"), five_classes("wide_resnet28_10")),
)
