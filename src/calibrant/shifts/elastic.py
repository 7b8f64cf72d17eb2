"""Elastic transform: a random affine map, then a smooth random displacement of every pixel."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.shifts.corruption import Corruption, Strengths
from calibrant.shifts.random_numbers import Draws
from calibrant.shifts.separable import gaussian


class ElasticTransform(Corruption):
    """A random affine map and a smooth random displacement."""

    name: ClassVar[str] = "elastic_transform"
    strengths: ClassVar[Strengths] = {
        32: ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        224: ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
    }
    """Shares of the side: (displacement, its smoothness, reach of the affine map)."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        displacement, smoothness, reach = self.strength(x, severity)
        n, _, h, w = x.shape
        side = float(min(h, w))
        if not self.small(x):
            side *= 244 / 224  # the published lengths for 224 × 224 were computed with 244
        x = affine(x, numbers.between(-reach * side, reach * side, 3, 2))
        if displacement == 0:
            return x
        field = numbers.uniform(2, h, w, stream=1).mul_(2).sub_(1)
        field = gaussian(field, smoothness * side, truncate=3.0, border="reflect").mul_(displacement * side)
        place = pixel_places(h, w, x.device).expand(n, h, w, 2) + field.permute(0, 2, 3, 1)
        return sample_at(x, place, "reflect")


def affine(x: Tensor, offsets: Tensor) -> Tensor:
    """Each image under the map that moves three points around its middle by `offsets` [N, 3, 2], borders mirrored."""
    h, w = x.shape[2:]
    centre = torch.tensor([w // 2, h // 2], dtype=torch.float64, device=x.device)
    arm = min(h, w) // 3
    corners = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=torch.float64, device=x.device) * arm + centre
    moved_corners = corners + offsets.double()
    # the matrix of the forward map from the moves of two edges, then its inverse: where a pixel comes from
    edges = torch.stack((corners[0] - corners[2], corners[1] - corners[2]), dim=1)
    moves = torch.stack((moved_corners[:, 0] - moved_corners[:, 2], moved_corners[:, 1] - moved_corners[:, 2]), dim=2)
    backward = edges @ inverse(moves)
    origin = corners[2] - (backward @ moved_corners[:, 2, :, None]).squeeze(-1)
    place = torch.einsum("nij,hwj->nhwi", backward, pixel_places(h, w, x.device).double()) + origin[:, None, None]
    return sample_at(x, place.float(), "mirror")


def inverse(m: Tensor) -> Tensor:
    """The inverse of matrices [N, 2, 2], written out so that it is the same in every batch."""
    a, b, c, d = m[:, 0, 0], m[:, 0, 1], m[:, 1, 0], m[:, 1, 1]
    adjugate = torch.stack((torch.stack((d, -b), 1), torch.stack((-c, a), 1)), 1)
    return adjugate / (a * d - b * c)[:, None, None]


def pixel_places(h: int, w: int, device: torch.device) -> Tensor:
    """(column, row) of every pixel, float32 [H, W, 2]."""
    rows, columns = torch.arange(h, device=device), torch.arange(w, device=device)
    return torch.stack((columns.expand(h, w), rows[:, None].expand(h, w)), dim=2).float()


def sample_at(x: Tensor, place: Tensor, border: str) -> Tensor:
    """x at (column, row) = place [N, H', W', 2], linearly between pixels. Borders: "reflect", "mirror" or "black"."""
    h, w = x.shape[2:]
    size = torch.tensor([w, h], dtype=torch.float32, device=x.device)
    if border == "mirror":
        return F.grid_sample(x, place * (2 / (size - 1)) - 1, padding_mode="reflection", align_corners=True)
    padding = "reflection" if border == "reflect" else "zeros"
    return F.grid_sample(x, (place * 2 + 1) / size - 1, padding_mode=padding, align_corners=False)
