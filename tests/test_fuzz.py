"""Two hundred cases of the fuzzer in `tests/fuzz`; `python -m tests.fuzz --cases 10000` runs more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.fuzz.__main__ import Fuzzer, failures

CASES = 200


def test_files_and_folders(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    wrong = list(failures(Fuzzer(0, tmp_path), range(CASES), counts))
    assert not wrong, "\n".join(wrong)
    assert sum(counts.values()) == CASES and min(counts[kind] for kind in ("good", "bad", "damaged", "folder")) >= 10
