"""Streaming equals mapping in memory, keeps the other columns, is atomic, and needs little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import calibrant
from calibrant import files
from calibrant.errors import FileError, MapError, SplitError
from calibrant.posthoc.stream import apply_parts, fingerprint


def write_parts(folder: Path, members: int = 1, n: int = 700) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    g = np.random.default_rng(0)
    for i, size in enumerate((n // 2, n - n // 2)):
        z = g.normal(size=(size, 3)).astype(np.float32) * 3
        column = z.tolist() if members == 1 else np.stack([z, z + 0.5 * g.normal(size=z.shape)], 1).tolist()
        table = {
            "label": g.integers(0, 3, size),
            "logits": column,
            "id": [f"{i}-{j}" for j in range(size)],
            "split": ["test"] * size,
            "group": [f"image {j // 7}" for j in range(size)],
        }
        pq.write_table(pa.table(table), folder / f"{i}.parquet", row_group_size=100)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("name", ["temperature", "histogram_mass", "temperature+isotonic"])
def test_equals_memory(tmp_path: Path, members: int, name: str) -> None:
    write_parts(tmp_path / "in", members)
    g = torch.Generator().manual_seed(0)
    shape = (300, 3) if members == 1 else (2, 300, 3)
    m = calibrant.fit(name, 3 * torch.randn(shape, generator=g), torch.randint(3, (300,), generator=g))
    done = apply_parts(m, tmp_path / "in", tmp_path / "out", numbers=500)
    whole = files.read(tmp_path / "in")
    expected, found = m.predictions(whole), files.read(tmp_path / "out")
    assert done.n == 700 and done.parts > 5
    assert expected.logits is not None and found.logits is not None and torch.equal(found.logits, expected.logits)
    assert torch.equal(found.labels, expected.labels) and found.ids == whole.ids and found.split == "test"
    assert found.group is not None and torch.equal(
        found.group.unique(return_counts=True)[1].sort()[0], whole.group.unique(return_counts=True)[1].sort()[0]
    )  # type: ignore[union-attr]
    if expected.confidence is not None:
        assert found.confidence is not None and torch.equal(found.confidence, expected.confidence)
        assert torch.equal(found.predicted, expected.predicted)  # type: ignore[arg-type]
    assert found.origin == whole.fingerprint() == fingerprint(tmp_path / "in", 500)
    assert found.fitted_on == m.record.data and not found.raw


def test_reporting_on_what_was_fitted_is_caught_through_a_stream(tmp_path: Path) -> None:
    write_parts(tmp_path / "in")
    p = files.read(tmp_path / "in")
    m = calibrant.fit("temperature", p, allow_reuse=True)
    apply_parts(m, tmp_path / "in", tmp_path / "out", numbers=300)
    with pytest.raises(SplitError):
        calibrant.evaluate(files.read(tmp_path / "out"), intervals=False)


def test_a_bad_part_leaves_nothing(tmp_path: Path) -> None:
    write_parts(tmp_path / "in")
    (tmp_path / "in" / "2.parquet").write_bytes(b"PAR1 not really")
    m = calibrant.fit("temperature", torch.randn(50, 3), torch.arange(50) % 3, T=2.0)
    with pytest.raises(FileError, match=r"2\.parquet"):
        apply_parts(m, tmp_path / "in", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    other = calibrant.fit("temperature", torch.randn(50, 4), torch.arange(50) % 4, T=2.0)
    (tmp_path / "in" / "2.parquet").unlink()
    with pytest.raises(MapError, match="fitted for 4 classes"):
        apply_parts(other, tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A folder of 20 MB of logits passes through a process that grows by less than its float64 copy."""
    script = f"""
import numpy as np, pyarrow as pa, pyarrow.parquet as pq, resource, torch
from pathlib import Path
from calibrant.posthoc.stream import apply_parts
from calibrant.posthoc.temperature import TemperatureMap
folder = Path({str(tmp_path)!r}) / "in"; folder.mkdir()
g = np.random.default_rng(0)
for i in range(2):
    z = g.normal(size=(25_000, 100)).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(z.reshape(-1)), 100)
    table = pa.table({{"label": g.integers(0, 100, 25_000), "logits": lists}})
    pq.write_table(table, folder / f"{{i}}.parquet", row_group_size=5_000, compression="none", use_dictionary=False)
del z, lists, table
m = TemperatureMap(torch.tensor(2.0, dtype=torch.float64))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
apply_parts(m, folder, folder.parent / "out", numbers=200_000)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40  # MiB; the output is 40 MB, as is the input in float64
