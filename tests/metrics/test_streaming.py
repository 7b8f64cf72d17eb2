"""Streams: merged parts equal the whole, values are within bounds, the external sort is exact, memory is bounded."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import calibrant
from calibrant.errors import CalibrantError, SplitError
from calibrant.functional.inputs import predictions
from calibrant.functional.scores import Scores, positive_class, reduce
from calibrant.metrics import METRICS, external_sort, stream_parquet
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.evaluate import evaluate_scores, point_estimates
from calibrant.metrics.panel import Metric
from calibrant.metrics.stream import RUNGS, StreamPanel, StreamState, floor_of, rung, state
from calibrant.metrics.stream_parquet import Settings, stream
from calibrant.metrics.stream_report import BOUNDS, bounds_line, report
from calibrant.training.environment import threads


def scores(n: int, k: int = 5, scale: float = 3.0, seed: int = 0, round_to: int | None = None) -> Scores:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * scale
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    return reduce(predictions(z if round_to is None else z.round(round_to), y))


def check(found: StreamState, exact: Scores) -> None:
    streamed, wanted = report(found), evaluate_scores(exact)
    bounds = streamed.extras["stream"]["bounds"]
    assert streamed.n == wanted.n and list(streamed) == list(wanted)
    for name in wanted:
        if wanted[name].value is None:
            assert streamed[name].value is None and streamed[name].reason
        else:
            assert abs(streamed[name].value - wanted[name].value) <= bounds[name] + 1e-12, name


def test_every_ranking_metric_has_a_bound() -> None:
    """A metric of the ranking sees the order of items, which a rung hides."""
    ranked = {name for name, metric in METRICS.items() if metric.family == "refinement"}
    assert ranked <= set(BOUNDS) <= set(METRICS), f"no line in stream_report.BOUNDS: {ranked - set(BOUNDS)}"


def test_a_metric_that_needs_items_is_missing_from_a_stream() -> None:
    wanted = Metric("spread", "spread", "calibration", "low", lambda panel: panel.scores.confidence.std()[None])
    found = point_estimates([wanted], StreamPanel(state(scores(50))))["spread"]
    assert found.value is None and found.reason == "not available from a stream"


@settings(deadline=None)
@given(
    st.lists(
        st.floats(-800, 0, allow_nan=False) | st.sampled_from([-np.inf, -0.0, -1e-300, -6e-11, -5e-12]),
        min_size=2,
        max_size=30,
    )
)
def test_rungs_are_monotone(values: list[float]) -> None:
    x = torch.tensor(sorted(values), dtype=torch.float64)
    r = rung(x)
    assert bool((r[1:] <= r[:-1]).all()) and int(r.min()) >= 0 and int(r.max()) < RUNGS
    inside = (-x < 2.0**10) & (-x > 2.0**-34)
    low, high = floor_of(r), floor_of(r + 1)
    assert bool(((low <= -x) & (-x < high))[inside].all())


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 400),
    k=st.integers(2, 6),
    scale=st.sampled_from([0.01, 1.0, 5.0, 60.0]),
    seed=st.integers(0, 10**6),
    round_to=st.sampled_from([None, 0]),
    cuts=st.lists(st.floats(0, 1), max_size=4),
)
def test_merging_is_evaluating_the_whole(
    n: int, k: int, scale: float, seed: int, round_to: int | None, cuts: list[float]
) -> None:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * scale
    z = z if round_to is None else z.round(round_to)
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    edges = sorted({0, n, *(int(c * n) for c in cuts)})
    parts = [reduce(predictions(z[a:b], y[a:b])) for a, b in pairwise(edges)]
    whole = state(parts[0])
    for part in parts[1:]:
        whole = whole + state(part)
    check(whole, reduce(predictions(z, y)))


def test_positive_class_and_top1_stream() -> None:
    binary = positive_class(scores(3000, k=2))
    check(state(binary), binary)
    rng = np.random.default_rng(0)
    c = rng.random(500).round(2)
    c[:5] = [0, 1, 1, 0, 1]
    top1 = reduce(predictions(labels=rng.integers(0, 3, 500), predicted=rng.integers(0, 3, 500), confidence=c))
    check(state(top1), top1)


def test_missing_values_have_a_reason() -> None:
    z = torch.full((4, 3), -torch.inf)
    z[:, 0] = 0
    found = report(state(reduce(predictions(z, [0, 0, 0, 1]))))
    assert found["nll"].value is None and "1 labels were called impossible" in str(found["nll"].reason)
    all_right = report(state(reduce(predictions(z, [0, 0, 0, 0]))))
    assert all_right["auroc"].value is None and "all predictions are correct" in str(all_right["auroc"].reason)


def test_intervals_agree_with_those_in_memory() -> None:
    s = scores(6_000, scale=4.0)
    resampling = Resampling(seed=0, replicates=400)
    streamed = report(state(s), resampling=resampling)
    rng = np.random.default_rng(1)
    weights = torch.from_numpy(rng.multinomial(s.n, np.full(s.n, 1 / s.n), size=200)).double()
    for name in ("accuracy", "nll", "brier", "gap", "auroc", "aupr_error", "aurc", "eaurc", "fpr95"):
        e = streamed[name]
        drawn = METRICS[name](s, weights)  # a plain item bootstrap, which is right for these
        assert e.low is not None and e.high is not None and e.value is not None
        assert e.low < e.value < e.high
        assert 0.8 < (e.high - e.low) / (2 * 1.96 * float(drawn.std())) < 1.25, name
    for name in ("ece", "ece_mass", "ks"):
        assert streamed[name].low is not None and streamed[name].low < streamed[name].high, name  # type: ignore[operator]
    assert (
        report(state(scores(50)), resampling=resampling)["ece"].reason
        == "intervals from sums need 1000 items or more, this stream has 50"
    )


def logits(n: int, k: int = 4, scale: float = 3.0) -> pa.Table:
    rng = np.random.default_rng(0)
    z = (rng.normal(size=(n, k)) * scale).astype(np.float32)
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    return pa.table({"label": y, "logits": pa.FixedSizeListArray.from_arrays(pa.array(z.reshape(-1)), k)})


def confidences(*values: float) -> pa.Table:
    rng = np.random.default_rng(0)
    c, y = rng.choice(values, 1000), rng.integers(0, 2, 1000)
    return pa.table({"label": y, "predicted": y * 0, "confidence": c})


def votes() -> pa.Table:
    """Rows with the same largest share tie, though the sum of the others rounds differently in each."""
    rng = np.random.default_rng(0)
    p = rng.multinomial(20, [0.4, 0.3, 0.2, 0.1], size=1000) / 20
    return pa.table({"label": rng.integers(0, 4, 1000), "probs": list(p)})


def write_parts(folder: Path, table: pa.Table, parts: int, rows: int = 500) -> Scores:
    """Write the table in parts with row groups of `rows`; return its scores, read at once."""
    folder.mkdir(exist_ok=True)
    edges = np.linspace(0, len(table), parts + 1).astype(int)
    for i, (start, stop) in enumerate(pairwise(edges)):
        pq.write_table(table.slice(start, stop - start), folder / f"part-{i:03}.parquet", row_group_size=rows)
    return reduce(calibrant.read(folder))


def test_threads_read_the_same_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_parquet, "NUMBERS", 1000)
    monkeypatch.setattr(stream_parquet, "TASK_ROWS", 1000)
    exact = write_parts(tmp_path / "parts", logits(5000), 3)
    seen: list[tuple[int, int]] = []
    alone = stream(tmp_path / "parts", Settings(), progress=lambda done, total: seen.append((done, total)))
    check(alone.state, exact)
    assert seen[-1] == (5000, 5000) and len(seen) > 3
    together = stream(tmp_path / "parts", Settings(), workers=2)
    for name, value in vars(alone.state).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(together.state, name), value), name
    assert together.state.n == alone.state.n == 5000


def test_the_last_digit_does_not_depend_on_the_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker used all of torch's threads, and two workers used half of them, which changes the order of sums."""
    monkeypatch.setattr(stream_parquet, "TASK_ROWS", 1000)
    write_parts(tmp_path / "parts", logits(120_000), 1, rows=60_000)
    with threads(2):
        alone, together = (stream(tmp_path / "parts", Settings(), workers=n).state for n in (1, 2))
        assert torch.get_num_threads() == 2
    assert torch.equal(alone.moments, together.moments) and torch.equal(alone.ladder, together.ladder)


