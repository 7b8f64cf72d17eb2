"""Temporal smoothing of a stream (SS Eq. 3, A.2): weights, memory, stream ids and errors."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import calibrant
from calibrant.ensembles import MCDropout, TemporalSmoothing
from calibrant.errors import InputError

G = torch.Generator().manual_seed(0)
FRAMES = torch.randn(12, 3, generator=G)


def identity(x: Tensor) -> Tensor:
    """A predictor whose logits are its input."""
    return x


def naive(logits: Tensor, window: int, decay: float) -> Tensor:
    """Return Σ_i d^i p_{t−i} / Σ_i d^i, computed by loops."""
    out = []
    for t in range(len(logits)):
        total, weight = torch.zeros(logits.shape[1:], dtype=torch.float64), 0.0
        for i in range(min(window, t) + 1):
            total += decay**i * torch.softmax(logits[t - i].double(), -1)
            weight += decay**i
        out.append(total / weight)
    return torch.stack(out)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 14), st.floats(0.01, 1.0), st.integers(0, 1000))
def test_eq_3_against_loops(window: int, decay: float, seed: int) -> None:
    logits = 5 * torch.randn(12, 4, generator=torch.Generator().manual_seed(seed))
    found = TemporalSmoothing(identity, window=window, decay=decay)(logits)
    torch.testing.assert_close(found.exp(), naive(logits, window, decay))
    torch.testing.assert_close(TemporalSmoothing(identity)(logits).exp(), naive(logits, 5, math.exp(-0.8)))


def test_each_pixel_is_smoothed_separately() -> None:
    images = torch.randn(7, 4, 5, 3, generator=torch.Generator().manual_seed(1))
    found = TemporalSmoothing(identity, window=2, class_axis=-1)(images)
    assert found.shape == images.shape
    one = TemporalSmoothing(identity, window=2)(images[:, 1, 2])
    torch.testing.assert_close(found[:, 1, 2], one)


def test_images_keep_their_class_axis() -> None:
    front, x = nn.Conv2d(3, 4, 1), torch.randn(6, 3, 5, 7, generator=torch.Generator().manual_seed(2))
    last = TemporalSmoothing(lambda v: front(v).movedim(1, -1), class_axis=-1)(x)
    torch.testing.assert_close(TemporalSmoothing(front)(x), last.movedim(-1, 1))
    made = TemporalSmoothing(front)
    made(x[:3])
    with pytest.raises(InputError, match=r"logits of shape \(4, 5, 7\) after \(5, 7, 4\)"):
        made(x[3:], class_axis=3)
    torch.testing.assert_close(made(x[3:]), last.movedim(-1, 1)[3:])  # the refused frames are not remembered


def test_members_are_a_stream_of_their_own() -> None:
    made = TemporalSmoothing(identity, window=3)
    whole = restarted(made, FRAMES)
    made(FRAMES[:5])
    torch.testing.assert_close(made.members(FRAMES)[0], whole)
    torch.testing.assert_close(made(FRAMES[5:]), whole[5:])


def test_log_space_is_the_normalised_weighted_mean_of_logs() -> None:
    found = TemporalSmoothing(identity, window=1, decay=0.5, space="log")(FRAMES)
    log_p = torch.log_softmax(FRAMES.double(), -1)
    expected = torch.log_softmax(log_p[1:] * 2 / 3 + log_p[:-1] / 3, -1)
    torch.testing.assert_close(found[1:], expected)


def restarted(made: TemporalSmoothing, frames: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return the predictions of the same settings without any memory."""
    return made.restarted()(frames, **options)


def test_frame_by_frame_is_the_whole_stream_and_streams_do_not_mix() -> None:
    made = TemporalSmoothing(identity, window=3)
    whole = {"a": restarted(made, FRAMES), "b": restarted(made, -FRAMES)}
    for t in range(len(FRAMES)):
        both = made(torch.stack([FRAMES[t], -FRAMES[t]]), stream=["a", "b"])
        torch.testing.assert_close(both, torch.stack([whole["a"][t], whole["b"][t]]))


def test_frames_without_an_id_are_one_stream_until_it_is_reset() -> None:
    made = TemporalSmoothing(identity, window=3)
    pieces = torch.cat([*(made(frame[None]) for frame in FRAMES[:5]), made(FRAMES[5:])])
    torch.testing.assert_close(pieces, restarted(made, FRAMES))
    assert list(made.memories) == [None] and len(made.memories[None].kept) == 4
    torch.testing.assert_close(made(FRAMES, cut=True), pieces)
    made.reset()
    torch.testing.assert_close(made(FRAMES), pieces)
    loader = [(FRAMES, torch.zeros(12, dtype=torch.long))]
    for _ in range(2):  # a loader is its own stream, independent of earlier calls
        torch.testing.assert_close(calibrant.predict(made, loader).logits.double(), pieces, atol=1e-6, rtol=1e-6)


