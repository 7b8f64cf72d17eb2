"""Files made to break a reader are one line that names the file, never a traceback."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

import calibrant
from calibrant import files
from calibrant.errors import FileError, InputError, MapError

N, K = 12, 3
LOGITS = np.random.default_rng(0).standard_normal((N, K))
LABELS = np.arange(N) % K


def npy(header: str, body: bytes = b"12345678") -> bytes:
    """A `.npy` with a header of our own."""
    text = header.encode()
    text += b" " * (-(10 + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def shaped(shape: str) -> str:
    return f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"


HEADERS = {
    "petabytes": shaped("(1000000000000000, 3)"),
    "beyond 64 bits": shaped("(100000000000000000000, 3)"),
    "negative": shaped("(-5, 3)"),
    "booleans": shaped("(True, 1)"),
    "no dictionary": "{{{",
    "text that never ends": "{'descr': '<f8",
    "deep brackets": "(" * 3000 + ")" * 3000,
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_lying_headers_are_errors(header: str, kind: str, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", LABELS)
    path, labels = tmp_path / f"p.{kind}", None
    if kind == "npy":
        path.write_bytes(npy(header))
        labels = tmp_path / "labels.npy"
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("logits.npy", npy(header))
            archive.write(tmp_path / "labels.npy", "labels.npy")
    with pytest.raises(FileError, match=f"p.{kind}") as caught:
        files.read(path, labels=labels)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("local", "central", "value"), [(6, 8, 1), (8, 10, 97)], ids=["encrypted", "unknown packing"])
def test_archives_that_python_cannot_unpack(local: int, central: int, value: int, tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, logits=LOGITS, labels=LABELS)
    raw = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        at = -1
        while (at := raw.find(signature, at + 1)) >= 0:
            raw[at + offset] = value
    path.write_bytes(raw)
    with pytest.raises(FileError, match="p.npz"):
        files.read(path)


def test_metadata_of_parquet_that_is_no_text(tmp_path: Path) -> None:
    table = pa.table({"label": LABELS, **{f"logit_{k}": LOGITS[:, k] for k in range(K)}})
    pq.write_table(table.replace_schema_metadata({b"calibrant.split": b"te\xffst"}), tmp_path / "p.parquet")
    with pytest.raises(FileError, match=r"p\.parquet"):
        files.read(tmp_path / "p.parquet")


def test_class_names_nested_deeper_than_a_parser_goes(tmp_path: Path) -> None:
    tensors = {"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS)}
    save_file(tensors, tmp_path / "p.safetensors", metadata={"classes": "[" * 100_000})
    with pytest.raises(FileError, match="classes is not a JSON list"):
        files.read(tmp_path / "p.safetensors")


def test_two_columns_of_one_class_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("label,logit_0,logit_1,logit_01\n0,1,2,9\n1,0,3,9\n")
    with pytest.raises(FileError, match="'logit_1' and 'logit_01' are the same class"):
        files.read(tmp_path / "p.csv")


def test_a_part_with_one_class_more_is_refused(tmp_path: Path) -> None:
    for name, k in (("0.parquet", K), ("1.parquet", K + 1)):
        columns = {f"logit_{j}": LOGITS[:, j % K] for j in range(k)}
        pq.write_table(pa.table({"label": LABELS, "note": LABELS, **columns}), tmp_path / name)
    with pytest.raises(FileError, match=r"1\.parquet: column 'logit_3' is a score of a class that 0\.parquet does not"):
        files.read(tmp_path)


def test_columns_numbered_beyond_what_python_reads(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(f"label,logit_0,logit_1,logit_{'9' * 5000}\n0,2,1,9\n1,0,3,9\n")
    assert files.read(tmp_path / "p.csv").k == 2


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_read_as_the_floats_it_holds(dtype: torch.dtype, tmp_path: Path) -> None:
    narrow = torch.tensor(LOGITS).to(dtype)
    save_file({"logits": narrow, "labels": torch.tensor(LABELS)}, tmp_path / "p.safetensors")
    read = files.read(tmp_path / "p.safetensors").logits
    assert read is not None and torch.equal(read, narrow.float())


def test_an_imaginary_part_is_not_dropped() -> None:
    for values in (torch.tensor(LOGITS).to(torch.complex64), LOGITS.astype(np.complex64)):
        with pytest.raises(InputError, match="logits holds complex64"):
            calibrant.predictions(values, LABELS)
    with pytest.raises(InputError, match="logits holds sparse_coo"):
        calibrant.predictions(torch.tensor(LOGITS).to_sparse(), LABELS)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32, torch.int32, torch.int64])
def test_whole_numbers_as_logits_keep_their_digits(kind: object) -> None:
    values = [[2**24, 2**24 + 1], [2**24 + 1, 2**24]]  # equal in float32
    logits = torch.tensor(values, dtype=kind) if isinstance(kind, torch.dtype) else np.array(values, dtype=kind)
    found = calibrant.evaluate(logits, [1, 0], metrics=["accuracy", "nll"], intervals=False)
    assert found["accuracy"].value == 1 and found["nll"].value == pytest.approx(np.log1p(np.exp(-1)), rel=1e-12)


@pytest.mark.parametrize("group", [[None] * N, [float("nan")] * N, [[0]] * N], ids=["None", "NaN", "nested"])
def test_invalid_groups_are_errors(group: list[object]) -> None:
    with pytest.raises(InputError, match="group has"):
        calibrant.evaluate(LOGITS, LABELS, group=group)


HEADER_EDITS = {
    "record is a list": ("record", []),
    "record is null": ("record", None),
    "settings are a list": ("settings", []),
}


@pytest.mark.parametrize("edit", HEADER_EDITS.values(), ids=HEADER_EDITS)
def test_a_header_edited_with_its_hash_is_checked(edit: tuple[str, object], tmp_path: Path) -> None:
    folder = calibrant.fit("temperature", LOGITS, LABELS).save(tmp_path / "map")
    header = json.loads((folder / "map.json").read_text("utf-8"))
    del header["content"]
    header["map"][edit[0]] = edit[1]
    text = json.dumps(header, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    header["content"] = hashlib.sha256(text.encode("utf-8")).hexdigest()
    (folder / "map.json").write_text(json.dumps(header), "utf-8")
    with pytest.raises(MapError, match=r"map\.json"):
        calibrant.load(folder)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"format": "calibrant map", "version": NaN}', '{"format": "calibrant map", "n": 1e999}']
)
def test_headers_that_are_not_json(text: str, tmp_path: Path) -> None:
    folder = calibrant.fit("temperature", LOGITS, LABELS).save(tmp_path / "map")
    (folder / "map.json").write_text(text, "utf-8")
    with pytest.raises(MapError, match=r"map\.json"):
        calibrant.load(folder)
    shutil.rmtree(folder)
