"""The device code of the fused Smooth (Triton): a lane processes its rows from top to bottom, see `map_access.py`.

Each lane applies Prob once to each number. The averages along W of the last rows stay in registers for the average
along H. Padding is done by the address (forward) or by the weight (backward), without branches.

K taps k0 … k4: LEFT = (K − 1)//2 of them before the point itself, RIGHT = K//2 after it.
"""

# Device code only looks like Python: its compiler has no starred tuples, and its values have no types for mypy.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from calibrant.nn.kernels.map_access import REFLECT, REPLICATE, ZERO, locate, read, write

TANH, RELU6 = tl.constexpr(0), tl.constexpr(1)
RUNTIME = ["H", "W", "J", "S", "groups", "down", "steps"]
"""Integers whose values must not cause another compilation; U, V and EXACT hold what the code depends on."""


@triton.jit
def _tanh(z, FAST: tl.constexpr):
    """Return tanh(z) for z ≥ 0. The result for z < 0 is never used."""
    if FAST:  # one instruction with 11 bits, as many as half precision has
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [z], dtype=tl.float32, is_pure=True, pack=1)
    e = tl.exp2(tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL) * -2.8853900817779268)
    s = z * z  # near zero 1 − e would cancel, so use the odd polynomial of the CUDA library
    p = ((1.57394409e-2 * s - 5.23025580e-2) * s + 1.33152977e-1) * s - 3.33327681e-1
    return tl.where(z < 0.55, z + z * (p * s), (1.0 - e) / (1.0 + e))


@triton.jit
def _prob(z, tau, UPPER: tl.constexpr, FAST: tl.constexpr):
    """Return ReLU(upper(z)), up to the factor `scale` in the taps."""
    z = z.to(tl.float32)
    if UPPER == TANH:
        z = _tanh(z * (1.0 / tau), FAST)
    elif UPPER == RELU6:
        z = tl.minimum(z, tau, propagate_nan=tl.PropagateNan.ALL)
    return tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _slope(z, tau, UPPER: tl.constexpr, FAST: tl.constexpr):
    """Return the derivative of Prob, up to the same factor and, for tanh, 1/τ."""
    z = z.to(tl.float32)
    if UPPER == TANH:
        t = _tanh(z * (1.0 / tau), FAST)
        return tl.where(z <= 0, 0.0, 1.0 - t * t)
    if UPPER == RELU6:
        return tl.where((z < 0) | (z > tau), 0.0, 1.0)  # the subgradient of torch's clamp at both ends
    return tl.where(z <= 0, 0.0, 1.0)


