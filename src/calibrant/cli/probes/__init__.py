"""The probes of `calibrant probe`: one file and one line each.

A probe's module and its function have the probe's name. The function takes a `Request` and returns a `Probed`: what to
print, the JSON record, and the sections of the report that compare the networks.
"""

PROBES = (
    "hessian",
    "landscape",
    "sharpness",
    "hardness",
    "variance",
    "fourier",
    "neighbours",
    "signs",
    "pep_effect",
    "overfitting",
    "attack",
    "robustness",
)
"""The values of `--what`. A probe's module is imported when it is asked for."""