def test_row_groups_may_be_empty(tmp_path: Path) -> None:
    """The width of a row was taken from the first group, which was a division by zero."""
    table = logits(300)
    with pq.ParquetWriter(tmp_path / "x.parquet", table.schema) as out:
        for rows in (table[:0], table, table[:0]):
            out.write_table(rows)
    check(stream(tmp_path / "x.parquet", Settings()).state, reduce(calibrant.read(tmp_path / "x.parquet")))


SORTED = {
    "logits": (logits(3000), 3),
    "saturated logits": (logits(3000, scale=40.0), 3),
    "one row": (logits(1), 1),
    "parts of one row": (logits(5), 5),
    "one value": (confidences(0.75), 1),
    "three values": (confidences(0.5, 0.75, 1.0), 1),
    "two close values": (confidences(0.75, 0.75000001), 1),
    "equal votes": (votes(), 1),
}


@pytest.mark.parametrize("piece", [20, 10**6])
@pytest.mark.parametrize(("table", "parts"), SORTED.values(), ids=SORTED)
def test_external_sort_is_exact(
    table: pa.Table, parts: int, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_sort, "PIECE", piece)
    monkeypatch.setattr(stream_parquet, "NUMBERS", 1000)
    wanted = evaluate_scores(write_parts(tmp_path / "parts", table, parts))
    (tmp_path / "runs").mkdir()
    found = stream(tmp_path / "parts", Settings(spill=str(tmp_path / "runs")))
    values = external_sort.exact(tmp_path / "runs", found.state)
    for name, value in values.items():
        assert value == pytest.approx(wanted[name].value, abs=1e-12), name
    assert bounds_line(report(found.state, exact=values)) == "streamed in one pass; every value is exact"