@triton.jit(do_not_specialize=RUNTIME)
def forward(
    x, y, H, W, J, S, groups, down, steps, tau, scale, k0, k1, k2, k3, k4,
    K: tl.constexpr, PAD: tl.constexpr, UPPER: tl.constexpr, FAST: tl.constexpr, NCHW: tl.constexpr,
    EXACT: tl.constexpr, U: tl.constexpr, V: tl.constexpr, G: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    LEFT: tl.constexpr = (K - 1) // 2
    RIGHT: tl.constexpr = K // 2
    taps = (k0, k1, k2, k3, k4)
    across = (k0 * scale, k1 * scale, k2 * scale, k3 * scale, k4 * scale)
    S = 1 if NCHW else S * V
    W = J * U if EXACT else W
    at, j, first = locate(x, H, W, S, J, groups, down, steps * B, G, V, NCHW)
    window = ()
    for _ in tl.static_range((K - 1) * U):
        window = window + (tl.zeros([G] if NCHW else [G, V], tl.float32),)
    for above in range(K - 1):
        columns = read(x + at, first - LEFT + above, j, H, W, S, LEFT, RIGHT, PAD, U, V, EXACT, NCHW)
        window = (window + _averaged(columns, across, tau, UPPER, FAST, K, U))[U:]
    for step in range(steps):
        h = first + step * B
        rows = ()
        for b in tl.static_range(B):
            rows = rows + (read(x + at, h + b + RIGHT, j, H, W, S, LEFT, RIGHT, PAD, U, V, EXACT, NCHW),)
        for b in tl.static_range(B):
            window = window + _averaged(rows[b], across, tau, UPPER, FAST, K, U)
            out = ()
            for i in tl.static_range(U):
                total = taps[0] * window[i]
                for d in tl.static_range(1, K):
                    total += taps[d] * window[d * U + i]
                out = out + (total.to(y.dtype.element_ty),)
            window = window[U:]
            write(y + at, out, h + b, j, H, W, S, U, V, EXACT, NCHW)


@triton.jit
def _averaged(columns, taps, tau, UPPER: tl.constexpr, FAST: tl.constexpr, K: tl.constexpr, U: tl.constexpr):
    """Return Prob averaged along W, for each of the U columns."""
    p = ()
    for i in tl.static_range(U + K - 1):
        p = p + (_prob(columns[i], tau, UPPER, FAST),)
    out = ()
    for i in tl.static_range(U):
        total = taps[0] * p[i]
        for d in tl.static_range(1, K):
            total += taps[d] * p[i + d]
        out = out + (total,)
    return out


@triton.jit(do_not_specialize=RUNTIME)
def backward(
    x, g, dx, H, W, J, S, groups, down, steps, tau, scale, k0, k1, k2, k3, k4,
    K: tl.constexpr, PAD: tl.constexpr, UPPER: tl.constexpr, FAST: tl.constexpr, NCHW: tl.constexpr,
    EXACT: tl.constexpr, U: tl.constexpr, V: tl.constexpr, G: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    RIGHT: tl.constexpr = K // 2
    AHEAD: tl.constexpr = RIGHT if PAD == REFLECT else (K - 1) // 2  # an even kernel reflects one point further
    D: tl.constexpr = RIGHT + AHEAD + 1
    taps = (k0, k1, k2, k3, k4)
    across = (k0 * scale, k1 * scale, k2 * scale, k3 * scale, k4 * scale)
    S = 1 if NCHW else S * V
    W = J * U if EXACT else W
    at, j, first = locate(x, H, W, S, J, groups, down, steps * B, G, V, NCHW)
    weights, window = (), ()
    for i in tl.static_range(U):
        for d in tl.static_range(-RIGHT, AHEAD + 1):
            weights = weights + (_weight(j * U + i, W, across, d, i, U, EXACT, K, PAD),)
    for _ in tl.static_range((D - 1) * U):
        window = window + (tl.zeros([G] if NCHW else [G, V], tl.float32),)
    for above in range(D - 1):
        columns = read(g + at, first - RIGHT + above, j, H, W, S, RIGHT, AHEAD, ZERO, U, V, EXACT, NCHW)
        window = (window + _spread(columns, weights, U, D))[U:]
    for step in range(steps):
        h = first + step * B
        rows, inputs = (), ()
        for b in tl.static_range(B):
            rows = rows + (read(g + at, h + b + AHEAD, j, H, W, S, RIGHT, AHEAD, ZERO, U, V, EXACT, NCHW),)
            inputs = inputs + (read(x + at, h + b, j, H, W, S, 0, 0, REPLICATE, U, V, EXACT, NCHW),)
        for b in tl.static_range(B):
            window = window + _spread(rows[b], weights, U, D)
            out = ()
            for i in tl.static_range(U):
                total = _weight(h + b, H, taps, -RIGHT, 0, 1, False, K, PAD) * window[i]
                for d in tl.static_range(1, D):
                    total += _weight(h + b, H, taps, d - RIGHT, 0, 1, False, K, PAD) * window[d * U + i]
                out = out + ((total * _slope(inputs[b][i], tau, UPPER, FAST)).to(dx.dtype.element_ty),)
            window = window[U:]
            write(dx + at, out, h + b, j, H, W, S, U, V, EXACT, NCHW)


@triton.jit
def _spread(columns, weights, U: tl.constexpr, D: tl.constexpr):
    """Return the transposed average along W, for each of the U columns."""
    z = ()
    for i in tl.static_range(U + D - 1):
        z = z + (columns[i].to(tl.float32),)
    out = ()
    for i in tl.static_range(U):
        total = weights[i * D] * z[i]
        for d in tl.static_range(1, D):
            total += weights[i * D + d] * z[i + d]
        out = out + (total,)
    return out


@triton.jit
def _weight(
    at, N, taps, d: tl.constexpr, i: tl.constexpr, U: tl.constexpr, EXACT: tl.constexpr,
    K: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Return the weight of the gradient at `at + d` in point `at` of the transposed blur. `at` is i modulo U.

    Besides its own tap, a point near the border gets the taps of the padding that copied it: replicate copies the
    border to the point u beyond it, and reflect the point u before it. Cases impossible for this i are left out in
    compilation.
    """
    LEFT: tl.constexpr = (K - 1) // 2
    RIGHT: tl.constexpr = K // 2
    M: tl.constexpr = 1 if PAD == REFLECT else 0  # M·u is the distance of the copied point from the border
    weight = taps[LEFT - d] if LEFT - d >= 0 and LEFT - d < K else 0.0
    if PAD != ZERO:
        for u in tl.static_range(1, RIGHT + 1):
            if u <= LEFT and LEFT - u - M * u - d >= 0 and d >= -M * u and M * u >= i and (M * u - i) % U == 0:
                weight = weight + tl.where(at == M * u, taps[LEFT - u - M * u - d], 0.0)
            if LEFT + u + M * u - d < K and d <= M * u and (not EXACT or (U - 1 - M * u - i) % U == 0):
                weight = weight + tl.where(at == N - 1 - M * u, taps[LEFT + u + M * u - d], 0.0)
    return weight