def test_a_cut_forgets_the_frames_before_it() -> None:
    made = TemporalSmoothing(identity, window=3)
    cuts = [t == 5 for t in range(12)]
    expected = torch.cat([restarted(made, FRAMES[:5]), restarted(made, FRAMES[5:])])
    torch.testing.assert_close(restarted(made, FRAMES, cut=cuts), expected)
    made(FRAMES[:4], stream="s")
    torch.testing.assert_close(made(FRAMES[4:8], stream="s", cut=True), restarted(made, FRAMES[4:8]))
    made.reset("s")
    torch.testing.assert_close(made(FRAMES, stream="s"), restarted(made, FRAMES))


def test_a_single_cut_applies_to_each_stream_of_the_call() -> None:
    made = TemporalSmoothing(identity)
    made(FRAMES[:4], stream=["a", "b", "a", "b"])
    found = made(FRAMES[4:8], stream=["a", "b", "a", "b"], cut=True)
    for j in range(2):
        torch.testing.assert_close(found[j::2], restarted(made, FRAMES[4 + j : 8 : 2]))  # each stream restarts once


def test_a_frame_of_another_shape_is_refused_before_any_stream_remembers() -> None:
    made = TemporalSmoothing(lambda x: x.mean(-1))  # the shape of the logits does not tell
    made(torch.full((1, 3, 5), 3.0), stream="b")
    with pytest.raises(
        InputError, match=r"stream 'b': a frame of shape \(3, 6\) after \(3, 5\); resize the frames, reset"
    ):
        made(torch.full((2, 3, 6), 4.0), stream=["a", "b"])
    assert list(made.memories) == ["b"] and made.memories["b"].seen == 1
    made(torch.full((1, 3, 6), 4.0), stream="b", cut=True)  # a new scene may have another shape


def test_scene_cuts_are_found_by_the_change_of_the_prediction() -> None:
    sure = torch.tensor([[9.0, 0.0]] * 4 + [[0.0, 9.0]] * 4)
    cautious, watchful = TemporalSmoothing(identity), TemporalSmoothing(identity, scene_cut=0.5)
    torch.testing.assert_close(watchful(sure), torch.log_softmax(sure.double(), -1))
    assert cautious(sure)[4].exp()[0] > 0.4  # without a scene cut, the old scene still counts


def test_a_stream_does_not_keep_whole_batches_in_memory() -> None:
    made = TemporalSmoothing(identity)
    for stream in range(20):
        made(FRAMES, stream=[stream, *["busy"] * (len(FRAMES) - 1)])
    kept = [p for memory in made.memories.values() for p in memory.kept]
    assert sum(p.untyped_storage().nbytes() for p in kept) == sum(p.nbytes for p in kept)


def test_a_frame_with_nan_logits_is_refused_and_not_remembered() -> None:
    made = TemporalSmoothing(identity)
    made(FRAMES[:2], stream="s")
    with pytest.raises(InputError, match="stream 's': frame 1 of this call has NaN"):
        made(torch.stack([FRAMES[2], torch.full_like(FRAMES[2], math.nan)]), stream="s")
    torch.testing.assert_close(made(FRAMES[2:3], stream="s")[0], restarted(made, FRAMES[:3])[2])


def test_each_frame_uses_the_next_member_of_an_ensemble() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 4)).eval()
    dropout = MCDropout(model, members=5, seed=3)
    found = TemporalSmoothing(dropout, window=0)(FRAMES)
    expected = torch.cat([dropout.members(frame[None])[t % 5] for t, frame in enumerate(FRAMES)])
    torch.testing.assert_close(found, torch.log_softmax(expected.double(), -1))
    pooled = TemporalSmoothing(dropout, window=0, rotate=False)(FRAMES)
    torch.testing.assert_close(pooled, dropout(FRAMES))


def test_a_class_is_impossible_only_if_all_frames_agree() -> None:
    logits = torch.tensor([[0.0, -math.inf], [0.0, -math.inf], [0.0, 0.0]])
    for space in ("probability", "log"):
        found = TemporalSmoothing(identity, space=space)(logits)
        assert not found.isnan().any() and found[1, 1] == -math.inf
    assert TemporalSmoothing(identity)(logits)[2, 1] > -math.inf