def test_errors_name_the_row_of_the_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_parquet, "NUMBERS", 100)
    z = np.zeros((1000, 3))
    z[777, 1] = np.nan
    pq.write_table(pa.table({"label": np.zeros(1000, int), "logits": list(z)}), tmp_path / "x.parquet")
    with pytest.raises(CalibrantError, match=r"x\.parquet: logits in row 777 has nan"):
        stream(tmp_path / "x.parquet", Settings())


def test_splits_and_reuse(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for i, split in enumerate(("test", "train")):
        pq.write_table(pa.table({"label": [0], "prob": [0.5], "split": [split]}), folder / f"{i}.parquet")
    with pytest.raises(CalibrantError, match="several splits"):
        stream(folder, Settings())
    table = pa.table({"label": [0], "prob": [0.5]}).replace_schema_metadata(
        {"calibrant.fitted_on": "ab", "calibrant.origin": "ab"}
    )
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(SplitError, match="fitted on the same items"):
        stream(tmp_path / "x.parquet", Settings())
    assert stream(tmp_path / "x.parquet", Settings(allow_reuse=True)).state.n == 1


MEMORY = """
import json, sys
from pathlib import Path
from calibrant.metrics.stream_parquet import Settings, stream

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

stream(Path(sys.argv[1]), Settings())
small = peak()
found = stream(Path(sys.argv[2]), Settings())
print(json.dumps([small, peak(), found.state.n]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from Linux's /proc")
def test_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    """400,000 × 50 logits take 153 MiB in float64."""
    for name, n in (("small", 40_000), ("large", 400_000)):
        (tmp_path / name).mkdir()
        pq.write_table(logits(n, 50), tmp_path / name / "0.parquet", row_group_size=20_000)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "small"), str(tmp_path / "large")],
        capture_output=True,
        text=True,
        check=True,
    )
    small, large, n = json.loads(done.stdout)
    assert n == 400_000
    assert large < 1024 and large - small < 100, f"{small:.0f} MiB, then {large:.0f} MiB for ten times the rows"


REDUCE = """
import json, torch
from pathlib import Path
from calibrant.functional.inputs import predictions
from calibrant.functional.scores import reduce
from calibrant.metrics.evaluate import evaluate_scores

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

y = torch.arange(40_000) % 1000
evaluate_scores(reduce(predictions(torch.zeros(600, 1000), y[:600])))  # load what loads once
z = torch.randn(40_000, 1000, generator=torch.Generator().manual_seed(0))
before = peak()
evaluate_scores(reduce(predictions(z, y)))
print(json.dumps([z.numel() * 4 / 2**20, peak() - before]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from Linux's /proc")
def test_the_one_pass_copies_no_more_than_a_chunk() -> None:
    """The panel of 153 MiB of logits; blocks freed between kept ones once left holes as large as the logits."""
    done = subprocess.run([sys.executable, "-c", REDUCE], capture_output=True, text=True, check=True)
    size, grown = json.loads(done.stdout)
    assert size > 150 and grown < 40, f"{grown:.0f} MiB more for {size:.0f} MiB of logits"
