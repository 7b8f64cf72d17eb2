"""Options that belong to an ensemble, as `predict` and `stress` have them: one that would change nothing is refused."""

from __future__ import annotations

from calibrant.errors import InputError, unknown

COUNTED = ("pep", "dropout", "deep", "swag")
"""Methods whose number of members can be asked for; SWA is one network, snapshots are those that were kept."""


def checked(
    ensemble: str | None, members: int | None = None, sigma: float | None = None, p: float | None = None
) -> None:
    """The method exists, and every setting that was given is one of its own."""
    from calibrant.ensembles import ENSEMBLES

    if ensemble is not None and ensemble not in ENSEMBLES:
        raise unknown("ensemble", ensemble, ENSEMBLES)
    for setting, value, method in (("--sigma", sigma, "pep"), ("--p", p, "dropout")):
        if value is not None and ensemble != method:
            raise InputError(f"{setting} is a setting of --ensemble {method}; add that, or drop {setting}")
    if members is not None and ensemble not in COUNTED:
        of = f"--ensemble {', '.join(COUNTED[:-1])} and {COUNTED[-1]}"
        given = "without an ensemble" if ensemble is None else f"with {ensemble}"
        raise InputError(f"--members is a setting of {of}, and changes nothing {given}; add one, or drop --members")


def kept(keep_members: bool, ensemble: str | None, stream: bool) -> None:
    """Whether there are members to keep."""
    if not keep_members:
        return
    if stream:
        raise InputError("--keep-members: a stream has one prediction a frame, and no members; drop --keep-members")
    if ensemble is None:
        raise InputError(
            "--keep-members is a setting of --ensemble; add that, or drop --keep-members "
            "(several networks without an ensemble are written member by member as it is)"
        )
