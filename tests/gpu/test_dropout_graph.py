"""MC dropout on a CUDA device: groups of members have the masks of the plain loop, and its logits up to rounding."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from calibrant.ensembles import MCDropout
from calibrant.ensembles.dropout_graph import free_memory
from calibrant.nn import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def looped(ensemble: MCDropout, x: Tensor) -> Tensor:
    out = []
    for j in range(ensemble.size):
        with torch.no_grad(), ensemble.member(j) as member:
            out.append(member(x))
    return torch.stack(out)


class Wide(nn.Module):
    """Returns logits in float32, whatever the precision of the layers before."""

    def forward(self, z: Tensor) -> Tensor:
        return z.float()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("together", [None, 1])
@pytest.mark.parametrize("wide", [False, True])
def test_members_are_those_of_the_plain_loop(half: bool, together: int | None, wide: bool) -> None:
    network = build("resnet18", classes=10, dropout=0.3).to(memory_format=torch.channels_last)
    model = nn.Sequential(network, *([Wide()] if wide else [])).cuda().eval()
    x = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    x = x.to(memory_format=torch.channels_last)
    ensemble = MCDropout(model, 20, together=together)
    with torch.autocast("cuda", torch.bfloat16) if half else nullcontext():
        got, expected = ensemble.members(x), looped(ensemble, x)
    ((_, split),) = ensemble._splits
    assert split.verified == {together is None}
    tolerance = 5e-2 if half else 5e-3
    torch.testing.assert_close(got.float(), expected.float(), atol=tolerance * float(expected.abs().max()), rtol=0)
    assert float((expected[0] - expected[1]).abs().max()) > 2 * tolerance * float(expected.abs().max())  # other masks


def test_memory_that_was_freed_is_free() -> None:
    held = torch.empty(2**28, device="cuda")
    before = free_memory(held.device)
    del held
    assert free_memory(torch.device("cuda")) > before + 2**29


def test_a_smoothed_network_keeps_its_fused_kernel() -> None:
    import calibrant

    model = calibrant.smooth(build("resnet18", classes=10, dropout=0.3)).cuda().eval()
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    ensemble = MCDropout(model, 10)
    torch.testing.assert_close(ensemble.members(x), looped(ensemble, x), atol=1e-2, rtol=1e-2)
    targets = {str(n.target) for _, split in ensemble._splits for n in split.member_part}
    assert "calibrant.smooth.default" in targets