def calls(frames: Tensor, **options: Any) -> Tensor:
    return TemporalSmoothing(identity)(frames, **options)


def test_every_kind_of_sequence_gives_one_id_per_frame() -> None:
    made = TemporalSmoothing(identity)
    for ids in ((4, 5), [4, 5], np.array([4, 5]), torch.tensor([4, 5]), [np.int64(4), torch.tensor(5)]):
        made(FRAMES[:2], stream=ids)
    assert made(FRAMES[:0], stream=4).shape == FRAMES[:0].shape
    made(FRAMES[:1], stream=torch.tensor(4))
    assert {stream: memory.seen for stream, memory in made.memories.items()} == {4: 6, 5: 5}
    made.reset(np.int64(4))
    assert list(made.memories) == [5]
    made(FRAMES[:2], stream=("cam", 1))  # two frames of two cameras
    assert list(made.memories) == [5, "cam", 1]


def test_no_id_equals_that_of_frames_without_an_id() -> None:
    made = TemporalSmoothing(identity)
    made(FRAMES[:6])
    for name in ("unnamed", "None", ""):
        torch.testing.assert_close(made(FRAMES[6:], stream=name), restarted(made, FRAMES[6:]))
    made.reset("unnamed")
    again = copy.deepcopy(made)  # continues like the original
    torch.testing.assert_close(torch.cat([made(FRAMES[6:9]), made(FRAMES[9:])]), restarted(made, FRAMES)[6:])
    torch.testing.assert_close(again(FRAMES[6:]), restarted(made, FRAMES)[6:])


def refused() -> Iterator[tuple[str, object]]:
    yield "window=-1", lambda: TemporalSmoothing(identity, window=-1)
    yield "decay=1.2", lambda: TemporalSmoothing(identity, decay=1.2)
    yield "space='odds'", lambda: TemporalSmoothing(identity, space="odds")
    yield "scene_cut='a'", lambda: TemporalSmoothing(identity, scene_cut="a")
    two = torch.tensor([0.1, 0.2])
    yield r"^decay=tensor\(\[0.1000, 0.2000\]\) must be one number", lambda: TemporalSmoothing(identity, decay=two)
    yield "decay='a'", lambda: TemporalSmoothing(identity, decay="a")
    yield "decay=True", lambda: TemporalSmoothing(identity, decay=True)
    yield "class_axis='a' must be a whole number", lambda: TemporalSmoothing(identity, class_axis="a")(FRAMES)
    yield "class_axis=7 does not exist", lambda: TemporalSmoothing(identity, class_axis=7)(FRAMES)
    yield r"stream=\{'a': 1\} cannot be an id", lambda: TemporalSmoothing(identity)(FRAMES, stream={"a": 1})
    one_id = "a list or tuple is one id per frame; one id for all is a string or a whole number, such as 'cam 1'"
    yield f"^2 entries of stream for 1 frame; {one_id}$", lambda: calls(FRAMES[:1], stream=("cam", 1))
    yield r"stream=\('cam', 1\) cannot be an id; .*'cam 1'", lambda: calls(FRAMES[:2], stream=[("cam", 1)] * 2)
    yield "stream=True cannot be an id", lambda: calls(FRAMES, stream=True)
    yield "stream=None cannot be an id", lambda: calls(FRAMES[:2], stream=["a", None])
    yield "2 entries of cut for 12 frames; give one for all or one per frame", lambda: calls(FRAMES, cut=[True, False])
    yield "cut='no' must be true or false", lambda: calls(FRAMES, cut="no")
    yield "cut=2 must be true or false", lambda: calls(FRAMES[:2], cut=[True, 2])
    yield r"frames are a tensor \[N, …\], not ndarray; give torch.as_tensor", lambda: calls(FRAMES.numpy())
    yield "not a predictor", lambda: TemporalSmoothing(3)
    yield r"shape \(11, .* for 12 items", lambda: TemporalSmoothing(lambda x: x[1:])(FRAMES)


@pytest.mark.parametrize(("says", "make"), list(refused()))
def test_bad_input_is_named(says: str, make) -> None:
    with pytest.raises(InputError, match=says):
        make()


def test_a_failing_frame_changes_no_stream_and_creates_none() -> None:
    made = TemporalSmoothing(torch.nn.Linear(4, 3), window=3)
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
    made(x[:3], stream="cam")
    with pytest.raises(RuntimeError):
        made(torch.zeros(2, 5), stream=["new", "cam"], cut=[False, True])
    assert list(made.memories) == ["cam"]
    torch.testing.assert_close(made(x[3:], stream="cam")[0], restarted(made, x)[3])
