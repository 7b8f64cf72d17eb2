"""`python -m tests.fuzz --cases 10000 --seed 0`, or `--case K` for a single one."""

from __future__ import annotations

import argparse
import faulthandler
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.fuzz import files, folders
from tests.fuzz.oracle import Case, complaint

FOLDERS = 20
"""One case in this many is about a folder."""

MEMORY = 12 << 30
"""Bytes. A reader that asks for more memory than this fails, instead of bringing down the machine."""


class Fuzzer:
    """Cases by number. Each runs in its own folder below `root`, beside a folder that none may touch."""

    def __init__(self, seed: int, root: Path) -> None:
        self.seed, self.root = seed, root
        self.templates = folders.templates(root / "templates")
        (root / "outside").mkdir()
        (root / "outside" / "thesis.txt").write_text("years of work")

    def run(self, number: int, keep: bool = False) -> tuple[Case, str | None]:
        """The case, and what is wrong with its result (None if nothing is)."""
        rng = np.random.default_rng([self.seed, number])
        folder = self.root / f"case-{number}"
        folder.mkdir()
        case = self._case(number, folder, rng)
        wrong = complaint(case, self.root, folder)
        if not keep:
            shutil.rmtree(folder)
        return case, wrong

    def _case(self, number: int, folder: Path, rng: np.random.Generator) -> Case:
        if number % FOLDERS == FOLDERS - 1:
            return folders.case(folder, rng, self.templates)
        kinds = (files.good_case, files.bad_case, files.damaged_case)
        return kinds[number % 3](folder, rng, self.templates / "map")


def failures(fuzzer: Fuzzer, numbers: range, counts: Counter[str]) -> Iterator[str]:
    for number in numbers:
        case, wrong = fuzzer.run(number)
        counts[case.kind] += 1
        if wrong is not None:
            counts["wrong"] += 1
            yield f"case {number} ({case.kind}: {case.what}): {wrong}\n  {' '.join(case.argv)!r}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this one alone, and keep its files")
    chosen = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()  # a crash of a library leaves its stack, and the folder of its case
    root = Path(tempfile.mkdtemp(prefix="calibrant-fuzz-")).resolve()
    fuzzer = Fuzzer(chosen.seed, root)
    if chosen.case is not None:
        case, wrong = fuzzer.run(chosen.case, keep=True)
        print(
            f"{case.kind}: {case.what}\n{case.argv}\n{wrong or 'as it must be'}\nfiles: {root / f'case-{chosen.case}'}"
        )
        return wrong is not None
    counts: Counter[str] = Counter()
    for line in failures(fuzzer, range(chosen.first, chosen.first + chosen.cases), counts):
        print(line, flush=True)
    shutil.rmtree(root)
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()) if kind != "wrong")
    print(f"seed {chosen.seed}: {chosen.cases} cases ({kinds}), {counts['wrong']} wrong")
    return counts["wrong"] > 0


if __name__ == "__main__":
    sys.exit(main())
