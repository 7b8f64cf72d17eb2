"""Metrics of a video, frame by frame, against the same metrics on all pixels at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import jaccard_score

from calibrant.errors import InputError
from calibrant.functional.inputs import predictions
from calibrant.metrics.block_length import widening
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.evaluate import evaluate
from calibrant.metrics.frames import Frames

H, W, K, N = 6, 8, 4, 12
RESAMPLING = Resampling(seed=0, replicates=1000)


def video(seed: int = 0, n: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames whose difficulty drifts, so that pixels of one frame err together; some pixels have no label."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (n, H, W), generator=g)
    ease = 1.5 + torch.randn(n, 1, 1, 1, generator=g)
    logits = torch.randn(n, H, W, K, generator=g) + ease * torch.nn.functional.one_hot(y, K)
    return logits, torch.where(torch.rand(n, H, W, generator=g) < 0.1, -1, y)


def gathered(logits: torch.Tensor, labels: torch.Tensor) -> Frames:
    frames = Frames()
    for z, y in zip(logits, labels, strict=True):
        frames.add(z, y)
    return frames


def test_values_equal_those_of_all_pixels_at_once() -> None:
    logits, labels = video()
    found = gathered(logits, labels).report()
    whole = evaluate(predictions(logits, labels, ignore_index=-1), intervals=False)
    assert found.n == whole.n and found.extras["frames"] == N
    for name in ("accuracy", "nll", "brier", "ece"):
        assert found[name].value == pytest.approx(whole[name].value, rel=1e-9)
    bound = found.extras["auroc_bound"]
    assert bound < 1e-3 and found["auroc"].value == pytest.approx(whole["auroc"].value, abs=bound + 1e-12)


def test_intervals_equal_evaluate_with_frames_as_groups() -> None:
    logits, labels = video(n=40)
    found = gathered(logits, labels).report(resampling=RESAMPLING)
    whole = evaluate(predictions(logits, labels, ignore_index=-1), metrics=("accuracy", "nll", "brier", "ece", "auroc"))
    for name in ("accuracy", "nll", "brier", "ece", "auroc"):
        width = whole[name].high - whole[name].low
        assert found[name].low == pytest.approx(whole[name].low, abs=0.03 * width), name
        assert found[name].high == pytest.approx(whole[name].high, abs=0.03 * width), name
        assert found[name].method and whole[name].method


def test_a_mean_over_few_frames_has_students_interval() -> None:
    """Frames of equal size: the NLL is the mean of the frames' own, and its interval the textbook's."""
    logits, labels = video(n=9)
    labels = labels.clamp_min(0)
    each = [gathered(logits[t : t + 1], labels[t : t + 1]).report()["nll"].value for t in range(9)]
    low, high = stats.t.interval(0.95, 8, np.mean(each), stats.sem(each))
    found = gathered(logits, labels).report(resampling=RESAMPLING)["nll"]
    assert (found.low, found.high) == pytest.approx((low, high)) and "Student" in found.method


def test_blocks_of_frames_widen_the_interval_of_a_slow_drift() -> None:
    """Six equal frames in a row count as one, if they form a block.

    In general a block does not begin where the frames change, so it misses some of the correlation. The interval is
    therefore widened (`block_length.widening`), here by a quarter.
    """
    logits, labels = video(n=10)
    slow = gathered(logits.repeat_interleave(6, 0), labels.repeat_interleave(6, 0))
    single, block = (slow.report(resampling=RESAMPLING, block=b)["nll"] for b in (1, 6))
    fast = gathered(logits, labels).report(resampling=RESAMPLING)["nll"]
    assert block.value == pytest.approx(single.value) == pytest.approx(fast.value)
    more = widening(slow.series(), 6)
    assert 1.2 < more < 1.3
    assert block.high - block.low == pytest.approx(more * (fast.high - fast.low), rel=0.02)
    assert block.high - block.low > 1.8 * (single.high - single.low)


def test_correlated_frames_widen_every_interval() -> None:
    """Each interval over 60 single frames is longer if neighbours are alike than if the same frames are shuffled."""
    logits, labels = video(seed=1, n=20)
    logits, labels = logits.repeat_interleave(3, 0), labels.repeat_interleave(3, 0)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(4))
    slow, mixed = gathered(logits, labels), gathered(logits[order], labels[order])
    assert widening(mixed.series(), 1) == 1 < 1.3 < widening(slow.series(), 1)
    a, b = (f.report(resampling=RESAMPLING) for f in (slow, mixed))
    for name in ("accuracy", "nll", "brier", "ece", "miou"):
        assert a[name].value == pytest.approx(b[name].value)
        assert a[name].high - a[name].low > 1.15 * (b[name].high - b[name].low), name


def test_mean_intersection_over_union_against_scikit_learn() -> None:
    logits, labels = video()
    known = (labels >= 0).numpy()
    expected = jaccard_score(labels.numpy()[known], logits.argmax(-1).numpy()[known], average="macro")
    assert gathered(logits, labels).report()["miou"].value == pytest.approx(expected)


def test_eq_37_consistency_of_neighbouring_frames() -> None:
    logits, labels = video()
    predicted = logits.argmax(-1).numpy()
    expected = np.mean([(a == b).mean() for a, b in pairwise(predicted)])
    assert gathered(logits, labels).report()["consistency"].value == pytest.approx(expected)
    cut = Frames()
    for t, (z, y) in enumerate(zip(logits, labels, strict=True)):
        cut.add(z, y, cut=t == 6)
    same = [(predicted[t] == predicted[t + 1]).mean() for t in range(N - 1) if t != 5]
    assert cut.report()["consistency"].value == pytest.approx(np.mean(same))


def test_a_single_frame_has_no_consistency_and_no_interval() -> None:
    logits, labels = video()
    found = gathered(logits[:1], labels[:1]).report(resampling=RESAMPLING)
    assert found["consistency"].value is None and "neighbour" in found["consistency"].reason
    assert found["nll"].value is not None and found["nll"].low is None


def test_an_impossible_label_removes_only_the_nll() -> None:
    """It was left out of the mean, which made the NLL look finite."""
    logits, labels = video()
    logits[3, 0, 0], labels[3, 0, 0] = torch.tensor([0.0, 0.0, 0.0, -torch.inf]), 3
    found = gathered(logits, labels).report(resampling=RESAMPLING)
    assert found["nll"].value is None and "1 labels were called impossible" in found["nll"].reason
    assert found["brier"].low is not None


def test_memory_does_not_grow_with_the_size_of_a_frame() -> None:
    def held(size: int) -> int:
        frames = Frames()
        frames.add(torch.randn(size, size, 3), torch.zeros(size, size, dtype=torch.long))
        return sum(t.numel() for t in vars(frames.rows[0]).values())

    assert held(4) == held(64)


def test_a_refused_frame_is_named_and_changes_nothing() -> None:
    frames, labels = Frames(), torch.zeros(2, 2, dtype=torch.long)
    with pytest.raises(InputError, match="frame 0, of its labelled pixels: label in row 0 is 7"):
        frames.add(torch.zeros(2, 2, 5), labels + 7)
    for t in range(2):
        frames.add(2 * torch.eye(3)[labels + t], labels)  # three classes: five were never taken
        with pytest.raises(InputError, match=f"frame {t + 1}.*nan"):
            frames.add(torch.full((2, 2, 3), torch.nan), labels, cut=True)
    assert frames.k == 3 and frames.report()["consistency"].value == 0  # the refused cut between them is none


PLAIN = torch.zeros(2, 2, dtype=torch.long)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda f: Frames().report(), "no frame"),
        (lambda f: f.report(block=0), "block=0"),
        (lambda f: f.report(block="long"), "block='long' must be at least 1 frame, or 'auto'"),
        (lambda f: f.add(torch.zeros(2, 3, 4), PLAIN), r"\(2, 3, 4\).*\(2, 2\)"),
        (lambda f: f.add(torch.zeros(2, 2, 3), PLAIN), "3 classes after frames of 4"),
        (lambda f: f.add(torch.zeros(2, 2, 4), PLAIN - 1), "no labelled pixel"),
    ],
)
def test_bad_frames_and_blocks_are_named(use: Callable[[Frames], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        use(gathered(*video()))
