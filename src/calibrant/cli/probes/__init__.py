"""The probes of `calibrant probe`: one file and one line each.

A probe's function has the probe's name; it takes a `Request` and returns what to print, the JSON record and sections of
the report, which compare the networks. A file with several probes is named after what they have in common.
"""

PROBES: dict[str, str] = {
    "hessian": "hessian",
    "landscape": "landscape",
    "sharpness": "sharpness",
    "hardness": "hardness",
    "variance": "features",
    "fourier": "features",
    "neighbours": "features",
    "signs": "signs",
    "pep_effect": "pep_effect",
    "overfitting": "overfitting",
    "attack": "attack",
    "robustness": "robustness",
}
"""What can be asked for → the module of this package that answers; it loads when it is asked."""
