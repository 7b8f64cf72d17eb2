"""20 Newsgroups "bydate" (RC §3.1): one JSON object per line, xz-compressed, with split, label, group, id, text.

Words are runs of letters or of digits, in lower case. The vocabulary is the most frequent words of the official
*training* texts; words that occur only in test texts are unknown. 0 pads, 1 is the unknown word. RC does not describe
its tokeniser.
"""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.data.records import DatasetSpec, Layout, Part, Raw, numbered_classes
from calibrant.errors import FileError
from calibrant.files.paths import readable
from calibrant.types import Split

FILE = "news20/news20_bydate.jsonl.xz"
VOCABULARY, LENGTH = 30_000, 500  # nine texts of ten are shorter
PAD, UNKNOWN = 0, 1
WORD = re.compile(r"[a-z]+|[0-9]+")


def read_news(root: Path) -> Raw:
    texts: dict[str, list[list[str]]] = {"train": [], "test": []}
    labels: dict[str, list[int]] = {"train": [], "test": []}
    groups: dict[int, str] = {}
    for number, row in enumerate(read_rows(root / FILE), 1):
        match row:
            case {"split": "train" | "test" as split, "label": int(label), "group": str(group), "text": str(text)}:
                texts[split].append(words(text))
                labels[split].append(label)
                groups[label] = group
            case _:
                raise FileError(f"{root / FILE}: line {number} has no usable split, label, group and text")
    known = vocabulary(texts["train"])
    parts = {s: Part.of(encode(texts[s], known), torch.tensor(labels[s]), s) for s in (Split.TRAIN, Split.TEST)}
    return Raw(parts, tuple(groups[label] for label in sorted(groups)))


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def vocabulary(texts: Iterable[Sequence[str]], size: int = VOCABULARY) -> dict[str, int]:
    """Word → number, starting at 2, most frequent first; ties in alphabetical order."""
    counts = Counter(word for text in texts for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
    return {word: number for number, word in enumerate(ranked, 2)}


def encode(texts: Sequence[Sequence[str]], known: dict[str, int], length: int = LENGTH) -> Tensor:
    """Tokens long [N, L]: cut at the end, padded with 0."""
    out = np.full((len(texts), length), PAD, dtype=np.int64)
    for row, text in zip(out, texts, strict=True):
        row[: len(text)] = [known.get(word, UNKNOWN) for word in text[:length]]
    return torch.from_numpy(out)


def read_rows(path: Path) -> Iterable[Any]:
    """The JSON values of the lines of the file."""
    with readable(path, "this archive of JSON lines"), lzma.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)


NEWS20 = DatasetSpec(
    name="news20",
    title="18,846 messages of 20 Newsgroups as 500 tokens each (RC §3.1)",
    layouts=(Layout((FILE,), read_news, "the bydate split as JSON lines, xz-compressed"),),
    classes=numbered_classes(20),
    shape=(LENGTH,),
    sizes={"validation": 1000, "calibration": 1000},
)
