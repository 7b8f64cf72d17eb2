"""The history behind the correctness ranking loss: what is counted, when, and that it survives a checkpoint."""

from __future__ import annotations

import pytest
import torch

from calibrant.errors import InputError
from calibrant.losses import Ranking
from calibrant.protocols import Batch


def batch(index: list[int], labels: list[int]) -> Batch:
    return Batch(torch.zeros(len(index), 2), torch.tensor(labels), torch.tensor(index))


def logits(predicted: list[int]) -> torch.Tensor:
    return 2 * torch.nn.functional.one_hot(torch.tensor(predicted), 2).float()


@pytest.mark.parametrize("items", [0, 10])
def test_history_counts_by_training_index(items: int) -> None:
    penalty = Ranking(items=items)
    penalty(logits([0, 1, 1]), batch([7, 2, 4], [0, 0, 1]))
    penalty(logits([0, 0]), batch([7, 4], [0, 1]))
    assert penalty.correct[[7, 2, 4]].tolist() == [2, 0, 1]
    assert penalty.seen[[7, 2, 4]].tolist() == [2, 1, 2]
    assert int(penalty.seen.sum()) == 5


def test_the_first_visit_ranks_nothing_and_the_second_by_the_first() -> None:
    penalty = Ranking(items=2)
    equal = torch.zeros(2, 2)
    assert penalty(logits([0, 0]), batch([0, 1], [0, 1])).item() == 0.0  # all histories are empty, hence equal
    # item 0 was right, item 1 wrong: confidence must lead by 1, and it leads by nothing
    assert penalty(equal, batch([0, 1], [0, 1])).item() == pytest.approx(1.0)


def test_state_round_trip() -> None:
    penalty, again = Ranking(), Ranking()
    penalty(logits([0, 1, 1]), batch([3, 0, 1], [0, 0, 1]))
    again.load({key: value.clone() for key, value in penalty.state().items()})
    following = batch([0, 1, 3], [1, 1, 0])
    assert torch.equal(penalty(logits([1, 1, 0]), following), again(logits([1, 1, 0]), following))
    assert torch.equal(penalty.correct, again.correct)


def test_loading_does_not_share_memory_with_the_checkpoint() -> None:
    saved = {"correct": torch.zeros(3, dtype=torch.int32), "seen": torch.zeros(3, dtype=torch.int32)}
    penalty = Ranking()
    penalty.load(saved)
    penalty(logits([0, 0, 0]), batch([0, 1, 2], [0, 0, 0]))
    assert not saved["seen"].any()


def test_unknown_confidence() -> None:
    with pytest.raises(InputError, match="max, margin, entropy"):
        Ranking(confidence="logit")
